from oncurve.rewards import completion_text, extract_answer
from oncurve.rewards.extract import boxes


def test_last_balanced_box():
    assert extract_answer(r"So \boxed{4}. Hmm, let me redo this carefully. So \boxed{5}.") == "5"
    assert extract_answer(r"\boxed {5}") == "5"
    assert extract_answer(r"\boxed{\frac{1}{2^{3}}}") == r"\frac{1}{2^{3}}"
    assert extract_answer(r"\boxed{\{1, 2\}}") == r"\{1, 2\}"
    assert extract_answer(r"\boxed{\boxed{5}}") == "5"
    assert extract_answer(r"\\boxed{5}") == "5"  # escaped twice
    assert extract_answer("\\boxed{a\nb}") == "a\nb"


def test_what_is_no_box():
    assert extract_answer(r"\fbox{5}") is None
    assert extract_answer(r"\boxed 5") is None
    assert extract_answer(r"\boxedly{5}") is None
    assert extract_answer(r"\boxed{5") is None
    assert extract_answer(r"\boxed{\{5}") == r"\{5"
    assert extract_answer("the answer is 5") is None
    assert extract_answer("") is None


def test_box_that_is_never_closed_does_not_count():
    assert extract_answer(r"\boxed{4}, no: \boxed{5") == "4"
    assert extract_answer(r"\boxed{\frac{1}{2}, no: \boxed{3}") == "3"
    assert extract_answer(r"} \boxed{3} }") == "3"


def test_long_box_is_read_whole():
    answer = "x" * 159
    assert extract_answer(rf"So \boxed{{{answer}}}.") == answer


def test_other_forms_and_their_order():
    assert extract_answer("#### 7 #### 42").strip() == "42"
    assert extract_answer("#### 42\nand more") == " 42"
    assert extract_answer("####42") == "42"
    assert extract_answer("<answer>1</answer> <answer>2</answer>") == "2"
    assert extract_answer("<answer>5") is None
    assert extract_answer("5</answer>") is None
    assert extract_answer("2*234 = 437 + 468\nFinal Answer: **73**") == " **73**"
    assert extract_answer("**Final answer**: 73") == " 73"
    assert extract_answer("#### 2\n<answer>3</answer> Final Answer: 4 \\boxed{1}") == "1"
    assert extract_answer("Final Answer: 4 <answer>3</answer>\n#### 2") == " 2"
    assert extract_answer("Final Answer: 4 <answer>3</answer>") == "3"
    # The first form present decides, even if it holds nothing.
    assert extract_answer("\\boxed{} #### 2") == ""


def test_only_the_text_after_thinking_counts():
    assert extract_answer(r"<think>\boxed{4}</think> It is \boxed{5}.") == "5"
    assert extract_answer(r"<think>\boxed{4}</think> It is 5.") is None
    assert extract_answer(r"<think>\boxed{4}</think>") is None
    assert extract_answer(r"<think>\boxed{4}") == "4"
    assert extract_answer(r"a</think>\boxed{4}</think>\boxed{5}") == "5"


def test_nested_boxes_are_positions_in_order_of_opening():
    text = r"\boxed{a\boxed{b} \boxed{c"
    assert [(text[start:end] if end else None) for start, end in boxes(text)] == [None, "b", None]
    text = r"\boxed{a\boxed{b}}"
    assert [text[start:end] for start, end in boxes(text)] == [r"a\boxed{b}", "b"]


def test_hostile_lengths():
    assert extract_answer(r"\boxed{7}" + r"\boxed{" * 5000) == "7"
    assert extract_answer(r"\boxed{" * 25_000 + "7" + "}" * 25_000) == "7"
    assert extract_answer(r"\boxed" + "{" * 200_000) is None
    assert extract_answer(r"\boxed{7}" + "}" * 200_000) == "7"
    assert extract_answer("\\" * 200_001 + "boxed{7}") == "7"
    assert extract_answer(r"\boxed" + " " * 200_000) is None
    assert extract_answer("<answer>" * 25_000) is None
    assert extract_answer("#" * 200_000 + " 7") == " 7"
    assert extract_answer("final answer" + "*" * 200_000) is None
    assert extract_answer("<think>" + "</think> <answer>" * 20_000) is None


def test_completion_text():
    assert completion_text("hi") == "hi"
    assert completion_text([{"role": "assistant", "content": "hi"}]) == "hi"
    turns = [
        {"role": "assistant", "content": "first"},
        {"role": "tool", "content": "42"},
        {"role": "assistant", "content": "last"},
        {"role": "tool", "content": "43"},
    ]
    assert completion_text(turns) == "last"
    assert (
        completion_text([{"role": "assistant", "content": [{"type": "text", "text": "hi"}, {"type": "image"}]}]) == "hi"
    )
    assert completion_text([{"role": "assistant", "content": None}]) == ""
    assert completion_text([{"role": "user", "content": "hi"}]) == ""
    assert completion_text([]) == ""
