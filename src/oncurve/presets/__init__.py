"""Published objectives by name, and the words for their terms. Standard library only: they can be shown at once.

A preset is data: which advantage, ratio, surrogate, aggregation, KL and so on, with the published values and where the
paper states them. ``oncurve.config`` has an option for each term and takes from the preset what a recipe does not give.
"""

from __future__ import annotations

from oncurve.presets.choices import Advantage, Aggregation, Choice, Correction, Kl, Ratio, Surrogate
from oncurve.presets.describe import describe, details, find, remarks, table
from oncurve.presets.formulas import formula, objective, shown
from oncurve.presets.papers import OTHER_PAPERS, OtherPaper
from oncurve.presets.preset import Paper, Preset, PresetName
from oncurve.presets.published import DEFAULT, PRESETS
from oncurve.presets.rules import completed, overridden, refusal, terms_of, without_preset
from oncurve.presets.terms import TERMS, Term, Value, absent, idle

__all__ = [
    "DEFAULT",
    "OTHER_PAPERS",
    "PRESETS",
    "TERMS",
    "Advantage",
    "Aggregation",
    "Choice",
    "Correction",
    "Kl",
    "OtherPaper",
    "Paper",
    "Preset",
    "PresetName",
    "Ratio",
    "Surrogate",
    "Term",
    "Value",
    "absent",
    "completed",
    "describe",
    "details",
    "find",
    "formula",
    "idle",
    "objective",
    "overridden",
    "refusal",
    "remarks",
    "shown",
    "table",
    "terms_of",
    "without_preset",
]
