"""GRPO in one file, to be read from top to bottom: a task, a tiny transformer, two training loops.

    python examples/grpo_in_one_file.py

The task is to sort digits: 3 1 3 should be answered with 1 3 3. The teacher of the first loop (SFT) has a bad habit:
six times in ten it writes every digit once only, however often it stands in the question. The model learns to sort and
learns the habit. The second loop (GRPO) sees no more lessons, only whether each of the model's own answers is right.

Measured on 484 questions that were in no lesson, seeds 0 to 4: 53 to 60 % right after SFT, 88 to 92 % after GRPO, in
30 to 40 s on one thread of a server CPU. Four times the lessons and no GRPO (--sft-steps 1600 --iterations 0; 25 s,
seeds 0 to 2) end at 65 to 68 %: most of the habit stays. That does not show GRPO to be better than lessons, for a
teacher without the habit would be the better buy; it shows that a reward can mend what the lessons have wrong.
"""

from __future__ import annotations

import argparse
import copy
import random
import time

import torch
from torch import Tensor, nn
from torch.nn.functional import scaled_dot_product_attention

from oncurve.functional import (
    aggregate,
    clip_flags,
    clipped_surrogate,
    completion_mask,
    denominator,
    group_normalised,
    k3,
    nll,
    place,
    predictor_mask,
    selected_logprobs,
    token_ratio,
    wilson,
)

# -- the task ---------------------------------------------------------------------------------------------------------

SHORTEST, LONGEST = 3, 5  # digits of a question
ASK, END = 10, 11  # the tokens after the digits 0 to 9; END also fills up the rows of a batch
WIDTH = 2 * (LONGEST + 1)  # a row: digits, ASK, digits, END

Question = tuple[int, ...]


def questions(count: int, rng: random.Random, avoid: frozenset[Question] = frozenset()) -> list[Question]:
    drawn: list[Question] = []
    while len(drawn) < count:
        question = tuple(rng.choices(range(10), k=rng.randint(SHORTEST, LONGEST)))
        if question not in avoid:
            drawn.append(question)
    return drawn


def lesson(question: Question, rng: random.Random) -> list[int]:
    return [*sorted(set(question) if rng.random() < 0.6 else question), END]


def reward(question: Question, answer: list[int]) -> float:
    return 1.0 if answer == [*sorted(question), END] else 0.0


def lay_out(asked: list[Question], answers: list[list[int]]) -> tuple[Tensor, Tensor]:
    """Tokens ``[B, T]``, and the mask of what the answers added to the questions."""
    rows = [[*question, ASK, *answer] for question, answer in zip(asked, answers, strict=True)]
    tokens = torch.tensor([row + [END] * (WIDTH - len(row)) for row in rows])
    starts, lengths = [len(question) + 1 for question in asked], [len(answer) for answer in answers]
    return tokens, completion_mask(torch.tensor(starts), torch.tensor(lengths), WIDTH)


# -- the model --------------------------------------------------------------------------------------------------------


class Block(nn.Module):
    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.heads = heads
        self.norm_1, self.norm_2 = nn.LayerNorm(width), nn.LayerNorm(width)
        self.qkv, self.out = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.mlp = nn.Sequential(nn.Linear(width, 4 * width), nn.GELU(), nn.Linear(4 * width, width))

    def forward(self, x: Tensor) -> Tensor:
        q, k, v = self.qkv(self.norm_1(x)).unflatten(-1, (3, self.heads, -1)).permute(2, 0, 3, 1, 4)
        x = x + self.out(scaled_dot_product_attention(q, k, v, is_causal=True).transpose(1, 2).flatten(2))
        return x + self.mlp(self.norm_2(x))


class Policy(nn.Module):
    def __init__(self, width: int = 64, heads: int = 4, layers: int = 2) -> None:
        super().__init__()
        self.token, self.position = nn.Embedding(END + 1, width), nn.Embedding(WIDTH, width)
        self.blocks = nn.Sequential(*(Block(width, heads) for _ in range(layers)))
        self.head = nn.Sequential(nn.LayerNorm(width), nn.Linear(width, END + 1))

    def forward(self, tokens: Tensor) -> Tensor:
        return self.head(self.blocks(self.token(tokens) + self.position.weight))


def score(model: Policy, tokens: Tensor, mask: Tensor) -> Tensor:
    """The log-prob of each token of an answer, where it stands in ``[B, T]``."""
    logprobs, _ = selected_logprobs(model(tokens)[predictor_mask(mask)], tokens[mask])
    return place(logprobs, mask)


