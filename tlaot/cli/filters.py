"""Options that choose workloads out of what a file holds: ``--kernel``, ``--target``, ``--shape``."""

from __future__ import annotations

import argparse
import json
import re
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Protocol, TypeVar

from ..errors import PackageError, did_you_mean

__all__ = ["add_filters", "choose", "read_shape"]


class _Workload(Protocol):
    @property
    def kernel(self) -> str: ...
    @property
    def target(self) -> str: ...
    @property
    def shape(self) -> Mapping[str, Any]: ...


_Any = TypeVar("_Any", bound=_Workload)


def add_filters(parser: argparse.ArgumentParser) -> None:
    """Add the options; each may be repeated, and of one option any may fit."""
    parser.add_argument("--kernel", metavar="NAME", action="append", help="only this kernel (may be repeated)")
    parser.add_argument(
        "--target", metavar="TARGET", action="append", help="only this target: cuda:sm_90a, or all of a kind: cuda"
    )
    parser.add_argument(
        "--shape", metavar="K=V,...", action="append", help="only workloads with these values: M=1024,N=64"
    )


def choose(workloads: Iterable[_Any], options: argparse.Namespace) -> list[_Any]:
    """Those that the options of :func:`add_filters` let through.

    Raises:
        PackageError: An option lets none through; the message lists what there is.
    """
    left = list(workloads)
    for option, key in (("kernel", _kernel_of), ("target", _target_of), ("shape", _shape_of)):
        wanted: Sequence[str] | None = getattr(options, option)
        if wanted is None or not left:
            continue
        there = list(dict.fromkeys(key(one) for one in left))
        for text in wanted:
            if not any(_fits(option, text, one) for one in left):
                raise PackageError(
                    f"--{option}", f"there is no {text!r}{did_you_mean(text, there)}", f"There is: {_some(there)}."
                )
        left = [one for one in left if any(_fits(option, text, one) for text in wanted)]
    return left


def read_shape(text: str) -> dict[str, Any]:
    """``M=1024,mode=fast`` as a workload's items, for argparse: a value is JSON, or text."""
    items = {}
    for item in text.split(","):
        name, equals, value = item.partition("=")
        if not name.strip() or not equals:
            raise argparse.ArgumentTypeError(f"expected NAME=VALUE, got {item!r}: write M=1024,N=1024, for instance")
        try:
            items[name.strip()] = json.loads(value)
        except ValueError:
            items[name.strip()] = value.strip()
    return items


def _kernel_of(workload: _Workload) -> str:
    return workload.kernel


def _target_of(workload: _Workload) -> str:
    return workload.target


def _shape_of(workload: _Workload) -> str:
    return ",".join(f"{name}={_as_text(value)}" for name, value in sorted(workload.shape.items()))


def _some(names: Sequence[str]) -> str:
    return "; ".join(names[:12]) + (f"; and {len(names) - 12} more" if len(names) > 12 else "")


def _fits(option: str, text: str, workload: _Workload) -> bool:
    if option == "kernel":
        return workload.kernel == text
    if option == "target":
        return text in (workload.target, *workload.target.split(":"))
    # A list's own commas are followed by no name.
    for part in filter(None, re.split(r",(?=[^,=]+=)", text)):
        name, _, value = part.partition("=")
        name, value = name.strip(), value.strip()
        shape = workload.shape
        if name not in shape or value not in (_as_text(shape[name]), json.dumps(shape[name])):
            return False
    return True


def _as_text(value: Any) -> str:
    return value if isinstance(value, str) else json.dumps(value)
