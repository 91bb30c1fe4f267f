import math

import pytest
import torch

from oncurve.functional import draw, filter_logits, inverse_cdf, row_keys, uniforms

# splitmix64 started at 1234567: the values every published implementation gives.
PUBLISHED = [
    6457827717110365317,
    3203168211198807973,
    9817491932198370423,
    4593380528125082431,
    16408922859458223821,
]
BITS = 2**64 - 1
LARGEST_U = 1.0 - 2.0**-53


def reference_splitmix64(state: int) -> int:
    z = (state + 0x9E3779B97F4A7C15) & BITS
    z = ((z ^ (z >> 30)) * 0xBF58476D1CE4E5B9) & BITS
    z = ((z ^ (z >> 27)) * 0x94D049BB133111EB) & BITS
    return z ^ (z >> 31)


def reference_key(seed: int, iteration: int, prompt: int, sample: int) -> int:
    key = reference_splitmix64(seed & BITS)
    for field in (iteration, prompt, sample):
        key = reference_splitmix64((key + field) & BITS)
    return key


def chi_squared(counts: torch.Tensor) -> float:
    expected = counts.sum() / counts.numel()
    return ((counts - expected).square() / expected).sum().item()


def test_the_stream_is_splitmix64() -> None:
    keys = torch.tensor([1234567])
    for position, output in enumerate(PUBLISHED):
        assert reference_splitmix64(1234567 + position * 0x9E3779B97F4A7C15) == output
        assert uniforms(keys, position).item() == (output >> 11) / 2**53


@pytest.mark.parametrize("seed", [0, 1, 42, 2**63, 2**64 - 1, 2**64 + 5, -1])
def test_keys_against_plain_python_integers(seed: int) -> None:
    prompts, samples = torch.tensor([0, 1, 999_999, 7]), torch.tensor([0, 5, 63, 2**40])
    keys = row_keys(seed, 3, prompts, samples)
    assert keys.dtype == torch.int64
    for key, prompt, sample in zip(keys.tolist(), prompts.tolist(), samples.tolist(), strict=True):
        assert key & BITS == reference_key(seed, 3, prompt, sample)
        for position in (0, 1, 2047):
            expected = reference_splitmix64((key & BITS) + position * 0x9E3779B97F4A7C15) >> 11
            assert uniforms(torch.tensor([key]), position).item() == expected / 2**53


def test_a_key_and_a_number_never_change() -> None:
    # Recorded runs can only be drawn again if these stay.
    keys = row_keys(0, 1, torch.tensor([7, 7]), torch.tensor([0, 1]))
    assert keys.tolist() == [4896474435098536366, -1005486118562677160]
    assert uniforms(keys, 3).tolist() == [0.9657245786164379, 0.36046270162836336]


def test_a_draw_does_not_depend_on_its_batch() -> None:
    prompts, samples = torch.arange(64) // 8, torch.arange(64) % 8
    keys = row_keys(5, 2, prompts, samples)
    order = torch.randperm(64, generator=torch.Generator().manual_seed(0))
    assert torch.equal(row_keys(5, 2, prompts[order], samples[order]), keys[order])
    alone = torch.cat([row_keys(5, 2, prompts[i : i + 1], samples[i : i + 1]) for i in range(64)])
    assert torch.equal(alone, keys)
    logits = 3 * torch.randn(64, 165, generator=torch.Generator().manual_seed(1))
    together = inverse_cdf(logits, 0.8, uniforms(keys, 9))
    one_by_one = [inverse_cdf(logits[i : i + 1], 0.8, uniforms(keys[i : i + 1], 9)).item() for i in range(64)]
    assert together.tolist() == one_by_one


def test_rows_may_stand_at_different_positions() -> None:
    keys = row_keys(0, 0, torch.arange(4), torch.zeros(4, dtype=torch.int64))
    positions = torch.tensor([0, 3, 100, 1])
    mixed = uniforms(keys, positions).tolist()
    assert mixed == [uniforms(keys, p)[i].item() for i, p in enumerate(positions.tolist())]


