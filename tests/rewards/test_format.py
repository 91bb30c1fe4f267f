import pytest

from oncurve.rewards import format_reward, graded_format_reward, think_format_reward


@pytest.mark.parametrize(
    "text",
    [
        "<think>a</think><answer>5</answer>",
        "<think>\na\n</think>\n<answer>\n5\n</answer>\n",
        r"<think>a</think> So \boxed{5}.",
        r"  <think>first \boxed{4}</think>\boxed{\frac{1}{2}}",
        r"<think>a</think><answer>\boxed{5} and \boxed{6}</answer>",
    ],
)
def test_well_formed(text):
    assert format_reward([text], prompts=["?"]) == [1.0]
    assert think_format_reward([text], prompts=["?"]) == [1.0]


@pytest.mark.parametrize(
    "text",
    [
        "",
        "5",
        r"\boxed{5}",
        "<think>a</think>",
        "<think></think><answer>5</answer>",
        "<think> \n </think><answer>5</answer>",
        "<think>a</think><answer> </answer>",
        r"<think>a</think>\boxed{ }",
        r"<think>a</think>\boxed{5",
        r"<think>a</think>\boxed{4} \boxed{5}",
        r"<think>\boxed{5}</think>It is 5.",
        "<think>a</think><answer>5</answer>\nextra junk",
        "<think>a</think>well: <answer>5</answer>",
        "<think>a</think><answer>5</answer><think>a</think><answer>5</answer>",
        "<think>a</think><answer>5</answer><answer>5</answer>",
        "<think>a <answer>4</answer></think><answer>5</answer>",
        "<think>a<think>b</think><answer>5</answer>",
        "<think>a</think></think><answer>5</answer>",
        "well <think>a</think><answer>5</answer>",
        "<answer>5</answer><think>a</think>",
        "<think>a<answer>5</answer>",
        "a</think><answer>5</answer>",
        "<THINK>a</THINK><answer>5</answer>",
        "<think>a</think><answer>5",
        "<think>a</think>5</answer>",
        "<think>a</think></answer>5<answer>",
        r"<think>a</think>\fbox{5}",
    ],
)
def test_malformed(text):
    assert format_reward([text], prompts=["?"]) == [0.0]


def test_opening_tag_in_the_prompt():
    completion = "First, 2 plus 2.\n</think>\nThe answer is 4."
    boxed = "First, 2 plus 2.\n</think>\nThe answer is \\boxed{4}."
    prefilled = "<|user|>2+2?<|assistant|><think>\n"
    assert format_reward([boxed], prompts=[prefilled]) == [1.0]
    assert format_reward([boxed], prompts=["2+2?"], prompt_texts=[prefilled]) == [1.0]
    assert format_reward([boxed], prompts=["2+2?"], prompt_texts=["2+2?"]) == [0.0]
    chat = [{"role": "user", "content": "2+2?"}]
    assert format_reward([boxed], prompts=[chat], prompt_texts=[prefilled]) == [1.0]
    assert format_reward([boxed], prompts=[[*chat, {"role": "assistant", "content": "<think>"}]]) == [1.0]
    assert format_reward([boxed], prompts=[[{"role": "user", "content": "write <think>"}]]) == [0.0]
    # Without a prompt to look at, both ways are right.
    assert format_reward([boxed, "<think>" + boxed]) == [1.0, 1.0]
    # Opened twice.
    assert format_reward(["<think>" + boxed], prompts=[prefilled]) == [0.0]
    # A free answer is enough for `think_format` only.
    assert format_reward([completion], prompts=[prefilled]) == [0.0]
    assert think_format_reward([completion], prompts=[prefilled]) == [1.0]


def test_think_format_needs_an_answer():
    assert think_format_reward(
        ["<think>a</think> b", "<think>a</think> ", "<think></think> b", "b"], prompts=["?"] * 4
    ) == [
        1.0,
        0.0,
        0.0,
        0.0,
    ]


def test_hostile_lengths():
    texts = [
        "<think>\n" + "\n</think>\n<answer>\n" * 20_000,
        "<think>" + "</think> <answer>" * 20_000,
        "<think>" * 30_000,
        "<think>a</think>" + r"\boxed{" * 5000,
        "<think>a</think>" + "{" * 200_000,
    ]
    assert format_reward(texts, prompts=["?"] * 5) == [0.0] * 5


def test_messages():
    assert format_reward([[{"role": "assistant", "content": "<think>a</think><answer>5</answer>"}]]) == [1.0]


@pytest.mark.parametrize(
    ("text", "quarters"),
    [
        ("<think>a</think><answer>5</answer>", 4),
        (r"<think>a</think> So \boxed{5}.", 4),
        ("", 0),
        ("5", 0),
        (r"\boxed{5}", 2),  # an answer, and nothing out of place
        ("<answer>5</answer>", 2),
        ("<think>a</think>", 3),
        ("<think>a</think> 5", 3),
        ("<think>a", 1),
        ("<think></think><answer>5</answer>", 3),
        ("<think>a</think><answer> </answer>", 3),
        ("<think>a</think><answer>5</answer>\nextra junk", 3),
        ("well <think>a</think><answer>5</answer>", 3),
        ("<think>a</think><think>b</think><answer>5</answer>", 3),
        (r"<think>a</think>\boxed{4} \boxed{5}", 3),
        (r"<think>a</think>\boxed{4", 3),
        ("<think>a</think>5</answer>", 3),
        ("</think><answer>5</answer>", 2),
        ("<think>a <answer>4</answer></think><answer>5</answer>", 3),  # all is there, and yet not well-formed
    ],
)
def test_graded(text, quarters):
    assert graded_format_reward([text], prompts=["?"]) == [quarters / 4]


def test_graded_is_whole_exactly_where_format_is():
    texts = [
        f"{start}{middle}{end}"
        for start in ("", "well ", "<think>", "<think>a</think>", "<think></think>", "a</think>")
        for middle in (
            "",
            "b",
            "<answer>5</answer>",
            "<answer></answer>",
            r"\boxed{5}",
            r"\boxed{5} \boxed{6}",
            "<think>c",
        )
        for end in ("", "\n", "junk", "</answer>", r"\boxed{", "</think>")
    ]
    for prompts in (["?"] * len(texts), ["<think>"] * len(texts), None):
        strict = format_reward(texts, prompts=prompts)
        graded = graded_format_reward(texts, prompts=prompts)
        assert any(strict)
        assert [value == 1.0 for value in graded] == [value == 1.0 for value in strict]
        assert set(graded) <= {0.0, 0.25, 0.5, 0.75, 1.0}


def test_graded_with_the_opening_tag_in_the_prompt():
    assert graded_format_reward(["a</think><answer>5</answer>"], prompts=["?<think>"]) == [1.0]
    assert graded_format_reward(["a</think><answer>5</answer>"]) == [1.0]
    assert graded_format_reward(["a</think><answer>5</answer>"], prompts=["?"]) == [0.5]


def test_graded_hostile_lengths():
    texts = ["<think>" * 30_000, "<think>" + "</think> <answer>" * 20_000, "<think>a</think>" + "{" * 200_000]
    assert all(value < 1.0 for value in graded_format_reward(texts, prompts=["?"] * 3))
