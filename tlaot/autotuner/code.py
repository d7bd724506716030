"""What a Python function says: its code without comments, white space, line numbers and file names, and the names it reads.

The code is the source's syntax tree where the source at hand is provably that of the running function; else its bytecode,
with the tree of what the source file says now beside it, since frontends parse that file.
"""

from __future__ import annotations
import __future__

import ast
import copy
import dis
import functools
import linecache
import types
import warnings
from collections.abc import Iterator
from dataclasses import dataclass

__all__ = ["Said", "read_code"]

Function = (ast.FunctionDef, ast.AsyncFunctionDef, ast.Lambda)
Chain = tuple[str, ...]

_LOADS = ("LOAD_GLOBAL", "LOAD_NAME", "LOAD_FROM_DICT_OR_GLOBALS")
_FREE_LOADS = ("LOAD_DEREF", "LOAD_CLASSDEREF", "LOAD_FROM_DICT_OR_DEREF")
_ATTRIBUTES = ("LOAD_ATTR", "LOAD_METHOD")
# Instructions that say nothing: of tracing, of the interpreter's own bookkeeping, of line numbers.
_SILENT = ("CACHE", "NOP", "RESUME", "PRECALL", "EXTENDED_ARG", "COPY_FREE_VARS", "MAKE_CELL")
_STRING_ANNOTATIONS = __future__.annotations.compiler_flag
_LONGEST_ANNOTATION = 1000


@dataclass(frozen=True)
class Said:
    """What a code object says.

    Attributes:
        text: The code, as text that only a change of meaning changes.
        reads: Names that it and the functions in it read, each with the attributes read of it:
            ``("helpers", "SCALE")`` for ``helpers.SCALE``.
        imports: Modules that it imports: level, name, and the names taken from it (empty for the module itself).
    """

    text: str
    reads: tuple[Chain, ...]
    imports: tuple[tuple[int, str, tuple[str, ...]], ...]


@functools.lru_cache(maxsize=4096)
def _said(code: types.CodeType, source: str | None) -> Said:
    nodes = _nodes_of(code, source) if source else []
    bytecodes = list(_nested(code))
    free, bound = frozenset(code.co_freevars), frozenset[str]()
    reads: set[Chain] = set()
    for inner in bytecodes:
        bound |= {*inner.co_varnames, *inner.co_cellvars}
        reads |= set(_reads(inner, free, bound))
    proven = len(nodes) == 1 and source is not None and code in _codes_in(source)
    text = "" if proven else "".join(_spell(inner) for inner in bytecodes)
    for node in nodes:
        text += ast.dump(_bare(node))
        reads |= set(_annotation_reads(node, frozenset()))
    imports = {found for inner in bytecodes for found in _imports(inner)}
    return Said(text, tuple(sorted(reads)), tuple(sorted(imports)))


def read_code(code: types.CodeType) -> Said:
    """Read a function's code object."""
    return _said(code, _source_of(code.co_filename))


def _source_of(filename: str) -> str | None:
    linecache.checkcache(filename)
    return "".join(linecache.getlines(filename)) or None


def _nested(code: types.CodeType) -> Iterator[types.CodeType]:
    yield code
    for constant in code.co_consts:
        if isinstance(constant, types.CodeType):
            yield from _nested(constant)


# Source


@functools.lru_cache(maxsize=64)
def _parse(source: str) -> ast.Module | None:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        try:
            return ast.parse(source)
        except (SyntaxError, ValueError, RecursionError):
            return None


def _nodes_of(code: types.CodeType, source: str) -> list[ast.AST]:
    """The definitions in a source that begin where the code does and have its name."""
    tree = _parse(source)
    if tree is None:
        return []
    found: list[ast.AST] = []
    for node in ast.walk(tree):
        if isinstance(node, Function):
            name = "<lambda>" if isinstance(node, ast.Lambda) else node.name
            first = min([node.lineno, *(d.lineno for d in getattr(node, "decorator_list", []))])
            if name == code.co_name and first == code.co_firstlineno:
                found.append(node)
    return found


@functools.lru_cache(maxsize=64)
def _codes_in(source: str) -> frozenset[types.CodeType]:
    """All code in a source, compiled now: a file may have been edited since it was imported."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        try:
            return frozenset(_nested(compile(source, "<source>", "exec", dont_inherit=True)))
        except (SyntaxError, ValueError, RecursionError):
            return frozenset()


def _bare(node: ast.AST) -> ast.AST:
    """A definition without its decorators (what they made of it is seen in the object), and all docstrings."""
    node = copy.deepcopy(node)
    if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef)):
        node.decorator_list = []
    for inner in ast.walk(node):
        if isinstance(inner, (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)):
            first = inner.body[0]
            if (
                isinstance(first, ast.Expr)
                and isinstance(first.value, ast.Constant)
                and isinstance(first.value.value, str)
            ):
                inner.body = inner.body[1:] or [ast.Pass()]
    return node


def _annotation_reads(node: ast.AST, bound: frozenset[str]) -> Iterator[Chain]:
    """Names that annotations read. Python evaluates none of a local variable, and under ``from __future__ import annotations`` none at all;
    frontends do, from the source."""
    if isinstance(node, ast.Lambda):
        yield from _annotation_reads(node.body, bound)
        return
    inner = bound
    if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef)):
        arguments = node.args
        every = [*arguments.posonlyargs, *arguments.args, *arguments.kwonlyargs, arguments.vararg, arguments.kwarg]
        for expression in [*(a.annotation for a in every if a), node.returns]:
            yield from _expression_reads(expression, bound)
        inner = bound | {a.arg for a in every if a} | set(_assigned(node))
    for child in ast.iter_child_nodes(node):
        if isinstance(child, ast.AnnAssign):
            yield from _expression_reads(child.annotation, inner)
        if not isinstance(child, ast.arguments):
            yield from _annotation_reads(child, inner)


def _assigned(function: ast.AST) -> Iterator[str]:
    """Names that a function's own body binds."""
    for child in ast.iter_child_nodes(function):
        if isinstance(child, ast.Name) and isinstance(child.ctx, ast.Store):
            yield child.id
        elif isinstance(child, (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)):
            yield child.name
            continue
        elif isinstance(child, ast.alias):
            yield (child.asname or child.name).partition(".")[0]
        if not isinstance(child, ast.Lambda):
            yield from _assigned(child)


