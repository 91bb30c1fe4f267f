import pytest
import torch

from oncurve.functional import aggregate, denominator, nll, place, predictor_mask, selected_logprobs


def test_nll_is_minus_the_log_prob() -> None:
    logprobs = torch.tensor([[-0.5, -2.0]], requires_grad=True)
    loss = nll(logprobs)
    assert loss.tolist() == [[0.5, 2.0]]
    loss.sum().backward()
    assert logprobs.grad.tolist() == [[-1.0, -1.0]]


def test_the_token_mean_is_cross_entropy_on_the_completion_alone() -> None:
    generator = torch.Generator().manual_seed(0)
    tokens = torch.randint(0, 11, (3, 7), generator=generator)
    logits = torch.randn(3, 7, 11, generator=generator, dtype=torch.float64)
    mask = torch.tensor([[0, 0, 1, 1, 1, 0, 0], [0, 1, 1, 1, 1, 1, 1], [0, 0, 0, 0, 1, 0, 0]]).bool()
    selected, _ = selected_logprobs(logits[predictor_mask(mask)], tokens[mask])
    loss = aggregate(nll(place(selected, mask)), mask, "token_mean", denominator(mask, "token_mean"))
    labels = tokens.masked_fill(~mask, -100)
    expected = torch.nn.functional.cross_entropy(logits[:, :-1].reshape(-1, 11), labels[:, 1:].reshape(-1))
    assert loss.item() == pytest.approx(expected.item(), abs=1e-14)


def test_bad_input_is_named() -> None:
    with pytest.raises(TypeError, match=r"logprobs must be float32 or float64, got torch\.bfloat16"):
        nll(torch.zeros(1, 1, dtype=torch.bfloat16))
