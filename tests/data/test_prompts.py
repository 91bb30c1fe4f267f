import pytest

from oncurve.config import Data
from oncurve.data.prompts import build_prompts, encode_prompt
from oncurve.types import OncurveError
from tiny import TEMPLATE, TEMPLATE_WITH_BOS, tiny_tokenizer

QUESTION = {"role": "user", "content": "two plus two"}


def build(rows, tokenizer, context=64, max_new_tokens=8, **data):
    return build_prompts(rows, tokenizer, Data(train="x.jsonl", **data), context=context, max_new_tokens=max_new_tokens)


@pytest.mark.parametrize("adds_bos", [True, False])
@pytest.mark.parametrize("template", [TEMPLATE, TEMPLATE_WITH_BOS])
def test_chat_has_one_bos_if_template_or_tokenizer_writes_it(adds_bos, template):
    tokenizer = tiny_tokenizer(adds_bos=adds_bos, template=template)
    _, ids = encode_prompt(tokenizer, [QUESTION])
    body = [3, 6, 7, 6, 5]
    assert ids == (body if template == TEMPLATE and not adds_bos else [1, *body])


@pytest.mark.parametrize(
    ("adds_bos", "text", "expected"),
    [
        (True, "two plus two", [1, 6, 7, 6]),
        (False, "two plus two", [6, 7, 6]),
        (True, "<s> two", [1, 6]),
        (False, "<s> <s> two", [1, 6]),
    ],
)
def test_plain_text_has_at_most_one_bos(adds_bos, text, expected):
    assert encode_prompt(tiny_tokenizer(adds_bos=adds_bos), text) == (text, expected)


def test_tokenizer_that_promises_bos_by_flag_alone_gets_it():
    tokenizer = tiny_tokenizer()
    tokenizer.add_bos_token = True
    assert encode_prompt(tokenizer, "two")[1] == [1, 6]


def test_tokenizer_without_bos_gets_none():
    tokenizer = tiny_tokenizer(template=TEMPLATE, bos_token=None)
    assert encode_prompt(tokenizer, "two")[1] == [6]
    assert encode_prompt(tokenizer, [QUESTION])[1] == [3, 6, 7, 6, 5]


def test_eos_that_the_tokenizer_adds_is_taken_off_and_one_that_was_written_stays():
    assert encode_prompt(tiny_tokenizer(adds_bos=True, adds_eos=True), "two")[1] == [1, 6]
    assert encode_prompt(tiny_tokenizer(adds_eos=True), "two </s>")[1] == [6, 2]
    assert encode_prompt(tiny_tokenizer(), "two </s>")[1] == [6, 2]


def test_text_stays_plain_unless_chat_or_system_prompt():
    tokenizer = tiny_tokenizer(template=TEMPLATE)
    assert encode_prompt(tokenizer, "two")[0] == "two"
    assert encode_prompt(tokenizer, "two", chat=True)[0] == "<user> two <bot>"
    assert encode_prompt(tokenizer, "two", "hello")[0] == "<sys> hello <user> two <bot>"


def test_suffix_goes_after_the_last_message_of_the_user():
    tokenizer = tiny_tokenizer(template=TEMPLATE)
    turns = [QUESTION, {"role": "assistant", "content": "four"}, {"role": "user", "content": "hello"}]
    text, _ = encode_prompt(tokenizer, turns, suffix=" please")
    assert text == "<user> two plus two <bot> four <user> hello please <bot>"
    assert turns[2]["content"] == "hello"
    assert encode_prompt(tokenizer, "two", suffix=" please")[0] == "two please"


def test_messages_keep_their_own_system_message():
    own = [{"role": "system", "content": "please"}, QUESTION]
    text, _ = encode_prompt(tiny_tokenizer(template=TEMPLATE), own, "hello")
    assert text == "<sys> please <user> two plus two <bot>"


def test_last_turn_of_the_assistant_is_left_open():
    begun = [QUESTION, {"role": "assistant", "content": "two plus two is"}]
    text, ids = encode_prompt(tiny_tokenizer(template=TEMPLATE), begun)
    assert text == "<user> two plus two <bot> two plus two is"
    assert ids == [3, 6, 7, 6, 5, 6, 7, 6, 8]


def test_chat_without_template_says_what_to_do():
    with pytest.raises(OncurveError, match=r"row 0 .*no chat template; set model\.chat_template"):
        build([{"prompt": [QUESTION]}], tiny_tokenizer())


