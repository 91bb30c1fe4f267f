"""Oncurve: GRPO post-training that turns a scoring function into a better language model.

``import oncurve`` loads nothing heavy; torch comes with the first use of a name that needs it.

    result = oncurve.train("letters.toml", ["--grpo.iterations", "10"])
    oncurve.evaluate("letters.toml")
    oncurve.sample("runs/letters/models/grpo", "How many r's are in strawberry?")
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from oncurve.recipe import Recipe, load_recipe
    from oncurve.train.api import evaluate, sample, train

__version__ = "0.1.0"
__all__ = ["Recipe", "__version__", "evaluate", "load_recipe", "sample", "train"]

_HOME = {
    "evaluate": "oncurve.train.api",
    "sample": "oncurve.train.api",
    "load_recipe": "oncurve.recipe",
    "Recipe": "oncurve.recipe",
}


def __getattr__(name: str) -> Any:
    if name == "train":
        # Both the package and the function: ``oncurve.train`` can be called and has ``oncurve.train.grpo`` in it.
        return importlib.import_module("oncurve.train")
    if name in _HOME:
        return getattr(importlib.import_module(_HOME[name]), name)
    raise AttributeError(f"module 'oncurve' has no attribute {name!r}; it has {', '.join(__all__)}")


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
