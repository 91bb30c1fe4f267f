import json
import random
import sys
import types

import pytest

from oncurve.data.readers import options_for, read_rows
from oncurve.types import OncurveError


def read(source, size=4, seed=0, options=None, split="train"):
    return read_rows(str(source), size=size, seed=seed, options=options or {}, split=split)


@pytest.fixture
def file(tmp_path):
    def write(name, content):
        path = tmp_path / name
        path.write_bytes(content if isinstance(content, bytes) else content.encode())
        return path

    return write


def test_jsonl_with_bom_crlf_blank_lines_and_line_separator_in_a_string(file):
    path = file("x.jsonl", '\ufeff{"prompt": "a\u2028b", "answer": 1}\r\n\r\n  \n{"prompt": "c"}')
    assert read(path) == [{"prompt": "a\u2028b", "answer": 1}, {"prompt": "c"}]


@pytest.mark.parametrize(
    ("second_line", "message"),
    [
        ('{"prompt": "a"', r"x\.jsonl:2: not JSON: .* at column 15"),
        ("[", "not one array"),
        ("[1]", "this line is an array; it must be an object"),
        ('"a"', "this line is a string"),
        ("null", "this line is null"),
        ("true", "this line is true or false"),
        ('{"prompt": "a", "prompt": "b"}', r"x\.jsonl:2: the key 'prompt' stands twice"),
        ('{"prompt": "a", "deep": {"k": 1, "k": 2}}', "the key 'k' stands twice"),
        ('{"prompt": "\\ud83d"}', r"x\.jsonl:2: '\\ud83d' is half a character"),
        ('{"n": ' + "1" * 5000 + "}", r"x\.jsonl:2: not JSON that can be read"),
        ("[" * 100_000, r"x\.jsonl:2: not JSON that can be read"),
    ],
)
def test_bad_jsonl_names_the_line(file, second_line, message):
    with pytest.raises(OncurveError, match=message):
        read(file("x.jsonl", '{"prompt": "ok"}\n' + second_line + "\n"))


def test_escaped_pairs_are_whole_characters(file):
    assert read(file("x.jsonl", '{"prompt": "\\ud83d\\ude00"}')) == [{"prompt": "\U0001f600"}]


def test_csv_with_bom_quotes_newline_in_a_field_and_a_long_one(file):
    long = "x" * 200_000
    path = file("x.csv", f'\ufeffprompt,answer\r\n"a, ""b""\nc",1\r\n\r\n{long},2\r\n')
    assert read(path) == [{"prompt": 'a, "b"\nc', "answer": "1"}, {"prompt": long, "answer": "2"}]


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ("prompt,answer\na,1\nb,2,3\n", r"x\.csv:3: 3 fields, but the first line names 2"),
        ("prompt,answer\na\n", r"x\.csv:2: 1 fields, but"),
        ("prompt,prompt\na,1\n", r"x\.csv:1: two columns are named 'prompt'"),
        ("prompt,\na,1\n", r"x\.csv:1: a column has no name"),
        ('prompt\n"a\n', r"x\.csv:\d: not CSV"),
        ("prompt,answer\n", "has no rows"),
    ],
)
def test_bad_csv_names_the_line(file, content, message):
    with pytest.raises(OncurveError, match=message):
        read(file("x.csv", content))


def test_parquet(tmp_path, file):
    pyarrow = pytest.importorskip("pyarrow")
    from pyarrow import parquet

    rows = [{"prompt": [{"role": "user", "content": "a"}], "answer": "1"}, {"prompt": [], "answer": None}]
    parquet.write_table(pyarrow.Table.from_pylist(rows), tmp_path / "x.parquet")
    assert read(tmp_path / "x.parquet") == rows
    with pytest.raises(OncurveError, match="is not a parquet file"):
        read(file("bad.parquet", "no"))


def test_files_that_cannot_be_read(tmp_path, file):
    file("train.jsonl", "")
    with pytest.raises(OncurveError, match=r"there is no file .*trian\.jsonl; did you mean .*/train\.jsonl\?"):
        read(tmp_path / "trian.jsonl")
    with pytest.raises(OncurveError, match=r"there is no file .*\(looked for /"):
        read(tmp_path / "nowhere" / "else.jsonl")
    with pytest.raises(OncurveError, match="has no rows"):
        read(tmp_path / "train.jsonl")
    with pytest.raises(OncurveError, match=r"not UTF-8 text: .* at byte 12"):
        read(file("latin.jsonl", b'{"prompt": "\xe9"}'))
    with pytest.raises(OncurveError, match=r"is not a data set: give a \.jsonl"):
        read(file("x.txt", "a"))
    (tmp_path / "dir.jsonl").mkdir()
    with pytest.raises(OncurveError, match="is a directory"):
        read(tmp_path / "dir.jsonl")


