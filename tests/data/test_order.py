import pytest

from oncurve.data.order import leave_out, order, prompts_for_iteration, question, split_off
from oncurve.types import OncurveError, Prompt


def prompts(*texts):
    return [Prompt(id, text, text, (id,)) for id, text in enumerate(texts)]


def ids(some):
    return [prompt.id for prompt in some]


def test_order_is_a_permutation_fixed_by_seed_and_epoch():
    assert order(8, seed=0, epoch=0) == [6, 4, 3, 1, 7, 0, 2, 5]
    assert sorted(order(8, seed=0, epoch=1)) == list(range(8))
    assert len({tuple(order(8, seed, epoch)) for seed in range(3) for epoch in range(3)}) == 9
    assert order(0, 0, 0) == []


def test_iterations_cut_the_permutation_of_their_epoch():
    first, second = order(8, 3, 0), order(8, 3, 1)
    walked = [prompts_for_iteration(8, 4, 3, iteration) for iteration in range(4)]
    assert walked == [first[:4], first[4:], second[:4], second[4:]]


def test_no_prompt_twice_in_an_iteration_and_all_equally_often():
    times = dict.fromkeys(range(7), 0)
    for iteration in range(700):
        chosen = prompts_for_iteration(7, 3, 0, iteration)
        assert len(set(chosen)) == 3
        for index in chosen:
            times[index] += 1
    assert all(260 <= n <= 340 for n in times.values())  # 300 on average


def test_more_prompts_in_an_iteration_than_there_are():
    assert sorted(prompts_for_iteration(4, 4, 0, 9)) == [0, 1, 2, 3]
    with pytest.raises(OncurveError, match="prompts_per_iteration is 5, but there are only 4 training prompts"):
        prompts_for_iteration(4, 5, 0, 0)


def test_split_is_a_partition_fixed_by_the_seed():
    some = prompts(*"abcdefghij")
    train, held_out = split_off(some, 3, seed=0)
    assert (ids(train), ids(held_out)) == ([0, 1, 2, 3, 5, 7, 9], [4, 6, 8])
    assert split_off(some, 3, seed=0) == (train, held_out)
    assert split_off(some, 3, seed=1)[1] != held_out
    assert split_off(some, 0, seed=0) == (some, [])


def test_a_held_out_question_is_nowhere_in_training():
    some = prompts(*(letter + space for space in ("", " ", "\n ") for letter in "abcd"))
    train, held_out = split_off(some, 2, seed=0)
    asked = {prompt.text for prompt in held_out}
    assert len(asked) == 2
    assert len(train) == 6
    assert not asked & {prompt.text.strip() for prompt in train}


def test_nothing_left_to_train_on():
    with pytest.raises(OncurveError, match=r"data\.eval_size is 2, but the training data has only 2 different prompts"):
        split_off(prompts("a", "a", "b", "b"), 2, seed=0)


def test_questions_in_messages_count_by_role_and_text():
    chat = ({"role": "user", "content": "two  plus\ntwo"},)
    assert question(chat) == question([{"role": "user", "content": "two plus two", "name": "x"}])
    assert question(chat) != question([{"role": "system", "content": "two plus two"}])
    assert question(chat) != question("two plus two")
    assert ids(leave_out([Prompt(0, chat, "", ()), Prompt(1, "x", "", ())], [Prompt(7, chat, "", ())])) == [1]
