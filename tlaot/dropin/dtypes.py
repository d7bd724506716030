"""Element types as TileLang has them, ``T.float16``: text that knows its size."""

from __future__ import annotations

import importlib
import re
from typing import Any

from ..keys import dtype_name

__all__ = ["dtype", "named_dtype"]

_NAME = re.compile(r"(u?int|float|bfloat)(\d+)(_\w+?)?(?:x(\d+))?")
_EXACT = re.compile(r"((u?int|b?float)\d+|float\d+_e\d+m\d+\w*|bool)(x\d+)?")
# C's names, which TileLang takes for these.
_OTHERS = {
    "half": "float16", "float": "float32", "double": "float64", "short": "int16", "int": "int32", "long": "int64",
    "uint": "uint32", "ulong": "uint64", "boolean": "bool",
}  # fmt: skip


class dtype(str):  # noqa: N801  TileLang's name of it
    """An element type: ``dtype("float16")``, of torch's and numpy's as well."""

    __slots__ = ()

    def __new__(cls, content: Any) -> dtype:
        name = dtype_name(content)
        name = str(content) if name is None else name
        if not isinstance(content, str) and name == str(content) and isinstance(content, type):
            name = {bool: "bool", int: "int32", float: "float32"}.get(content, name)
        return super().__new__(cls, _OTHERS.get(name, name))

    @property
    def lanes(self) -> int:
        """Elements of a vector; 1 for what is none."""
        found = _NAME.fullmatch(self)
        return int(found[4]) if found is not None and found[4] else 1

    @property
    def bits(self) -> int:
        """Bits of an element."""
        if self.startswith("bool"):
            return 8
        found = _NAME.fullmatch(self)
        if found is None:
            raise ValueError(f"{str(self)!r} is no element type whose size is known")
        return int(found[2])

    @property
    def bytes(self) -> int:
        """Bytes of an element, and at least one."""
        return max(1, self.bits // 8)

    @property
    def itemsize(self) -> int:
        """Bytes of a vector of them."""
        return (self.bits * self.lanes + 7) // 8

    def as_torch(self) -> Any:
        """torch's own."""
        torch = importlib.import_module("torch")
        return getattr(torch, {"float4_e2m1fnx2": "float4_e2m1fn_x2"}.get(self, str(self)))

    def __repr__(self) -> str:
        return f"dtype({str(self)!r})"

    def __call__(self, *args: Any, **options: Any) -> Any:
        """A conversion inside of a kernel; there is none here, but typing wants types to be callable."""
        raise TypeError(f"T.{self}(...) converts inside of a kernel")


def named_dtype(name: str) -> dtype | None:
    """The element type of a name in ``tilelang.language``; None where the name is of something else."""
    return dtype(name) if name in _OTHERS or _EXACT.fullmatch(name) else None