def _expression_reads(expression: ast.AST | None, bound: frozenset[str]) -> Iterator[Chain]:
    if expression is None:
        return
    if isinstance(expression, ast.Attribute):
        names = [expression.attr]
        value = expression.value
        while isinstance(value, ast.Attribute):
            names.append(value.attr)
            value = value.value
        if isinstance(value, ast.Name):
            if value.id not in bound:
                yield (value.id, *reversed(names))
            return
    if isinstance(expression, ast.Name) and expression.id not in bound:
        yield (expression.id,)
    if isinstance(expression, ast.Constant) and isinstance(expression.value, str):
        yield from _text_reads(expression.value, bound)
    for child in ast.iter_child_nodes(expression):
        yield from _expression_reads(child, bound)


def _text_reads(text: str, bound: frozenset[str]) -> Iterator[Chain]:
    if len(text) <= _LONGEST_ANNOTATION:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            try:
                tree = ast.parse(text.strip(), mode="eval")
            except (SyntaxError, ValueError, RecursionError):
                return
        for child in ast.iter_child_nodes(tree):
            if not isinstance(child, ast.Constant):
                yield from _expression_reads(child, bound)


# Bytecode


def _reads(code: types.CodeType, free: frozenset[str], bound: frozenset[str]) -> Iterator[Chain]:
    """What one code object reads of globals and of the outermost function's closure.

    Args:
        code: The code object.
        free: Names of that closure; a nested function's other free variables are locals of a function around it.
        bound: Those locals.
    """
    chain: Chain = ()
    for instruction in dis.get_instructions(code):
        name, argument = instruction.opname, instruction.argval
        if name in _ATTRIBUTES and chain:
            chain = (*chain, str(argument))
        elif name not in _SILENT and name != "PUSH_NULL":
            if chain:
                yield chain
            is_read = name in _LOADS or (name in _FREE_LOADS and argument in free)
            chain = (str(argument),) if is_read else ()
    if code.co_flags & _STRING_ANNOTATIONS:
        # Of a nested function they are one constant: name, annotation, name, annotation...
        for constant in code.co_consts:
            for text in constant[1::2] if isinstance(constant, tuple) else ():
                if isinstance(text, str):
                    yield from _text_reads(text, bound)


def _imports(code: types.CodeType) -> Iterator[tuple[int, str, tuple[str, ...]]]:
    instructions = [i for i in dis.get_instructions(code) if i.opname not in _SILENT]
    for position, instruction in enumerate(instructions):
        if instruction.opname == "IMPORT_NAME":
            level, names = (before.argval for before in instructions[position - 2 : position])
            yield (level if isinstance(level, int) else 0, str(instruction.argval), tuple(names or ()))


def _spell(code: types.CodeType) -> str:
    """The instructions, with names and constants in place of their numbers, and jumps by the instruction they go to."""
    instructions = list(dis.get_instructions(code))
    spoken = [i for i in instructions if i.opname not in _SILENT]
    number, numbers = 0, {}
    for instruction in instructions:
        numbers[instruction.offset] = number
        number += instruction.opname not in _SILENT
    lines = [repr((code.co_name, code.co_argcount, code.co_posonlyargcount, code.co_kwonlyargcount, code.co_flags,
                   code.co_varnames, code.co_freevars, code.co_cellvars))]  # fmt: skip
    for instruction in spoken:
        argument = instruction.argval
        if instruction.opcode in dis.hasjabs or instruction.opcode in dis.hasjrel:
            argument = numbers.get(argument, argument)
        elif instruction.opcode in dis.hasconst:
            argument = _spell_constant(argument)
        elif instruction.opcode in (*dis.hasname, *dis.haslocal, *dis.hasfree, *dis.hascompare):
            argument = instruction.argrepr
        else:
            argument = instruction.arg
        if argument == "__firstlineno__":  # a class's, since Python 3.13: the constant before it is a line number
            lines.pop()
        lines.append(f"{instruction.opname} {argument}")
    for entry in getattr(dis, "_parse_exception_table", lambda code: ())(code):
        bounds = (numbers.get(offset, offset) for offset in (entry.start, entry.end, entry.target))
        lines.append(f"except {(*bounds, entry.depth, entry.lasti)}")
    return "\n".join(lines) + "\n"


def _spell_constant(value: object) -> str:
    """repr, but of code (spelled after the function's own) only the name, and of frozen sets in order."""
    if isinstance(value, types.CodeType):
        return f"<code {value.co_name}>"
    if isinstance(value, frozenset):
        return f"frozenset({sorted(map(_spell_constant, value))})"
    if isinstance(value, tuple):
        return f"({', '.join(map(_spell_constant, value))},)"
    return f"{type(value).__name__} {value!r}"