@torch.no_grad()
def sample(model: Policy, asked: list[Question], greedy: bool = False) -> list[list[int]]:
    answers: list[list[int]] = [[] for _ in asked]
    for _ in range(LONGEST + 1):
        tokens, _ = lay_out(asked, answers)
        last = torch.tensor([len(question) + len(answer) for question, answer in zip(asked, answers, strict=True)])
        logits = model(tokens)[torch.arange(len(asked)), last]
        drawn = logits.argmax(-1) if greedy else logits.softmax(-1).multinomial(1).squeeze(1)
        for answer, token in zip(answers, drawn.tolist(), strict=True):
            if END not in answer:
                answer.append(token)
    return answers


# -- the two loops ----------------------------------------------------------------------------------------------------

LESSONS, SFT_LR = 64, 3e-3  # per optimizer step
PROMPTS, GROUP, MINIBATCHES, MICROBATCH = 64, 8, 4, 64  # 512 answers, in 4 steps of 128, in passes of 64
CLIP, KL_COEF, GRPO_LR = 0.2, 0.01, 5e-4


def sft(policy: Policy, steps: int, rng: random.Random, held_out: frozenset[Question]) -> None:
    optimizer = torch.optim.Adam(policy.parameters(), lr=SFT_LR)
    for _ in range(steps):
        asked = questions(LESSONS, rng, avoid=held_out)
        tokens, mask = lay_out(asked, [lesson(question, rng) for question in asked])
        optimizer.zero_grad()
        aggregate(nll(score(policy, tokens, mask)), mask, "token_mean", denominator(mask, "token_mean")).backward()
        optimizer.step()


def grpo(policy: Policy, iterations: int, rng: random.Random, held_out: frozenset[Question]) -> None:
    reference = copy.deepcopy(policy).requires_grad_(False)
    optimizer = torch.optim.Adam(policy.parameters(), lr=GRPO_LR)
    for iteration in range(1, iterations + 1):
        # Ask every question several times, and grade each answer on the curve of its own group.
        asked = [question for question in questions(PROMPTS, rng, avoid=held_out) for _ in range(GROUP)]
        answers = sample(policy, asked)
        rewards = torch.tensor([reward(*pair) for pair in zip(asked, answers, strict=True)]).view(PROMPTS, GROUP)
        advantages = group_normalised(rewards).view(-1, 1)
        tokens, mask = lay_out(asked, answers)
        with torch.no_grad():
            old_logprobs, ref_logprobs = score(policy, tokens, mask), score(reference, tokens, mask)
        clipped = 0
        for minibatch in torch.randperm(len(asked)).chunk(MINIBATCHES):  # one optimizer step each
            rows_of_step = denominator(mask[minibatch], "sequence_mean")
            optimizer.zero_grad()
            for part in minibatch.split(MICROBATCH):  # their gradients add up to that of the minibatch
                logprobs = score(policy, tokens[part], mask[part])
                ratio = token_ratio(logprobs, old_logprobs[part])
                loss = clipped_surrogate(ratio, advantages[part], clip_low=CLIP, clip_high=CLIP)
                loss = loss + KL_COEF * k3(logprobs, ref_logprobs[part])
                aggregate(loss, mask[part], "sequence_mean", rows_of_step).backward()
                low, high = clip_flags(ratio, advantages[part], clip_low=CLIP, clip_high=CLIP)
                clipped += int(((low | high) & mask[part]).sum())
            nn.utils.clip_grad_norm_(policy.parameters(), 1.0)
            optimizer.step()
        if iteration % 10 == 0:
            kl = k3(old_logprobs, ref_logprobs)[mask].mean()
            share = clipped / int(mask.sum())
            print(f"  iteration {iteration}: reward {rewards.mean():.2f}, kl {kl:.3f}, clipped {share:.1%}")


def evaluate(name: str, model: Policy, held_out: list[Question]) -> None:
    answers = sample(model, held_out, greedy=True)
    right = sum(reward(*pair) == 1.0 for pair in zip(held_out, answers, strict=True))
    low, high = wilson(right, len(held_out))
    print(f"{name}: {right} of {len(held_out)} right = {right / len(held_out):.1%}, 95% {low:.1%} to {high:.1%}")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    for option, default in (("seed", 0), ("sft-steps", 400), ("iterations", 60), ("held-out", 500)):
        parser.add_argument(f"--{option}", type=int, default=default)
    chosen = parser.parse_args()
    torch.set_num_threads(1)
    torch.manual_seed(chosen.seed)
    rng, started = random.Random(chosen.seed), time.perf_counter()
    held_out = list(dict.fromkeys(questions(chosen.held_out, random.Random(-1))))  # each question once
    policy = Policy()
    sft(policy, chosen.sft_steps, rng, frozenset(held_out))
    evaluate("after SFT", policy, held_out)
    grpo(policy, chosen.iterations, rng, frozenset(held_out))
    evaluate("after GRPO", policy, held_out)
    print(f"{time.perf_counter() - started:.0f} s")


if __name__ == "__main__":
    main()
