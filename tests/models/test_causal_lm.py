import contextlib

import pytest
import torch
from transformers import (
    BertConfig,
    BertModel,
    GPT2Config,
    GPT2LMHeadModel,
    LlamaForCausalLM,
    LlamaModel,
    RecurrentGemmaConfig,
    RecurrentGemmaForCausalLM,
    RwkvConfig,
    RwkvForCausalLM,
    xLSTMConfig,
    xLSTMForCausalLM,
)

from families import CONTEXT, FAMILIES, VOCABULARY, tiny_model
from oncurve.models.causal_lm import _HeadOfForward, causal_lm, eval_mode
from oncurve.types import OncurveError
from tiny import tiny_llama, tiny_llama_config

TOKENS = torch.tensor([[1, 5, 9, 4, 22, 7], [3, 3, 8, 20, 2, 11], [6, 14, 0, 0, 0, 0]])
OWN_HEAD = {"gemma2", "cohere", "granite"}


@pytest.fixture(params=FAMILIES)
def family(request):
    return request.param


def test_the_split_gives_the_logits_of_the_module(family):
    module = tiny_model(family)
    lm = causal_lm(module)
    with torch.no_grad():
        expected = module(input_ids=TOKENS, use_cache=False).logits
        hidden = lm.hidden(TOKENS)
        assert hidden.shape == (3, 6, 32)
        torch.testing.assert_close(lm.logits(hidden), expected, rtol=1e-6, atol=1e-6)
        chosen = torch.tensor([[True, False, True, False, False, True], [False] * 6, [True] + [False] * 5])
        assert lm.logits(hidden[chosen]).shape == (4, VOCABULARY)
        torch.testing.assert_close(lm.logits(hidden[chosen]), expected[chosen], rtol=1e-6, atol=1e-6)


def test_families_that_scale_or_cap_their_logits_go_through_their_own_forward(family):
    lm = causal_lm(tiny_model(family))
    assert isinstance(lm.head, _HeadOfForward) == (family in OWN_HEAD)


@pytest.mark.parametrize("family", sorted(OWN_HEAD))
def test_without_the_own_forward_those_families_would_be_scored_wrongly(family):
    module = tiny_model(family)
    with torch.no_grad():
        plain = module.get_output_embeddings()(causal_lm(module).hidden(TOKENS))
        assert (plain - module(input_ids=TOKENS).logits).abs().max() > 0.5


def test_a_cap_is_found_while_the_weights_are_too_small_to_reach_it():
    # Logits of 0.1 under a cap of 30 differ from uncapped ones by less than rounding; after training they are large.
    module = tiny_model("gemma2", initializer_range=0.02, final_logit_softcapping=30.0)
    assert module(input_ids=TOKENS).logits.abs().max() < 1.0
    assert isinstance(causal_lm(module).head, _HeadOfForward)


@pytest.mark.parametrize("dtype", [torch.float64, torch.bfloat16, torch.float16])
@pytest.mark.parametrize("family", ["llama", "gemma2"])
def test_other_dtypes(family, dtype):
    module = tiny_model(family).to(dtype)
    lm = causal_lm(module)
    assert isinstance(lm.head, _HeadOfForward) == (family in OWN_HEAD)
    assert lm.logits(lm.hidden(TOKENS)).dtype == dtype


@pytest.mark.parametrize("family", ["llama", "gemma2"])
def test_the_gradient_is_that_of_the_module(family):
    module = tiny_model(family)
    lm = causal_lm(module)
    weights = torch.randn(3, 6, VOCABULARY, generator=torch.Generator().manual_seed(0))
    gradients = []
    for logits in (module(input_ids=TOKENS, use_cache=False).logits, lm.logits(lm.hidden(TOKENS))):
        module.zero_grad()
        (logits * weights).sum().backward()
        gradients.append([parameter.grad.clone() for parameter in module.parameters()])
    for expected, found in zip(*gradients, strict=True):
        torch.testing.assert_close(found, expected, rtol=1e-5, atol=1e-5)


def test_padding_on_the_right_needs_no_mask(family):
    lm = causal_lm(tiny_model(family))
    alone = lm.hidden(TOKENS[2:, :2])
    torch.testing.assert_close(lm.hidden(TOKENS)[2:, :2], alone, rtol=1e-5, atol=1e-5)


def test_the_decoder_is_itself_again_after_the_own_forward(family):
    module = tiny_model(family)
    head = _HeadOfForward(module, module.get_decoder())
    before = module(input_ids=TOKENS).logits
    head(torch.zeros(2, 32))
    with pytest.raises(RuntimeError):
        head(torch.zeros(2, 31))
    assert torch.equal(module(input_ids=TOKENS).logits, before)


def test_a_module_in_train_mode_is_probed_without_dropout_and_left_in_train_mode():
    config = GPT2Config(vocab_size=VOCABULARY, n_positions=CONTEXT, n_embd=32, n_layer=2, n_head=4, resid_pdrop=0.5)
    module = GPT2LMHeadModel(config).train()
    module.transformer.h[0].eval()
    modes = [part.training for part in module.modules()]
    causal_lm(module)
    assert [part.training for part in module.modules()] == modes
    assert True in modes
    assert False in modes


