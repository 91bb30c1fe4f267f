import sys

import pytest

from oncurve.rewards import BUILT_IN, NamedReward, RewardError, accuracy, check_signature, format_reward, load_functions


@pytest.fixture(autouse=True)
def _import_path_kept(monkeypatch):
    monkeypatch.setattr(sys, "path", list(sys.path))


@pytest.fixture
def file(tmp_path):
    path = tmp_path / "mine.py"

    def write(text):
        path.write_text(text)
        return path

    return write


def test_built_in_names_and_weights():
    assert load_functions(["accuracy", "format"], [1.0, 0.2]) == [
        NamedReward("accuracy", 1.0, accuracy),
        NamedReward("format", 0.2, format_reward),
    ]
    assert [reward.weight for reward in load_functions(list(BUILT_IN))] == [1.0] * len(BUILT_IN)
    assert load_functions([]) == []


def test_function_from_a_file(file):
    path = file(
        "from dataclasses import dataclass\n@dataclass\nclass A:\n    x: int\ndef short(completions): return [1.0]\n"
    )
    (reward,) = load_functions([f"{path}:short"], [0.5])
    assert (reward.name, reward.weight) == ("short", 0.5)
    assert reward.function(completions=["a"]) == [1.0]


def test_file_is_relative_to_the_working_directory(file, monkeypatch):
    path = file("def short(completions):\n    return [1.0]\n")
    monkeypatch.chdir(path.parent)
    assert load_functions(["mine.py:short"])[0].name == "short"


def test_file_is_run_once_and_read_anew_each_time(file):
    path = file("seen = []\ndef a(**kwargs): seen.extend(kwargs.values()); return seen\ndef b(**kwargs): return seen\n")
    a, b = load_functions([f"{path}:a", f"{path}:b"])
    assert a.function() == b.function() == []
    a.function(add=1)
    assert b.function() == [1]  # they share a process
    file("seen = {}\ndef a(**kwargs): return seen\ndef b(**kwargs): return seen\n")
    assert load_functions([f"{path}:a"])[0].function() == {}


def test_file_imports_its_neighbour(file, tmp_path):
    (tmp_path / "neighbour_of_mine.py").write_text("ONE = 1.0\n")
    path = file("from neighbour_of_mine import ONE\ndef f(completions): return [ONE]\n")
    assert load_functions([f"{path}:f"])[0].function(completions=["a"]) == [1.0]


def test_function_from_a_module(tmp_path, monkeypatch):
    assert load_functions(["oncurve.rewards.correctness:accuracy"])[0].function is accuracy
    (tmp_path / "module_in_cwd.py").write_text("def f(completions): return [1.0]\n")
    monkeypatch.chdir(tmp_path)
    assert load_functions(["module_in_cwd:f"])[0].name == "f"


def test_equal_names_are_told_apart(file):
    path = file("def accuracy(**kwargs): return []\ndef accuracy_2(**kwargs): return []\n")
    names = ["accuracy", f"{path}:accuracy", f"{path}:accuracy_2", "accuracy"]
    assert [reward.name for reward in load_functions(names)] == ["accuracy", "accuracy_2", "accuracy_2_2", "accuracy_3"]


def test_callable_without_a_name(file):
    path = file("import functools\ndef f(completions, x): return [x]\ng = functools.partial(f, x=2.0)\n")
    (reward,) = load_functions([f"{path}:g"])
    assert reward.name == "g"
    check_signature(reward, [])


@pytest.mark.parametrize(
    ("spec", "said"),
    [
        ("acuracy", r"no reward 'acuracy' \(did you mean 'accuracy'\?\)"),
        ("zzz", r"give one of `accuracy`, .*`format`, .*path/to/file.py:function"),
        ("rewards.py", "path/to/file.py:function"),
        ("nowhere/rewards.py:f", "there is no file .*nowhere/rewards.py"),
        ("no_such_package.module:f", "there is no module 'no_such_package'"),
        ("oncurve.rewards.no_such:f", "there is no module 'oncurve.rewards.no_such'"),
        ("oncurve.rewards.correctness:acuracy", r"has no 'acuracy' \(did you mean 'accuracy'\?\)"),
        ("oncurve.rewards.number:MAX_CHARACTERS", "is a value of type int, not a function"),
        ("oncurve.rewards:Scores", "is a class, not a function"),
    ],
)
def test_what_cannot_be_loaded(spec, said):
    with pytest.raises(RewardError, match=said):
        load_functions([spec])


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("import json\nimport no_such_thing\n", r"mine.py, line 2 \(`import no_such_thing`\): ModuleNotFoundError"),
        ("import json\njson.loads('{')\n", r"mine.py, line 2 \(`json.loads\('\{'\)`\): JSONDecodeError"),
        ("def f(:\n", r"mine.py, line 1 \(`def f\(:`\): SyntaxError"),
        ("import sys\nsys.exit(3)\n", r"line 2 \(`sys.exit\(3\)`\): SystemExit: 3"),
    ],
)
def test_error_in_the_users_file_shows_its_line(file, text, said):
    with pytest.raises(RewardError, match=said) as caught:
        load_functions([f"{file(text)}:f"])
    assert caught.value.__cause__ is not None


def test_error_in_the_users_module_shows_its_line(tmp_path, monkeypatch):
    (tmp_path / "broken_module_in_cwd.py").write_text("x = 1\nimport no_such_thing\n")
    monkeypatch.chdir(tmp_path)
    with pytest.raises(RewardError, match=r"broken_module_in_cwd.py, line 2 \(`import no_such_thing`\)"):
        load_functions(["broken_module_in_cwd:f"])


def test_weights_that_do_not_fit():
    with pytest.raises(RewardError, match=r"1 weights for 2 reward functions \(accuracy, format\)"):
        load_functions(["accuracy", "format"], [1.0])
    with pytest.raises(RewardError, match="weight of reward 'accuracy' is nan"):
        load_functions(["accuracy"], [float("nan")])


def named(function):
    return NamedReward("mine", 1.0, function)


def test_signature_fits():
    check_signature(named(lambda completions, answer: []), ["answer"])
    check_signature(named(lambda **kwargs: []), [])
    check_signature(named(lambda completions, difficulty=1, *args, **kwargs: []), [])
    check_signature(
        named(lambda *, prompts, prompt_texts, completion_ids, trainer_state, log_extra, log_metric: []), []
    )
    check_signature(load_functions(["accuracy"])[0], ["answer"])


def test_signature_requires_what_no_column_gives():
    with pytest.raises(RewardError) as caught:
        check_signature(named(lambda completions, anwser, **kwargs: []), ["answer", "level"])
    text = str(caught.value)
    assert "'mine' requires `anwser`" in text
    assert "did you mean 'answer'?" in text
    assert "its columns are `answer`, `level`" in text
    with pytest.raises(RewardError, match=r"'accuracy' requires `answer`.*its columns are \(none\)"):
        check_signature(load_functions(["accuracy"])[0], [])


def test_signature_by_position_only():
    with pytest.raises(RewardError, match="takes `completions` by position only"):
        check_signature(named(lambda completions, /: []), [])
