"""Write recipes/chain_sum_examples.jsonl: clean worked examples for recipes/smollm-chain-sum.toml.

    python recipes/make_chain_sum_examples.py [N]

The questions are reasoning-gym's chain_sum; the working is the running total, one line for each term. Needs the extra
`oncurve[gym]`. A question that the recipe holds out is left out again when the examples are read.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path

import reasoning_gym

DIFFICULTY = {"min_terms": 2, "max_terms": 3, "min_digits": 1, "max_digits": 1}


def worked(expression: str) -> str:
    """``4 + 7 - 2``: the line ``4 + 7 = 11``, the line ``11 - 2 = 9``, the box."""
    first, *rest = expression.split()
    total, lines = int(first), []
    for sign, term in zip(rest[::2], rest[1::2], strict=True):
        result = total + int(term) if sign == "+" else total - int(term)
        lines.append(f"{total} {sign} {term} = {result}")
        total = result
    return "\n".join(lines) + f"\n\\boxed{{{total}}}"


def main(count: int = 360) -> None:
    rows = reasoning_gym.create_dataset("chain_sum", size=count, seed=20_000_000, **DIFFICULTY)
    out = Path(__file__).with_name("chain_sum_examples.jsonl")
    with out.open("w", encoding="utf-8") as file:
        for row in (rows[index] for index in range(count)):
            completion = "\n" + worked(row["metadata"]["expression"])
            assert completion.endswith(f"\\boxed{{{row['answer']}}}")
            file.write(
                json.dumps({"prompt": row["question"], "completion": completion, "answer": row["answer"]}) + "\n"
            )
    print(out)


if __name__ == "__main__":
    main(*map(int, sys.argv[1:]))
