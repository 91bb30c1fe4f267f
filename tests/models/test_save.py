import errno

import pytest
import torch
from transformers import AutoModelForCausalLM, AutoTokenizer

from oncurve.models.save import atomic_directory, save_model
from oncurve.types import OncurveError
from tiny import TEMPLATE, tiny_llama, tiny_tokenizer

TOKENS = torch.tensor([[1, 6, 7, 6, 8]])


def test_saved_model_is_a_plain_transformers_directory(tmp_path):
    model, tokenizer = tiny_llama(tie_word_embeddings=True), tiny_tokenizer(template=TEMPLATE, pad_token="</s>")
    save_model(model, tokenizer, tmp_path / "models" / "final")
    again = AutoModelForCausalLM.from_pretrained(tmp_path / "models" / "final")
    assert torch.equal(again(TOKENS).logits, model(TOKENS).logits)
    read = AutoTokenizer.from_pretrained(tmp_path / "models" / "final")
    assert read("two plus two").input_ids == [6, 7, 6]
    assert (read.eos_token_id, read.pad_token_id, read.chat_template) == (2, 2, TEMPLATE)
    assert [path.name for path in (tmp_path / "models").iterdir()] == ["final"]


def test_generate_on_the_saved_model_ends_at_eos(tmp_path):
    save_model(tiny_llama(eos_token_id=None), tiny_tokenizer(pad_token="</s>"), tmp_path / "m")
    settings = AutoModelForCausalLM.from_pretrained(tmp_path / "m").generation_config
    assert (settings.eos_token_id, settings.pad_token_id) == (2, 2)


def test_saving_again_replaces_all_of_it(tmp_path):
    save_model(tiny_llama(0), tiny_tokenizer(), tmp_path / "m")
    (tmp_path / "m" / "stray.txt").write_text("old")
    newer = tiny_llama(1)
    save_model(newer, tiny_tokenizer(), tmp_path / "m")
    again = AutoModelForCausalLM.from_pretrained(tmp_path / "m")
    assert torch.equal(again(TOKENS).logits, newer(TOKENS).logits)
    assert not (tmp_path / "m" / "stray.txt").exists()
    assert [path.name for path in tmp_path.iterdir()] == ["m"]


def test_full_disk_leaves_what_was_there(tmp_path, monkeypatch):
    older, newer, tokenizer = tiny_llama(0), tiny_llama(1), tiny_tokenizer()
    save_model(older, tokenizer, tmp_path / "m")

    def full(*_, **__):
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(tokenizer, "save_pretrained", full)  # after the weights are written
    with pytest.raises(
        OncurveError, match=r"m cannot be written: No space left on device; nothing that was there is lost"
    ):
        save_model(newer, tokenizer, tmp_path / "m")
    again = AutoModelForCausalLM.from_pretrained(tmp_path / "m")
    assert torch.equal(again(TOKENS).logits, older(TOKENS).logits)
    assert [path.name for path in tmp_path.iterdir()] == ["m"]


def test_a_failed_exchange_puts_the_old_directory_back(tmp_path, monkeypatch):
    target = tmp_path / "m"
    target.mkdir()
    (target / "old").touch()
    rename = type(target).rename

    def sometimes(self, to):
        if ".new-" in self.name:
            raise OSError(errno.EIO, "Input/output error")
        return rename(self, to)

    monkeypatch.setattr(type(target), "rename", sometimes)
    with pytest.raises(OncurveError, match="Input/output error"), atomic_directory(target) as unfinished:
        (unfinished / "new").touch()
    assert [path.name for path in tmp_path.iterdir()] == ["m"]
    assert [path.name for path in target.iterdir()] == ["old"]


def test_any_error_in_the_block_leaves_nothing(tmp_path):
    def interrupted():
        with atomic_directory(tmp_path / "m") as unfinished:
            (unfinished / "half").touch()
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        interrupted()
    assert list(tmp_path.iterdir()) == []


def test_a_directory_that_cannot_be_made(tmp_path):
    (tmp_path / "file").touch()
    with pytest.raises(OncurveError, match="cannot be written"):
        save_model(tiny_llama(), tiny_tokenizer(), tmp_path / "file" / "m")
