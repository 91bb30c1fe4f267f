"""The options are a promise: adding, renaming or removing one shows up as a change of `config_surface.txt`."""

from __future__ import annotations

from pathlib import Path

from oncurve.config import MAY_CHANGE_ON_RESUME, leaves

SURFACE = Path(__file__).with_name("config_surface.txt")
# The largest peers have 550 to 885. Somebody has to read them. One more section of ten for each further stage.
MOST = 130
HINT = "if that is intended, write it anew with: python tests/architecture/test_config_surface.py"


def test_the_options_are_the_listed_ones() -> None:
    listed, there = SURFACE.read_text().split(), list(leaves())
    new, gone = sorted(set(there) - set(listed)), sorted(set(listed) - set(there))
    assert not new, f"options that {SURFACE.name} does not list: {', '.join(new)}; {HINT}"
    assert not gone, f"options that are gone: {', '.join(gone)}; {HINT}, and say in CHANGELOG.md what replaces them"
    assert listed == there, f"the order has changed; {HINT}"


def test_there_are_few_enough_to_read() -> None:
    assert len(leaves()) <= MOST


def test_what_may_change_on_resume_is_an_option() -> None:
    assert leaves().keys() >= MAY_CHANGE_ON_RESUME


if __name__ == "__main__":
    SURFACE.write_text("\n".join(leaves()) + "\n")
    print(f"{SURFACE}: {len(leaves())} options")
