"""Whether this machine has what a level of the sandbox needs, found out without the sandbox: else a broken one would
pass its tests by being left out of them."""

from __future__ import annotations

import shutil
import subprocess
import sys

from oncurve.rewards.sandbox.inside.landlock import landlock_abi
from oncurve.rewards.sandbox.levels import Way


def lacking(way: Way) -> str | None:
    """Why there can be no such level here, or None."""
    if sys.platform != "linux":
        return "needs Linux"
    if not landlock_abi():
        return "the kernel has no Landlock"
    if way.namespaces == "unshare" and not _works(
        "unshare", "--user", "--map-current-user", "--mount", "--net", "true"
    ):
        return "no user namespaces"
    program = way.bubblewrap or "bwrap"
    if way.namespaces == "bubblewrap" and not _works(program, "--unshare-all", "--ro-bind", "/", "/", "true"):
        return "bubblewrap does not work"
    return None


def _works(*command: str) -> bool:
    return (
        shutil.which(command[0]) is not None
        and not subprocess.run(command, capture_output=True, check=False).returncode
    )