def test_every_field_changes_the_stream() -> None:
    one = torch.tensor([1])
    keys = [
        row_keys(*fields[:2], fields[2] * one, fields[3] * one).item()
        for fields in ((0, 0, 0, 0), (1, 0, 0, 0), (0, 1, 0, 0), (0, 0, 1, 0), (0, 0, 0, 1), (-1, 1, 0, 0))
    ]
    assert len(set(keys)) == 6


def test_no_two_of_a_large_run_share_a_stream() -> None:
    prompts, samples = torch.arange(100_000) // 8, torch.arange(100_000) % 8
    keys = torch.cat([row_keys(0, iteration, prompts, samples) for iteration in range(3)])
    assert keys.unique().numel() == 300_000


def test_uniforms_are_uniform() -> None:
    keys = row_keys(0, 0, torch.arange(1024) // 8, torch.arange(1024) % 8)
    u = torch.cat([uniforms(keys, position) for position in range(64)])
    assert u.dtype == torch.float64
    assert u.min().item() >= 0.0
    assert u.max().item() < 1.0
    # 63 degrees of freedom: 1 in 1000 fair generators is above 103.4.
    assert chi_squared(torch.histc(u, 64, 0.0, 1.0)) < 103.4
    assert abs(u.mean().item() - 0.5) < 5 * math.sqrt(1 / 12 / u.numel())


@pytest.mark.parametrize("field", ["seed", "iteration", "prompt", "sample", "position"])
def test_neighbours_are_independent(field: str) -> None:
    index = torch.arange(256)

    def numbers(step: int) -> torch.Tensor:
        at = {name: step if name == field else 0 for name in ("seed", "iteration", "prompt", "sample", "position")}
        keys = row_keys(at["seed"], at["iteration"], index // 8 + at["prompt"], index % 8 + at["sample"])
        return torch.cat([uniforms(keys, position + at["position"]) for position in range(0, 512, 2)])

    pairs = (numbers(0) * 16).long() * 16 + (numbers(1) * 16).long()
    # 255 degrees of freedom: 1 in 1000 fair generators is above 330.5. Neighbouring prompts and samples share most of
    # their rows, which leaves the expectation as it is.
    assert chi_squared(torch.bincount(pairs, minlength=256).double()) < 330.5


def test_inverse_cdf_takes_the_first_token_above_u() -> None:
    logits = torch.tensor([[0.5, 0.25, 0.25]]).log()
    for u, expected in ((0.0, 0), (0.49999, 0), (0.5, 1), (0.74999, 1), (0.75, 2), (LARGEST_U, 2)):
        assert inverse_cdf(logits, 1.0, torch.tensor([u], dtype=torch.float64)).item() == expected


def test_inverse_cdf_divides_by_the_temperature() -> None:
    logits = torch.tensor([[0.9, 0.1]]).log()
    u = torch.tensor([0.85], dtype=torch.float64)
    assert inverse_cdf(logits, 1.0, u).item() == 0
    assert inverse_cdf(logits, 2.0, u).item() == 1  # sqrt(.9) : sqrt(.1) = 3 : 1
    assert inverse_cdf(logits, 0.01, torch.tensor([LARGEST_U], dtype=torch.float64)).item() == 0


@pytest.mark.parametrize("u", [0.0, 0.3, 0.999, LARGEST_U, 1.0, 2.0, -1.0])
def test_a_token_of_probability_zero_is_never_drawn(u: float) -> None:
    draw = torch.tensor([u], dtype=torch.float64)
    masked = torch.full((1, 50), -math.inf)
    masked[0, [3, 20, 21]] = torch.tensor([0.0, -2.0, 1.0])
    assert inverse_cdf(masked, 1.0, draw).item() in (3, 20, 21)
    underflowing = torch.tensor([[-2000.0, 0.0, -2000.0]])
    assert inverse_cdf(underflowing, 1.0, draw).item() == 1
    only_first = torch.tensor([[0.0, -math.inf]])
    assert inverse_cdf(only_first, 1.0, draw).item() == 0


def test_the_ends_of_many_distributions() -> None:
    generator = torch.Generator().manual_seed(0)
    logits = 5 * torch.randn(2000, 97, generator=generator)
    logits[torch.rand(2000, 97, generator=generator) < 0.5] = -math.inf
    for u in (0.0, LARGEST_U):
        ids = inverse_cdf(logits, 1.0, torch.full((2000,), u, dtype=torch.float64))
        assert logits.softmax(-1).gather(1, ids[:, None]).min().item() > 0.0


def test_frequencies_are_the_probabilities() -> None:
    probabilities = torch.tensor([0.05, 0.4, 0.0, 0.3, 0.15, 0.1])
    n = 60_000
    keys = row_keys(1, 0, torch.arange(n), torch.zeros(n, dtype=torch.int64))
    ids = inverse_cdf(probabilities.log().expand(n, 6), 1.0, uniforms(keys, 0))
    counts = torch.bincount(ids, minlength=6).double()
    assert counts[2].item() == 0
    expected = n * probabilities.double()
    kept = probabilities > 0
    # 4 degrees of freedom: 1 in 1000 fair samplers is above 18.5.
    assert ((counts - expected).square() / expected)[kept].sum().item() < 18.5


def test_half_precision_logits_and_no_rows() -> None:
    u = torch.tensor([0.6], dtype=torch.float64)
    assert inverse_cdf(torch.tensor([[0.0, 0.0]], dtype=torch.bfloat16), 1.0, u).item() == 1
    assert inverse_cdf(torch.zeros(0, 5), 1.0, torch.zeros(0, dtype=torch.float64)).shape == (0,)


def kept(logits: list[float], **options: float) -> list[int]:
    filtered = filter_logits(torch.tensor([logits]), **options)[0]
    indices = (filtered > -math.inf).nonzero().flatten().tolist()
    assert all(filtered[i].item() == torch.tensor(logits)[i].item() for i in indices)
    return indices


HALVES = [math.log(p) for p in (0.125, 0.5, 0.25, 0.125)]


def test_top_k() -> None:
    assert kept(HALVES, top_k=0) == [0, 1, 2, 3]
    assert kept(HALVES, top_k=1) == [1]
    assert kept(HALVES, top_k=2) == [1, 2]
    assert kept(HALVES, top_k=3) == [0, 1, 2, 3]  # a tie with the third
    assert kept(HALVES, top_k=100) == [0, 1, 2, 3]


def test_top_p_is_the_smallest_set_with_the_mass() -> None:
    assert kept(HALVES, top_p=1.0) == [0, 1, 2, 3]
    assert kept(HALVES, top_p=0.51) == [1, 2]
    assert kept(HALVES, top_p=0.49) == [1]
    assert kept(HALVES, top_p=0.76) == [0, 1, 2]  # of a tie the lower id
    assert kept(HALVES, top_p=0.88) == [0, 1, 2, 3]
    assert kept(HALVES, top_p=1e-9) == [1]
    assert kept([0.0, 0.0], top_p=0.5) == [0]


def test_min_p_is_relative_to_the_likeliest() -> None:
    assert kept(HALVES, min_p=0.0) == [0, 1, 2, 3]
    assert kept(HALVES, min_p=0.24) == [0, 1, 2, 3]
    assert kept(HALVES, min_p=0.26) == [1, 2]
    assert kept(HALVES, min_p=0.51) == [1]
    assert kept(HALVES, min_p=1.0) == [1]


def test_filters_look_at_the_tempered_distribution() -> None:
    logits = [math.log(0.9), math.log(0.1)]
    assert kept(logits, top_p=0.8) == [0]
    assert kept(logits, top_p=0.8, temperature=2.0) == [0, 1]
    assert kept(logits, min_p=0.2) == [0]
    assert kept(logits, min_p=0.2, temperature=2.0) == [0, 1]


def test_each_filter_looks_at_what_the_one_before_has_left() -> None:
    # After top_k=2 the two have 2/3 and 1/3 of the mass.
    assert kept(HALVES, top_k=2, top_p=0.6) == [1]
    assert kept(HALVES, top_p=0.6) == [1, 2]


def test_filters_treat_rows_alone_and_leave_the_input_alone() -> None:
    logits = torch.tensor([HALVES, HALVES[::-1], [0.0, 0.0, 0.0, 50.0]])
    before = logits.clone()
    filtered = filter_logits(logits, top_k=3, top_p=0.7, min_p=0.1)
    assert torch.equal(logits, before)
    assert (filtered > -math.inf).int().tolist() == [[0, 1, 1, 0], [0, 1, 1, 0], [0, 0, 0, 1]]
    assert filter_logits(logits) is logits


def test_bad_input_is_named() -> None:
    logits, u = torch.zeros(2, 4), torch.zeros(2, dtype=torch.float64)
    ids = torch.tensor([1, 2])
    with pytest.raises(ValueError, match=r"temperature must be .* above 0 \(greedy decoding is argmax\), got 0"):
        inverse_cdf(logits, 0.0, u)
    with pytest.raises(ValueError, match=r"u must have shape \[B\] with the B of logits \[2, 4\], got \[1\]"):
        inverse_cdf(logits, 1.0, u[:1])
    for junk in (math.nan, math.inf):
        with pytest.raises(FloatingPointError, match="row 1 of logits is no distribution"):
            inverse_cdf(torch.tensor([[0.0, 1.0], [junk, 0.0]]), 1.0, u)
    with pytest.raises(FloatingPointError, match="row 0 of logits is no distribution"):
        inverse_cdf(torch.full((2, 3), -math.inf), 1.0, u)
    with pytest.raises(ValueError, match=r"logits must have shape \[B, V\], got \[4\]"):
        filter_logits(logits[0], top_k=1)
    with pytest.raises(ValueError, match="top_k must be at least 0"):
        filter_logits(logits, top_k=-1)
    for top_p in (0.0, 1.1, math.nan):
        with pytest.raises(ValueError, match="top_p must be above 0 and at most 1"):
            filter_logits(logits, top_p=top_p)
    for min_p in (-0.1, 1.1, math.nan):
        with pytest.raises(ValueError, match="min_p must be between 0 and 1"):
            filter_logits(logits, min_p=min_p)
    with pytest.raises(TypeError, match=r"prompt_ids must be a torch\.Tensor, got list"):
        row_keys(0, 0, [1, 2], ids)
    with pytest.raises(ValueError, match=r"samples \[1\] and prompt_ids \[2\] must both have shape \[B\]"):
        row_keys(0, 0, ids, ids[:1])
    with pytest.raises(TypeError, match=r"keys must be int64, got torch\.float32"):
        uniforms(torch.zeros(2), 0)
    with pytest.raises(ValueError, match=r"position \[1\] and keys \[2\] must both have shape \[B\]"):
        uniforms(ids, ids[:1])


@pytest.mark.parametrize("vocabulary", [1, 5, 256, 1000, 1024, 1025, 1300, 5000, 5120])
def test_draw_takes_the_token_of_the_running_sum_over_all(vocabulary: int) -> None:
    generator = torch.Generator().manual_seed(vocabulary)
    logits = 4 * torch.randn(500, vocabulary, generator=generator)
    logits[:, 1::3] = -math.inf
    u = torch.rand(500, generator=generator, dtype=torch.float64)
    u[:3] = torch.tensor([0.0, LARGEST_U, 1.0], dtype=torch.float64)
    ids, logprobs = draw(logits, u)
    running = logits.double().softmax(dim=-1).cumsum(dim=-1)
    at = running.gather(1, ids[:, None])[:, 0]
    before = at - logits.double().softmax(dim=-1).gather(1, ids[:, None])[:, 0]
    assert (logits.gather(1, ids[:, None]) > -math.inf).all()
    # The chosen token's stretch of the running sum holds u, but for the rounding of float32 sums.
    assert ((before - 1e-6 <= u) & (u <= at + 1e-6)).all()
    expected = logits.double().log_softmax(dim=-1).gather(1, ids[:, None])[:, 0]
    torch.testing.assert_close(logprobs.double(), expected, rtol=0, atol=2e-6)


def test_draw_in_blocks_names_a_row_that_is_no_distribution() -> None:
    for broken in (math.nan, math.inf, -math.inf):
        logits = torch.zeros(3, 2000)
        logits[1] = broken
        with pytest.raises(FloatingPointError, match="row 1 of logits is no distribution"):
            draw(logits, torch.full((3,), 0.5, dtype=torch.float64))
