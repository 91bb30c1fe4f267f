import pytest

from oncurve.data.collate import collate, microbatches


def test_padded_on_the_right_and_masked_by_length():
    """Padding with EOS (2): the completion that ends without EOS is trained on whole, the pads never are."""
    batch = collate([((1, 5), (6, 7, 2)), ((1,), (7,)), ((1, 5), (6, 7))], pad_id=2)
    assert batch.tokens.tolist() == [[1, 5, 6, 7, 2], [1, 7, 2, 2, 2], [1, 5, 6, 7, 2]]
    assert batch.lengths.tolist() == [5, 2, 4]
    assert batch.completion_mask.tolist() == [
        [False, False, True, True, True],
        [False, True, False, False, False],
        [False, False, True, True, False],
    ]
    assert str(batch.tokens.dtype) == str(batch.lengths.dtype) == "torch.int64"


def test_only_some_tokens_of_a_completion():
    batch = collate([((1,), (5, 6, 7))], pad_id=0, completion_masks=[[False, True, True]])
    assert batch.completion_mask.tolist() == [[False, False, True, True]]


def test_rows_that_cannot_be_trained_on():
    with pytest.raises(ValueError, match="row 1 has an empty completion"):
        collate([((1,), (2,)), ((1,), ())], pad_id=0)
    with pytest.raises(ValueError, match="row 0 has an empty prompt"):
        collate([((), (2,))], pad_id=0)
    with pytest.raises(ValueError, match="row 0 has 1 completion tokens and a mask of 2"):
        collate([((1,), (2,))], pad_id=0, completion_masks=[[True, True]])
    with pytest.raises(ValueError, match="at least one row"):
        collate([], pad_id=0)


def test_microbatches_stay_within_the_budget():
    assert microbatches([3, 9, 4, 4, 2, 3], token_budget=8) == [[1], [2, 3], [0, 5], [4]]
    assert microbatches([3, 9, 4, 4, 2, 3], token_budget=1000) == [[1, 2, 3, 0, 5, 4]]
    assert microbatches([5, 5], token_budget=1) == [[0], [1]]
    assert microbatches([], token_budget=8) == []


def test_every_row_is_in_exactly_one_microbatch():
    lengths = [(7 * index) % 31 + 1 for index in range(200)]
    groups = microbatches(lengths, 64)
    assert sorted(row for group in groups for row in group) == list(range(200))
    assert all(len(group) * max(lengths[row] for row in group) <= 64 for group in groups)