def test_eval_mode_is_left_after_an_error():
    module = tiny_llama().train()
    with contextlib.suppress(KeyError), eval_mode(module):
        assert not any(part.training for part in module.modules())
        raise KeyError
    assert all(part.training for part in module.modules())


def test_the_frozen_copy_stays_when_the_policy_moves():
    lm = causal_lm(tiny_model("gemma2").train())
    reference = lm.frozen_copy()
    before = reference.logits(reference.hidden(TOKENS))
    assert torch.equal(before, lm.logits(lm.hidden(TOKENS)))
    with torch.no_grad():
        for parameter in lm.module.parameters():
            parameter.mul_(1.5)
    assert torch.equal(reference.logits(reference.hidden(TOKENS)), before)
    assert not torch.equal(lm.logits(lm.hidden(TOKENS)), before)
    assert not any(parameter.requires_grad for parameter in reference.module.parameters())
    assert all(parameter.requires_grad for parameter in lm.module.parameters())
    assert not reference.module.training


def test_context():
    assert causal_lm(tiny_model("llama")).context == 40
    assert causal_lm(tiny_model("gpt2")).context == 40
    endless = tiny_model("bloom")
    del endless.config.max_position_embeddings
    assert causal_lm(endless).context is None


def test_padding_on_the_left_is_unseen_by_attention_and_not_by_recurrence(family):
    assert causal_lm(tiny_model(family)).padding_is_unseen == (family != "lfm2")


def test_what_is_no_causal_language_model_is_refused():
    encoder = BertModel(BertConfig(vocab_size=9, hidden_size=8, num_hidden_layers=1, num_attention_heads=2))
    for module in (LlamaModel(tiny_llama_config()), encoder):
        with pytest.raises(OncurveError, match=f"{type(module).__name__} is not a causal language model"):
            causal_lm(module)


def test_a_model_without_cache_is_refused():
    config = RwkvConfig(vocab_size=9, hidden_size=8, attention_hidden_size=8, num_hidden_layers=2, context_length=16)
    with pytest.raises(OncurveError, match="RwkvForCausalLM keeps no key-value cache"):
        causal_lm(RwkvForCausalLM(config))


def test_a_recurrent_model_that_keeps_its_state_to_itself_is_refused():
    sizes = {"vocab_size": 9, "hidden_size": 16, "lru_width": 16, "intermediate_size": 32, "num_attention_heads": 2}
    config = RecurrentGemmaConfig(
        **sizes, num_hidden_layers=3, attention_window_size=8, block_types=["recurrent", "recurrent", "attention"]
    )
    torch.manual_seed(0)
    with pytest.raises(OncurveError, match=r"RecurrentGemmaForCausalLM cannot be sampled from: .* outside the cache"):
        causal_lm(RecurrentGemmaForCausalLM(config).eval())


def test_a_model_with_a_cache_of_its_own_kind_is_refused():
    config = xLSTMConfig(vocab_size=9, hidden_size=32, embedding_dim=32, num_heads=4, num_blocks=1)
    with pytest.raises(OncurveError, match=r"xLSTMForCausalLM cannot be sampled from: it does not work with the cache"):
        causal_lm(xLSTMForCausalLM(config).eval())


@pytest.mark.parametrize("value", [float("nan"), float("inf"), 3e38])
def test_a_model_whose_logits_are_no_numbers_is_refused(value):
    module = tiny_llama()
    with torch.no_grad():
        module.lm_head.weight.fill_(value)  # 3e38 is finite; what it is multiplied with makes it too large
    with pytest.raises(OncurveError, match=r"logits of LlamaForCausalLM are not finite.*too large for float32"):
        causal_lm(module)


def test_a_model_whose_logits_need_more_than_hidden_states_is_refused():
    class Biased(LlamaForCausalLM):
        def forward(self, input_ids=None, **options):
            output = super().forward(input_ids=input_ids, **options)
            if input_ids is not None:
                output.logits = output.logits + input_ids[..., None]
            return output

    with pytest.raises(OncurveError, match="the logits of Biased cannot be computed from its last hidden states"):
        causal_lm(Biased(tiny_llama_config()).eval())


@pytest.mark.parametrize("family", FAMILIES)
def test_packed_sequences_are_kept_apart_where_it_is_said(family):
    """The claim is needed for every family that packs; one that is refused may well be right."""
    lm = causal_lm(tiny_model(family).double())
    one, other = (3, 9, 4, 11, 5, 7), (8, 2, 6, 13)
    positions = torch.tensor([[*range(len(one)), *range(len(other))]])
    packed = lm.hidden(torch.tensor([[*one, *other]]), positions=positions)[:, len(one) :]
    apart = float((packed - lm.hidden(torch.tensor([other]))).detach().abs().max()) <= 1e-5
    assert apart or not lm.keeps_packed_rows_apart
    if family in ("bloom", "mpt", "lfm2"):
        assert not apart
