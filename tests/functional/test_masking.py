import pytest
import torch

from oncurve.functional import completion_lengths, completion_mask, truncated

EOS = 2


def mask_of(ids: torch.Tensor, eos: int | list[int], lengths: torch.Tensor | None = None) -> list[list[int]]:
    found = completion_lengths(ids, eos, lengths)
    return completion_mask(torch.zeros_like(found), found, ids.shape[1]).int().tolist()


def test_the_first_end_is_included_and_nothing_after_it() -> None:
    ids = torch.tensor([[11, 12, 2, 0, 0], [11, 12, 13, 14, 15]])
    assert mask_of(ids, EOS) == [[1, 1, 1, 0, 0], [1, 1, 1, 1, 1]]
    assert truncated(ids, EOS).tolist() == [False, True]


def test_pad_may_equal_the_end() -> None:
    ids = torch.tensor([[5, 6, 2, 2, 2], [2, 2, 2, 2, 2]])
    assert mask_of(ids, EOS) == [[1, 1, 1, 0, 0], [1, 0, 0, 0, 0]]
    assert truncated(ids, EOS).tolist() == [False, False]


def test_a_truncated_row_ends_by_its_length_not_by_its_pads() -> None:
    lengths = torch.tensor([3])
    for pad in (0, EOS):
        ids = torch.tensor([[5, 6, 7, pad, pad]])
        assert mask_of(ids, EOS, lengths) == [[1, 1, 1, 0, 0]]
        assert truncated(ids, EOS, lengths).tolist() == [True]


def test_tokens_sampled_after_the_end_do_not_count() -> None:
    ids = torch.tensor([[5, 2, 7, 2, 9]])
    assert completion_lengths(ids, EOS).tolist() == [2]
    assert completion_lengths(ids, EOS, torch.tensor([4])).tolist() == [2]


def test_the_end_may_be_the_last_token_allowed() -> None:
    ids = torch.tensor([[5, 6, 2]])
    assert completion_lengths(ids, EOS).tolist() == [3]
    assert truncated(ids, EOS).tolist() == [False]


def test_any_of_several_ends() -> None:
    ids = torch.tensor([[5, 6, 2, 3], [5, 3, 2, 6], [5, 6, 7, 8]])
    assert completion_lengths(ids, [2, 3]).tolist() == [3, 2, 4]
    assert truncated(ids, (2, 3)).tolist() == [False, False, True]


def test_nothing_sampled() -> None:
    assert completion_lengths(torch.zeros(2, 0, dtype=torch.int64), EOS).tolist() == [0, 0]
    assert completion_lengths(torch.tensor([[2, 2]]), EOS, torch.tensor([0])).tolist() == [0]
    assert truncated(torch.tensor([[2, 2]]), EOS, torch.tensor([0])).tolist() == [True]


def test_prompt_and_completion_in_one_row() -> None:
    mask = completion_mask(torch.tensor([2, 1, 3, 4]), torch.tensor([2, 1, 0, 1]), width=5)
    assert mask.dtype == torch.bool
    assert mask.int().tolist() == [[0, 0, 1, 1, 0], [0, 1, 0, 0, 0], [0, 0, 0, 0, 0], [0, 0, 0, 0, 1]]


def test_bad_input_is_named() -> None:
    ids = torch.tensor([[5, 6, 2]])
    with pytest.raises(ValueError, match=r"lengths\[0\] is 4; it must be between 0 and the width of ids, 3"):
        completion_lengths(ids, EOS, torch.tensor([4]))
    with pytest.raises(ValueError, match=r"lengths must have shape \[B\] with the B of ids \[1, 3\], got \[2\]"):
        truncated(ids, EOS, torch.tensor([1, 1]))
    with pytest.raises(ValueError, match=r"ids must have shape \[B, T\], got \[3\]"):
        completion_lengths(ids[0], EOS)
    with pytest.raises(TypeError, match=r"ids must be int64, got torch\.int32"):
        completion_lengths(ids.int(), EOS)
    with pytest.raises(ValueError, match="row 1 has a prompt of 3 and a completion of 3 tokens"):
        completion_mask(torch.tensor([1, 3]), torch.tensor([1, 3]), width=5)
    with pytest.raises(ValueError, match="row 0 has a prompt of 1 and a completion of -1 tokens"):
        completion_mask(torch.tensor([1]), torch.tensor([-1]), width=5)
    with pytest.raises(ValueError, match=r"must both have shape \[B\]"):
        completion_mask(torch.tensor([1, 2]), torch.tensor([1]), width=5)
    with pytest.raises(TypeError, match=r"lengths must be int64, got torch\.float32"):
        completion_mask(torch.tensor([1]), torch.tensor([1.0]), width=5)
