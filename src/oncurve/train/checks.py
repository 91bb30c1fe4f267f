"""What can only be seen with data and model side by side, and is checked before anything is sampled."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from oncurve.models.causal_lm import CausalLM
from oncurve.types import Demonstration, OncurveError, Prompt


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
