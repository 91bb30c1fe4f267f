import sys
from pathlib import Path

import pytest

from oncurve.models.source import ModelSource, find_source, packaged_gguf, read_chat_template
from oncurve.types import OncurveError


@pytest.fixture
def package(tmp_path, monkeypatch):
    (tmp_path / "lib" / "ships_a_model").mkdir(parents=True)
    root = tmp_path / "lib" / "ships_a_model"
    (root / "__init__.py").write_text("raise RuntimeError('must not be imported')")
    monkeypatch.syspath_prepend(tmp_path / "lib")
    return root


def test_the_one_gguf_of_a_package_is_found_without_importing_it(package):
    (package / "weights").mkdir()
    (package / "weights" / "a.gguf").touch()
    assert packaged_gguf("ships_a_model") == package / "weights" / "a.gguf"
    assert find_source("model.path", "package:ships-a-model") == ModelSource(package / "weights" / "a.gguf", True)
    assert "ships_a_model" not in sys.modules
    (package / "b.gguf").touch()
    with pytest.raises(OncurveError, match=r"has 2 \.gguf files where one is expected: .*b\.gguf, .*a\.gguf"):
        packaged_gguf("ships_a_model")


def test_what_is_there_is_found(tmp_path):
    (tmp_path / "model").mkdir()
    (tmp_path / "model" / "config.json").touch()
    (tmp_path / "m.gguf").touch()
    assert find_source("model.path", str(tmp_path / "model")) == ModelSource(tmp_path / "model")
    assert find_source("model.path", str(tmp_path / "m.gguf")) == ModelSource(tmp_path / "m.gguf", is_gguf=True)
    assert find_source("model.path", "some-owner/some-model") == ModelSource(None)


@pytest.mark.parametrize(
    ("name", "words"),
    [
        ("./modle", r"model.tokenizer = '\./modle': there is no such directory as .*modle \(did you mean model\?\)"),
        ("n.gguf", r"model.tokenizer = 'n\.gguf': there is no such file as .* \(did you mean m\.gguf\?\)"),
        ("a.txt", r"model.tokenizer = 'a\.txt' is a file\. Give a transformers directory"),
        ("model", r"is a directory without config\.json, so not a transformers model; did you mean model/inside\?"),
        ("package:no_such_package", r"model.tokenizer = 'package:no_such_package': .* is not installed here"),
        ("package:__main__", r"is not installed here"),
        ("package:a.b", r"that is not the name of a Python package"),
        ("embedded:letters", r"an embedded model is new"),
        ("~no-such-user/model", r"there is no such directory"),
    ],
)
def test_what_is_not_there_is_told_with_the_option(tmp_path, monkeypatch, name, words):
    monkeypatch.chdir(tmp_path)
    Path("m.gguf").touch()
    Path("a.txt").touch()
    Path("model/inside").mkdir(parents=True)
    Path("model/inside/config.json").touch()
    with pytest.raises(OncurveError, match=words):
        find_source("model.tokenizer", name)


def test_a_chat_template_that_cannot_be_read(tmp_path):
    (tmp_path / "t").write_bytes(b"\xff")
    assert read_chat_template(__file__).startswith("import sys")
    for path in (tmp_path / "none", tmp_path / "t", "~no-such-user/t"):
        with pytest.raises(OncurveError, match=r"model\.chat_template = .* cannot be read"):
            read_chat_template(str(path))
