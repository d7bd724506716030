"""Arithmetic in a spec: what a kernel computes, as an expression of its sizes."""

from __future__ import annotations

import ast
import math
import operator
from collections.abc import Callable, Mapping
from typing import Any

from ...errors import SpecError

__all__ = ["check_expression", "evaluate"]

_BINARY: dict[type[ast.operator], Callable[[Any, Any], Any]] = {
    ast.Add: operator.add,
    ast.Sub: operator.sub,
    ast.Mult: operator.mul,
    ast.Div: operator.truediv,
    ast.FloorDiv: operator.floordiv,
}


def check_expression(text: str, where: str) -> str:
    """The expression, if it is one: sizes by name, numbers, ``+ - * / //`` and brackets.

    Raises:
        SpecError: It is something else.
    """
    try:
        names = {node.id for node in ast.walk(ast.parse(text, mode="eval")) if isinstance(node, ast.Name)}
        _value(ast.parse(text, mode="eval").body, dict.fromkeys(names, 1.0))
    except ZeroDivisionError:
        pass  # that depends on the sizes
    except (ValueError, SyntaxError, ArithmeticError, RecursionError):
        raise SpecError(
            where, f"is no arithmetic of a shape's items, got {text!r}", 'Write for instance flops = "2*M*N*K".'
        ) from None
    return text


def evaluate(text: str, sizes: Mapping[str, Any]) -> float | None:
    """The expression's value, above zero; None where it has none for these sizes."""
    try:
        found = _value(ast.parse(text, mode="eval").body, sizes)
    except (ValueError, SyntaxError, ArithmeticError, RecursionError):
        return None
    return found if 0 < found < math.inf else None


def _value(node: ast.expr, sizes: Mapping[str, Any]) -> float:
    if isinstance(node, ast.Constant) and type(node.value) in (int, float):
        return float(str(node.value))
    if isinstance(node, ast.Name) and type(sizes.get(node.id)) in (int, float):
        return float(sizes[node.id])
    if isinstance(node, ast.BinOp) and type(node.op) in _BINARY:
        return float(_BINARY[type(node.op)](_value(node.left, sizes), _value(node.right, sizes)))
    raise ValueError(ast.dump(node))