def test_options_are_refused_beside_a_file_unless_another_source_takes_them(file):
    path = file("x.jsonl", '{"prompt": "a"}')
    with pytest.raises(
        OncurveError, match=r"data\.options\.max_digits: .*x\.jsonl is a file, which takes no options; they "
    ):
        read(path, options={"max_digits": 1, "min_digits": 1})
    options = {"max_digits": 1}
    assert options_for("x.jsonl", ["x.jsonl", "y.csv"], options) == {"max_digits": 1}  # for read_rows to refuse
    assert options_for("x.jsonl", ["reasoning_gym:chain_sum", "x.jsonl"], options) == {}
    assert options_for("reasoning_gym:chain_sum", ["reasoning_gym:chain_sum", "x.jsonl"], options) == {"max_digits": 1}


def test_missing_extras_say_what_to_install(monkeypatch, file):
    for name in ("pyarrow", "datasets", "reasoning_gym"):
        monkeypatch.setitem(sys.modules, name, None)
    for source, extra in (
        (file("x.parquet", "x"), "parquet"),
        ("hub:a/b", "hub"),
        ("reasoning_gym:chain_sum", "gym"),
    ):
        with pytest.raises(OncurveError, match=rf"pip install 'oncurve\[{extra}\]'"):
            read(source)


@pytest.fixture
def hub(monkeypatch):
    """A stand-in for the package ``datasets`` that notes what it is asked for."""

    class DatasetsError(Exception):
        pass

    asked = []

    def load_dataset(path, split, **options):
        if path == "no/where":
            raise ConnectionError("Couldn't reach 'no/where' on the Hub")
        asked.append((path, split, options))
        return [{"prompt": "a"}]

    module = types.SimpleNamespace(
        load_dataset=load_dataset, exceptions=types.SimpleNamespace(DatasetsError=DatasetsError)
    )
    monkeypatch.setitem(sys.modules, "datasets", module)
    return asked


def test_hub_splits(hub):
    assert read("hub:openai/gsm8k", options={"name": "main"}) == [{"prompt": "a"}]
    read("hub:openai/gsm8k", split="eval")
    read("hub:openai/gsm8k:train[:500]", split="eval")
    assert hub == [
        ("openai/gsm8k", "train", {"name": "main"}),
        ("openai/gsm8k", "test", {}),
        ("openai/gsm8k", "train[:500]", {}),
    ]


def test_hub_that_cannot_be_reached(hub):
    with pytest.raises(OncurveError, match=r"hub:no/where: the split 'train' cannot be loaded: Couldn't reach"):
        read("hub:no/where")
    with pytest.raises(OncurveError, match=r"hub:a/b:test"):
        read("hub:a/b", options={"split": "test"})


@pytest.fixture(scope="module")
def gym():
    return pytest.importorskip("reasoning_gym")


ONE_DIGIT = {"min_terms": 2, "max_terms": 2, "min_digits": 1, "max_digits": 1}


def test_reasoning_gym_rows(gym, capsys):
    before = random.getstate()
    rows = read("reasoning_gym:chain_sum", size=3, seed=0, options=ONE_DIGIT)
    assert random.getstate() == before
    assert capsys.readouterr().out == ""
    assert [sorted(row) for row in rows] == [["answer", "metadata", "prompt", "reasoning_gym"]] * 3
    assert rows[0]["reasoning_gym"] == {"name": "chain_sum", "options": ONE_DIGIT}
    assert rows[0]["prompt"].startswith("State the final answer to the following arithmetic problem: ")
    assert json.loads(rows[0]["answer"]) == eval(rows[0]["metadata"]["expression"])
    assert rows == read("reasoning_gym:chain_sum", size=3, seed=0, options=ONE_DIGIT)


def test_neighbouring_seeds_and_splits_share_no_question(gym):
    """reasoning-gym makes question i of seed s from s + i."""
    options = {"min_terms": 6, "max_terms": 6, "min_digits": 6, "max_digits": 6}
    sets = [
        {row["prompt"] for row in read("reasoning_gym:chain_sum", size=50, seed=seed, options=options, split=split)}
        for seed in (0, 1, 2)
        for split in ("train", "eval")
    ]
    assert len(set.union(*sets)) == 300


@pytest.mark.parametrize(
    ("name", "options", "message"),
    [
        ("chain_sums", {}, "no data set 'chain_sums'; did you mean chain_sum"),
        ("chain_sum", {"min_term": 2}, r"data\.options\.min_term: .* it has min_terms, max_terms"),
        ("chain_sum", {"min_terms": 5, "max_terms": 2}, "max_terms must be >= min_terms"),
        ("chain_sum", {"min_terms": "2"}, "refuses"),
        ("chain_sum", {"seed": 2}, r"data\.options\.seed is set by run\.seed"),
    ],
)
def test_bad_reasoning_gym_requests(gym, name, options, message):
    with pytest.raises(OncurveError, match=message):
        read(f"reasoning_gym:{name}", options=options)


def test_questions_without_an_answer_are_left_out_and_counted(gym, monkeypatch, caplog):
    items = [{"question": f"q{i}", "answer": None if i else "a", "metadata": {}} for i in range(3)]
    monkeypatch.setattr(gym, "create_dataset", lambda *_, **__: items)
    assert [row["prompt"] for row in read("reasoning_gym:chain_sum", size=3)] == ["q0"]
    assert "2 of 3 questions have no answer" in caplog.text
    items[0]["answer"] = None
    with pytest.raises(OncurveError, match="gives no reference answers"):
        read("reasoning_gym:chain_sum", size=3)
