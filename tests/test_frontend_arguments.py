"""What a factory is called with is checked before it runs, in the same words for every frontend."""

from __future__ import annotations

import functools
import inspect
import re
from typing import Any

import pytest

from tlaot.tune.frontends.arguments import check_arguments


def factory(M: int, N: int, *, block: int = 1, stages: int = 2) -> None: ...


@pytest.mark.parametrize(
    ("shape", "config", "text"),
    [
        (
            {"M": 1, "N": 2},
            {"blok": 1},
            "unused config key 'blok': the factory takes (M, N, block, stages), did you mean 'block'?",
        ),
        ({"M": 1, "N": 2, "K": 3}, {}, "unused shape key 'K': the factory takes (M, N, block, stages)"),
        ({"M": 1, "N": 2}, {"N": 2}, "shape and config both set N"),
        ({"M": 1}, {"block": 2}, "the factory's argument 'N' is in neither shape nor config and has no default"),
    ],
)
def test_what_is_refused(shape: dict[str, Any], config: dict[str, Any], text: str) -> None:
    with pytest.raises(TypeError, match=f"^{re.escape(text)}$"):
        check_arguments(shape, config, inspect.signature(factory))


def test_what_is_taken() -> None:
    check_arguments({"M": 1}, {"N": 2, "stages": 3}, inspect.signature(factory))
    check_arguments({"M": 1}, {"block": 2}, inspect.signature(functools.partial(factory, N=3)))
    check_arguments({"anything": 1}, {"at_all": 2}, inspect.signature(lambda **items: None))
    check_arguments({"M": 1, "constant": 2}, {}, inspect.signature(factory), others=["constant"], optional=["N"])
