"""What a machine says that has others at work on it: no failure of a test."""

from __future__ import annotations

__all__ = ["BUT_NOISE"]

# For warnings.filterwarnings("error", message=BUT_NOISE): every warning but those of times that others disturbed.
BUT_NOISE = "(?!.*(from round to round|cannot be trusted|not to be trusted|may be faster|could not be timed))"
