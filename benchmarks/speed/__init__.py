"""One GRPO step by Oncurve and by TRL, side by side; the command is ``benchmarks/against_trl.py``."""
