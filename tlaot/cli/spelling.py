"""How commands spell what they print."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from ..manifest import Variant

__all__ = ["counted", "spell_items", "spell_size"]


def counted(number: int, what: str) -> str:
    return f"{number} {what}" + ("" if number == 1 else "s")


def spell_items(values: Mapping[str, Any]) -> str:
    return ", ".join(f"{name}={value!r}" for name, value in sorted(values.items()))


def spell_size(*variants: Variant) -> str:
    return f"{sum(digest.size for variant in variants for digest in variant.files.values()) / 1024:.1f} KiB"