def test_refusal_of_the_template_is_passed_on():
    tokenizer = tiny_tokenizer(template="{{ raise_exception('no system role here') }}")
    with pytest.raises(OncurveError, match="refuses the messages: no system role here"):
        encode_prompt(tokenizer, "two", "hello")


def test_prompts_keep_row_number_raw_text_and_other_columns():
    rows = [{"prompt": "two", "answer": 2}, {"prompt": [QUESTION], "level": "easy"}]
    made = build(rows, tiny_tokenizer(template=TEMPLATE), suffix=" please")
    assert made.dropped == 0
    plain, chat = made.prompts
    assert (plain.id, plain.raw, plain.text, plain.token_ids) == (0, "two", "two please", (6, 10))
    assert plain.columns == {"answer": 2, "level": None}
    assert (chat.id, chat.raw) == (1, (QUESTION,))
    assert chat.columns == {"answer": None, "level": "easy"}


def test_prompt_column_by_another_name():
    prompt = build([{"question": "two", "answer": "2"}], tiny_tokenizer(), prompt_column="question").prompts[0]
    assert (prompt.raw, prompt.columns) == ("two", {"answer": "2"})


def test_messages_column_gives_what_comes_before_the_last_answer():
    row = {"messages": [QUESTION, {"role": "assistant", "content": "four"}], "answer": "4"}
    prompt = build([row], tiny_tokenizer(template=TEMPLATE)).prompts[0]
    assert (prompt.raw, prompt.text, prompt.columns) == ((QUESTION,), "<user> two plus two <bot>", {"answer": "4"})


def test_over_long_is_an_error_that_names_row_and_lengths():
    rows = [{"prompt": "two"}, {"prompt": "two plus two is four"}]
    with pytest.raises(OncurveError, match=r"row 1 .*5 tokens; at most 4 fit \(.*context of 12 less .* = 8\)"):
        build(rows, tiny_tokenizer(), context=12)
    with pytest.raises(OncurveError, match=r"at most 3 fit \(data\.max_prompt_tokens\)"):
        build(rows, tiny_tokenizer(), max_prompt_tokens=3)


def test_over_long_is_dropped_and_counted_and_ids_stay():
    rows = [{"prompt": "two plus two is four"}, {"prompt": "two plus two is"}]
    made = build(rows, tiny_tokenizer(), context=12, over_long="drop")
    assert ([prompt.id for prompt in made.prompts], made.dropped) == ([1], 1)


def test_all_dropped_and_no_room_are_errors():
    with pytest.raises(OncurveError, match="no prompt is left: all 1 are longer than 1 tokens"):
        build([{"prompt": "two two"}], tiny_tokenizer(), max_prompt_tokens=1, over_long="drop")
    with pytest.raises(OncurveError, match="leaves no room for a prompt in the model's context of 8"):
        build([{"prompt": "two"}], tiny_tokenizer(), context=8)


def test_no_context_is_no_limit():
    assert len(build([{"prompt": "two " * 500}], tiny_tokenizer(), context=None).prompts[0].token_ids) == 500


@pytest.mark.parametrize(
    ("row", "message"),
    [
        ({"question": "two", "answer": 1}, r"no column 'prompt', only: question, answer. Set data.prompt_column"),
        ({"prompt": "  \n"}, "row 1 .*prompt is empty"),
        ({"prompt": None}, "prompt is None; it must be text or a list of messages"),
        ({"prompt": 7}, "prompt is 7; it must be text"),
        ({"prompt": ["two"]}, "must be text or a list of messages"),
        ({"prompt": []}, "an empty list of messages"),
        ({"prompt": [{"role": "user"}]}, "a message whose content is None"),
        ({"prompt": [{"role": "user", "content": " "}]}, "only empty messages"),
        ({"messages": [{"role": "assistant", "content": "four"}]}, "nothing before the assistant's turn"),
    ],
)
def test_bad_rows_are_named(row, message):
    with pytest.raises(OncurveError, match=message):
        build([{"prompt": "two"}, row], tiny_tokenizer(template=TEMPLATE))


@pytest.mark.parametrize(
    "name", ["prompts", "completions", "completion_ids", "trainer_state", "log_extra", "log_metric"]
)
def test_columns_that_would_hide_an_argument_of_a_reward_are_refused(name):
    with pytest.raises(OncurveError, match=f"a column '{name}'.*rename it"):
        build([{"prompt": "two", name: 1}], tiny_tokenizer())
