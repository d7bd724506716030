"""What the source text of a TileLang kernel says; imports no TileLang, as the autotuner's own process reads it too."""

from __future__ import annotations

import ast
import textwrap

__all__ = ["constants_of"]


def constants_of(source: str) -> tuple[str, ...]:
    """Names that an eager kernel declares with ``T.const("M, N")``; they are given like arguments."""
    names: list[str] = []
    for node in ast.walk(ast.parse(textwrap.dedent(source))):
        if isinstance(node, ast.Call) and ast.unparse(node.func).split(".")[-1] == "const":
            texts = [a.value for a in node.args[:1] if isinstance(a, ast.Constant) and isinstance(a.value, str)]
            names += [name for text in texts for name in text.replace(",", " ").split()]
    return tuple(dict.fromkeys(names))
