"""What can only be seen with data, rewards and model side by side, and is checked before anything is sampled."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from oncurve.data.prompts import bad_row, data_of
from oncurve.models.causal_lm import CausalLM
from oncurve.rewards import NamedReward, accuracy, check_signature, read_gold
from oncurve.terminal import Terminal
from oncurve.types import Demonstration, OncurveError, Prompt


def check_rewards(
    measures: Sequence[NamedReward], option: str, source: str, prompts: Sequence[Prompt], terminal: Terminal
) -> None:
    """Every function can be called on the prompts that come from ``source``, which is the value of ``option``, and
    `accuracy` can read their answers."""
    with data_of(option, source):
        for measure in measures if prompts else ():
            check_signature(measure, list(prompts[0].columns))
        if any(measure.function is accuracy for measure in measures):
            _check_answers(source, prompts, terminal)


def _check_answers(source: str, prompts: Sequence[Prompt], terminal: Terminal) -> None:
    unscored = 0
    for prompt in prompts:
        answer = prompt.columns["answer"]
        if answer is None:
            unscored += 1
            continue
        try:
            read_gold(answer)
        except OncurveError as error:
            raise bad_row(prompt.id, f"column `answer`: {error}") from error
    if unscored and unscored == len(prompts):
        raise OncurveError(f"{source}: no row has an `answer`, so the accuracy reward could score nothing")
    if unscored:
        terminal.say(f"{source}: {unscored} of {len(prompts)} prompts have no `answer`; accuracy leaves them unscored")


def check_known(
    lm: CausalLM, tokenizer: Any, prompts: Mapping[str, Sequence[Prompt]], demonstrations: Sequence[Demonstration]
) -> None:
    """The model has an embedding for every token. A tokenizer may have a few more, as long as no text holds them.
    ``prompts``: by the option and the data set that they come from."""
    known = int(lm.module.get_input_embeddings().num_embeddings)  # type: ignore[arg-type]
    texts = [
        (f"{source}: the prompt of data row {prompt.id}", prompt.token_ids)
        for source, members in prompts.items()
        for prompt in members
    ]
    texts += [("a demonstration", (*row.prompt_ids, *row.completion_ids)) for row in demonstrations]
    for what, ids in texts:
        if max(ids) >= known:
            raise OncurveError(
                f"{what} holds the token {tokenizer.decode([max(ids)])!r} with id {max(ids)}, but the model knows only "
                f"ids below {known}; this tokenizer belongs to another model"
            )
