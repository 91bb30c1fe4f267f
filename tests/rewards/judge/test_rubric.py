from __future__ import annotations

import pytest

from architecture.sources import ROOT
from oncurve.rewards.judge import RubricError, load_rubric

ONE = {"criteria": [{"name": "clarity", "description": "Is it clear?", "scale": [0, 10]}]}


def changed(**values):
    return {"criteria": [ONE["criteria"][0] | values]}


def test_the_debate_example():
    rubric = load_rubric(ROOT / "examples" / "debate_rubric.toml")
    assert rubric.name == "debate"
    assert [(each.name, each.weight, each.low, each.high) for each in rubric.criteria] == [
        ("clarity", 1.0, 0, 10),
        ("correctness", 2.0, 0, 10),
        ("relevance", 1.0, 0, 10),
    ]
    assert rubric.total({"clarity": 8, "correctness": 5, "relevance": 10}) == pytest.approx(0.7, abs=1e-12)
    assert rubric.total({"clarity": 0, "correctness": 0, "relevance": 0}) == 0.0
    assert rubric.total({"clarity": 10, "correctness": 10, "relevance": 10}) == 1.0


def test_scales_differ():
    criteria = [
        {"name": "a", "description": "x", "weight": 3, "scale": [1, 5]},
        {"name": "b", "description": "x", "scale": [-1.0, 1.0]},
        {"name": "c", "description": "x", "weight": 0, "scale": [0, 1]},
    ]
    rubric = load_rubric({"criteria": criteria})
    # (3 * 0.25 + 1 * 0.75 + 0 * 1) / 4
    assert rubric.total({"a": 2, "b": 0.5, "c": 1}) == pytest.approx(0.375, abs=1e-12)
    assert rubric.schema()["properties"] == {
        "a": {"type": "integer", "enum": [1, 2, 3, 4, 5]},
        "b": {"type": "number", "minimum": -1.0, "maximum": 1.0},
        "c": {"type": "integer", "enum": [0, 1]},
    }


def test_the_name_of_the_file_is_its_name(tmp_path):
    path = tmp_path / "my rubric.toml"
    path.write_text('[[criteria]]\nname = "a"\ndescription = "b"\nscale = [0, 1]\n')
    assert load_rubric(path).name == "my_rubric"


@pytest.mark.parametrize(
    ("tree", "told"),
    [
        ({}, "criteria"),
        ({"criteria": []}, "criteria"),
        ({"criteria": "clarity"}, "criteria"),
        ({"criteria": ["clarity"]}, "criterion 1 is 'clarity'"),
        ({**ONE, "instruction": "x"}, "did you mean 'instructions'?"),
        ({**ONE, "name": "a b"}, "name = 'a b'"),
        ({**ONE, "instructions": 3}, "instructions = 3"),
        (changed(weigth=1), "did you mean 'weight'?"),
        (changed(name=""), "name = ''"),
        (changed(name="a\nb"), r"name = 'a\nb'"),
        (changed(name="said"), "stands for something else"),
        (changed(description=" "), "description"),
        (changed(weight=-1), "weight = -1"),
        (changed(weight=True), "weight = True"),
        (changed(weight=float("nan")), "weight = nan"),
        (changed(weight=0), "every weight is 0"),
        (changed(scale=[10, 0]), "scale = [10, 0]"),
        (changed(scale=[0, 0]), "scale = [0, 0]"),
        (changed(scale=[0, float("inf")]), "scale = [0, inf]"),
        (changed(scale=[0, 5, 10]), "scale"),
        (changed(scale="0-10"), "scale = '0-10'"),
        (changed(scale=[False, True]), "scale"),
        ({"criteria": ONE["criteria"] * 2}, "two criteria are called 'clarity'"),
    ],
)
def test_what_cannot_be_is_told(tree, told):
    with pytest.raises(RubricError) as raised:
        load_rubric(tree)
    assert told in str(raised.value)


@pytest.mark.parametrize(
    ("content", "told"),
    [(b"criteria = [", "is not TOML"), (b"\xff\xfe", "is not TOML"), (b"", "[[criteria]]"), (None, "cannot be read")],
)
def test_files_that_cannot_be_read(tmp_path, content, told):
    path = tmp_path / "rubric.toml"
    if content is not None:
        path.write_bytes(content)
    with pytest.raises(RubricError) as raised:
        load_rubric(str(path))
    assert told in str(raised.value)
    assert "rubric.toml" in str(raised.value)


@pytest.mark.parametrize("source", ["", [], 3, None])
def test_no_source(source):
    with pytest.raises(RubricError, match="give the path of a TOML file"):
        load_rubric(source)
