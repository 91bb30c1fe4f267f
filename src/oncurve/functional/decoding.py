"""Drawing tokens so that a draw depends on what is drawn and on nothing else.

Every token costs one uniform number, computed from (seed, iteration, prompt, sample, position) by a counter-based
generator. No generator state is carried, so the same completion comes out whatever the batch size, the order of the
rows or the number of machines. The arithmetic is splitmix64's, in int64, where torch wraps around as unsigned numbers
do.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor

from oncurve.functional._checks import check_any_float, check_axes, check_float, check_ids


def row_keys(seed: int, iteration: int, prompt_ids: Tensor, samples: Tensor) -> Tensor:
    """One random stream for each completion.

        key = h(h(h(h(seed) + iteration) + prompt_id) + sample),   h = first output of splitmix64

    Args:
        seed: any Python int; taken modulo 2^64.
        iteration: the sampling round; any Python int.
        prompt_ids: ``[B]`` int64.
        samples: ``[B]`` int64, the number of the completion in its group.

    Returns:
        ``[B]`` int64, all 64 bits in use (half are negative).

    Source: splitmix64 of Steele, Lea and Flood, "Fast splittable pseudorandom number generators" (OOPSLA 2014); the
    chaining is ours. Two of n completions share a stream with a chance of about n^2 / 2^65.

    >>> row_keys(0, 1, torch.tensor([7, 7]), torch.tensor([0, 1])).tolist()
    [4896474435098536366, -1005486118562677160]
    """
    check_ids("prompt_ids", prompt_ids)
    check_axes("prompt_ids", prompt_ids, "B")
    check_ids("samples", samples)
    if samples.shape != prompt_ids.shape:
        raise ValueError(
            f"samples {list(samples.shape)} and prompt_ids {list(prompt_ids.shape)} must both have shape [B]"
        )
    keys = _splitmix64(torch.full_like(prompt_ids, _signed(seed)))
    for field in (_signed(iteration), prompt_ids, samples):
        keys = _splitmix64(keys + field)
    return keys


def uniforms(keys: Tensor, position: int | Tensor) -> Tensor:
    """The number of each stream at one position.

        u = floor(s / 2^11) / 2^53,   s = output number ``position`` (from 0) of splitmix64 started at the key

    Args:
        keys: ``[B]`` int64, from :func:`row_keys`.
        position: of the token in its completion, from 0; one for all rows, or ``[B]`` int64.

    Returns:
        ``[B]`` float64 in [0, 1), 53 random bits each.

    Source: as :func:`row_keys`. The state of splitmix64 is a counter, seed + n * 0x9E3779B97F4A7C15, so any output can
    be had without those before it.

    >>> uniforms(torch.tensor([1234567]), 0)
    tensor([0.3501], dtype=torch.float64)
    """
    check_ids("keys", keys)
    check_axes("keys", keys, "B")
    if isinstance(position, Tensor):
        check_ids("position", position)
        if position.shape != keys.shape:
            raise ValueError(f"position {list(position.shape)} and keys {list(keys.shape)} must both have shape [B]")
        offset = position * _GAMMA
    else:
        offset = _signed(position * _GAMMA)
    return _shift_right(_splitmix64(keys + offset), 11).double() * 2.0**-53


def filter_logits(
    logits: Tensor, *, top_k: int = 0, top_p: float = 1.0, min_p: float = 0.0, temperature: float = 1.0
) -> Tensor:
    """Take the unlikely tokens out of a distribution. For evaluation: in training it would make the ratio wrong.

    One after the other, each on what the one before has left, renormalised:

        top_k: the k largest logits
        top_p: the smallest set of most likely tokens with a mass of at least top_p
        min_p: tokens with at least min_p times the probability of the likeliest

    Args:
        logits: ``[B, V]``, any floating dtype.
        top_k: 0 keeps every token. Tokens that tie with the k-th are kept.
        top_p: in (0, 1]. Of tokens that tie at the edge the lower ids are kept.
        min_p: in [0, 1].
        temperature: the one that will be sampled with; top_p and min_p look at softmax(logits / temperature).

    Returns:
        ``[B, V]``: the logits as given, with -inf in place of the tokens taken out. At least one is left in each row.

    Source: top-k, Fan et al. (arXiv 1805.04833); top-p, Holtzman et al. (arXiv 1904.09751); min-p, Nguyen et al.
    (arXiv 2407.01082). The order is that of transformers, with the temperature first.

    >>> logits = torch.tensor([[0.5, 0.25, 0.15, 0.1]]).log()
    >>> filter_logits(logits, top_p=0.7).exp()
    tensor([[0.5000, 0.2500, 0.0000, 0.0000]])
    """
    check_any_float("logits", logits)
    check_axes("logits", logits, "BV")
    if top_k < 0:
        raise ValueError(f"top_k must be at least 0 (0 keeps every token), got {top_k}")
    if not 0 < top_p <= 1:
        raise ValueError(f"top_p must be above 0 and at most 1, got {top_p}")
    if not 0 <= min_p <= 1:
        raise ValueError(f"min_p must be between 0 and 1, got {min_p}")
    _check_temperature(temperature)
    if 0 < top_k < logits.shape[1]:
        kth_largest = logits.topk(top_k, dim=-1).values[:, -1:]
        logits = logits.masked_fill(logits < kth_largest, -math.inf)
    if top_p < 1:
        probabilities, order = (logits.float() / temperature).softmax(dim=-1).sort(dim=-1, descending=True, stable=True)
        mass = probabilities.cumsum(dim=-1, dtype=torch.float64)
        # A token goes if those before it have the mass already; nothing comes before the first.
        dropped = torch.zeros_like(order, dtype=torch.bool)
        dropped[:, 1:] = mass[:, :-1] >= top_p
        logits = logits.masked_fill(dropped.scatter(-1, order, dropped), -math.inf)
    if min_p > 0:
        probabilities = (logits.float() / temperature).softmax(dim=-1)
        logits = logits.masked_fill(probabilities < min_p * probabilities.amax(dim=-1, keepdim=True), -math.inf)
    return logits


def inverse_cdf(logits: Tensor, temperature: float, u: Tensor) -> Tensor:
    """Draw one token for each row from one uniform number for each row.

        id[b] = the first v with  sum_{w <= v} p[b, w] > u[b] * sum_w p[b, w],   p = softmax(logits / temperature)

    A token of probability 0 (a logit of -inf) is never drawn, for any u.

    Args:
        logits: ``[B, V]``, any floating dtype.
        temperature: above 0; for greedy decoding use argmax.
        u: ``[B]`` float32 or float64 in [0, 1), from :func:`uniforms`; values outside are taken to the nearest inside.

    Returns:
        ``[B]`` int64 token ids.

    Raises:
        FloatingPointError: a row that is no distribution (nan, +inf, or -inf throughout), named.
        ValueError: a wrong shape, or a temperature that is not above 0.

    Source: inversion (Devroye, "Non-Uniform Random Variate Generation", 1986, section III.2), with the softmax in
    float32 and its running sum in float64. Machines or batch shapes whose logits differ by rounding draw the same
    token, unless u falls within that rounding of an edge between two tokens.

    >>> inverse_cdf(torch.tensor([[0.5, 0.25, 0.25]] * 3).log(), 1.0, torch.tensor([0.49, 0.5, 0.99]))
    tensor([0, 1, 2])
    """
    _check_temperature(temperature)
    return draw(logits.float() / temperature, u)[0]


def draw(logits: Tensor, u: Tensor) -> tuple[Tensor, Tensor]:
    """One token for each row as :func:`inverse_cdf` takes it at temperature 1, and its log-probability, in one go.

    A row of many tokens is summed in blocks of 256: the block in which the running sum passes u is found first, then
    the token in it. Over a vocabulary of 49,152 that takes less than half the time of a running sum over all of it and
    a log-softmax.

    Args:
        logits: ``[B, V]``, any floating dtype, already divided by the temperature.
        u: ``[B]`` float32 or float64 in [0, 1), from :func:`uniforms`; values outside are taken to the nearest inside.

    Returns:
        ``(ids, logprobs)``: int64 ``[B]`` and float32 ``[B]``, in nats.

    Raises:
        FloatingPointError: a row that is no distribution (nan, +inf, or -inf throughout), named.
        ValueError: a wrong shape.

    Source: as :func:`inverse_cdf`. Sums within a block are float32, over blocks and within the chosen one float64.

    >>> ids, logprobs = draw(torch.tensor([[0.5, 0.25, 0.25]] * 3).log(), torch.tensor([0.49, 0.5, 0.99]))
    >>> ids, logprobs.exp()
    (tensor([0, 1, 2]), tensor([0.5000, 0.2500, 0.2500]))
    """
    check_any_float("logits", logits)
    check_axes("logits", logits, "BV")
    check_float("u", u)
    if u.shape != logits.shape[:1]:
        raise ValueError(f"u must have shape [B] with the B of logits {list(logits.shape)}, got {list(u.shape)}")
    logits = logits.float()
    if not len(logits):
        return u.new_zeros(0, dtype=torch.int64), u.new_zeros(0, dtype=torch.float32)
    largest = logits.amax(dim=-1, keepdim=True)
    weights = (logits - largest).exp_()
    chosen, total = _chosen(weights, u.double().unsqueeze(1))
    return chosen.squeeze(1), (logits.gather(1, chosen) - largest - total.log()).squeeze(1).float()


_BLOCK = 256
_FEW = 1024
"""Tokens up to which a single running sum is quicker than sums of blocks."""


def _chosen(weights: Tensor, u: Tensor) -> tuple[Tensor, Tensor]:
    """Of ``weights [B, V]`` that are not normalised: the token at ``u`` and their sum in float64, all ``[B, 1]``."""
    vocabulary = weights.shape[1]
    u = u.clamp(0.0, _BELOW_ONE)
    if vocabulary <= _FEW:
        return _at_share(weights, u)
    whole = vocabulary // _BLOCK * _BLOCK
    sums = weights[:, :whole].reshape(len(weights), -1, _BLOCK).sum(dim=-1)  # [B, blocks]
    if whole < vocabulary:  # the last block is a shorter one
        sums = torch.cat([sums, weights[:, whole:].sum(dim=-1, keepdim=True)], dim=1)
    block, total = _at_share(sums, u)
    # What is left to go within the block, as a share of it; between 0 and 1 again, whatever rounding says.
    mass = sums.gather(1, block).double()
    before = torch.where(torch.arange(sums.shape[1], device=u.device) < block, sums, 0.0)
    share = ((u * total - before.sum(dim=-1, keepdim=True, dtype=torch.float64)) / mass).clamp(0.0, _BELOW_ONE)
    ids = block * _BLOCK + torch.arange(_BLOCK, device=u.device)
    inside = weights.gather(1, ids.clamp(max=vocabulary - 1)).masked_fill_(ids >= vocabulary, 0.0)
    return block * _BLOCK + _at_share(inside, share)[0], total


def _at_share(weights: Tensor, share: Tensor) -> tuple[Tensor, Tensor]:
    """The first place ``[B, 1]`` up to which more than ``share [B, 1]`` of the sum lies, and the sum ``[B, 1]``."""
    cumulative = weights.cumsum(dim=-1, dtype=torch.float64)
    total = cumulative[:, -1:]
    broken = ~(total.isfinite() & (total > 0))
    if bool(broken.any()):
        raise FloatingPointError(
            f"row {int(broken.nonzero()[0, 0])} of logits is no distribution: it holds nan or +inf, or only -inf"
        )
    return torch.searchsorted(cumulative, share * total, right=True), total


_BELOW_ONE = 1.0 - 2.0**-53
"""By a rounding step, so that the last token of positive probability is the last that is ever drawn."""


def _signed(value: int) -> int:
    """The int64 with the same 64 bits as ``value`` modulo 2^64."""
    return (value + 2**63) % 2**64 - 2**63


_GAMMA = _signed(0x9E3779B97F4A7C15)
_MULTIPLIER_1 = _signed(0xBF58476D1CE4E5B9)
_MULTIPLIER_2 = _signed(0x94D049BB133111EB)


def _splitmix64(state: Tensor) -> Tensor:
    """The first output of splitmix64 seeded with ``state``, bit for bit, as int64."""
    z = state + _GAMMA
    z = (z ^ _shift_right(z, 30)) * _MULTIPLIER_1
    z = (z ^ _shift_right(z, 27)) * _MULTIPLIER_2
    return z ^ _shift_right(z, 31)


def _shift_right(bits: Tensor, count: int) -> Tensor:
    """A logical shift: torch's copies the sign into the bits that become free, so they are cleared."""
    return (bits >> count) & ((1 << (64 - count)) - 1)


def _check_temperature(temperature: float) -> None:
    if not (temperature > 0 and math.isfinite(temperature)):
        raise ValueError(f"temperature must be a finite number above 0 (greedy decoding is argmax), got {temperature}")
