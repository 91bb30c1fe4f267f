"""What the benchmark scripts say in the same words."""

from __future__ import annotations

import os
import platform
import resource
from datetime import UTC, datetime
from typing import Any

import torch
import transformers

import oncurve


def machine_line() -> str:
    return (
        f"Machine: {platform.machine()}, {os.cpu_count()} cores, {torch.get_num_threads()} torch threads, "
        f"torch {torch.__version__}, transformers {transformers.__version__}, Oncurve {oncurve.__version__}, "
        f"Python {platform.python_version()}, {datetime.now(UTC):%Y-%m-%d}."
    )


def peak_gib() -> float:
    """Peak memory of this process so far. Linux counts it in KiB."""
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 2**20


def shown(estimate: Any) -> str:
    return f"{estimate.value:.3f} ({estimate.low:.3f}-{estimate.high:.3f})"
