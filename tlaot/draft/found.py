"""Factories of kernels in a package's sources, read and never imported: importing them may take TileLang, a GPU, or forever."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from ..tune.frontends.tilelang_source import constants_of

__all__ = ["Argument", "Factory", "Module", "find_factories", "read_modules"]

# Modules whose PrimFuncs are of one frontend or the other.
_TILELANG = ("tilelang",)
_TVM = ("tvm",)
_DECORATORS = ("jit", "autotune", "kernel")

# What authors call the right answer of "matmul".
_REFERENCES = (
    "{0}_reference", "{0}_ref", "reference_{0}", "ref_{0}", "{0}_torch", "torch_{0}", "{0}_naive", "naive_{0}",
    "{0}_ref_program", "ref_{0}_program",
)  # fmt: skip
_GENERAL_REFERENCES = ("ref_program", "ref_prog", "reference", "ref_impl")

# Arguments by whose name one can tell that they are tuned and not the workload's. What is doubtful (the block_size of a paged cache,
# chunk_size, num_splits) is the workload's: taken for a tunable it would change what the kernel computes.
_TUNABLE = re.compile(
    r"(?i)^(?!block_size$|num_blocks?$|(has|is|use|with)_|.*(table|page|_id|idx|index|ptr|list|mask))"
    r"(.*(blk|block|tile|panel|unroll|vectori?z?e?|lanes?$|rows_per|cols_per).*|.*_(stages?|threads?|warps?)"
    r"|(b[mnk]|(num_|n_)?(stages?|threads?|warps?)|k_pack|policy|enable_raster\w*|swizzle\w*))$"
)


@dataclass(frozen=True)
class Module:
    """One file of a package.

    Attributes:
        name: Its import name.
        path: The file.
        tree: What is in it.
        source: Its text.
    """

    name: str
    path: Path
    tree: ast.Module
    source: str


@dataclass(frozen=True)
class Argument:
    """One parameter of a factory.

    Attributes:
        name: Its name.
        default: Its default where that is a plain value; None where there is none, or another.
        has_default: Whether the factory does without it.
        tunable: Whether its name says that it is tuned.
    """

    name: str
    default: Any = None
    has_default: bool = False
    tunable: bool = False


@dataclass(frozen=True)
class Factory:
    """A function that makes a kernel.

    Attributes:
        module, name, line: Where it is.
        frontend: ``"tilelang"`` or ``"tvm"``.
        arguments: Its parameters; of an eager kernel the sizes that it declares, too, and none of its tensors.
        decorated: Whether TileLang's decorator says the outputs and passes.
        configs: ``"module:name"`` of its configs, where ``@autotune`` names them.
        literal: The configs themselves, where they stand in the decorator.
        reference: ``"module:name"`` of a function that looks like its reference.
        remarks: What a reader must know of it.
    """

    module: str
    name: str
    line: int
    frontend: str
    arguments: tuple[Argument, ...] = ()
    decorated: bool = False
    configs: str | None = None
    literal: tuple[dict[str, Any], ...] | None = None
    reference: str | None = None
    remarks: tuple[str, ...] = ()

    @property
    def spelled(self) -> str:
        return f"{self.module}:{self.name}"


@dataclass
class _Names:
    """What a module's names mean: ``T`` is ``tilelang.language``, ``jit`` is ``tilelang.jit``."""

    meaning: dict[str, str] = field(default_factory=dict)

    def note(self, node: ast.AST) -> None:
        if isinstance(node, ast.Import):
            for alias in node.names:
                self.meaning[alias.asname or alias.name.partition(".")[0]] = (
                    alias.name if alias.asname else alias.name.partition(".")[0]
                )
        elif isinstance(node, ast.Assign) and len(node.targets) == 1 and isinstance(node.targets[0], ast.Name):
            # tilelang = tlaot.tilelang_for(__name__), and T = tilelang.language after it.
            value = self.resolve(node.value)
            if isinstance(node.value, ast.Call) and value == "tlaot.tilelang_for":
                self.meaning[node.targets[0].id] = "tilelang"
            elif value.partition(".")[0] == "tilelang" and isinstance(node.value, ast.Attribute):
                self.meaning[node.targets[0].id] = value
        elif isinstance(node, ast.ImportFrom) and node.module and not node.level:
            for alias in node.names:
                self.meaning[alias.asname or alias.name] = f"{node.module}.{alias.name}"

    def resolve(self, node: ast.expr) -> str:
        """The full name of what an expression names, ``"tilelang.jit"``; of a call, of what it calls."""
        if isinstance(node, ast.Call):
            return self.resolve(node.func)
        if isinstance(node, ast.Attribute):
            return f"{self.resolve(node.value)}.{node.attr}"
        return self.meaning.get(node.id, node.id) if isinstance(node, ast.Name) else ""


def read_modules(root: Path, package: str) -> tuple[list[Module], list[str]]:
    """The modules of a package, and those that cannot be read, as messages.

    Args:
        root: Folder that the package is imported from.
        package: Its import name.
    """
    place = root.joinpath(*package.split("."))
    files = sorted(place.rglob("*.py")) if place.is_dir() else [place.with_suffix(".py")]
    modules, troubles = [], []
    for path in files:
        inside = path.relative_to(root)
        if {"tests", "test", "_tlaot"} & set(inside.parts[:-1]) or not _importable(inside):
            continue
        parts = inside.with_suffix("").parts
        name = ".".join(parts[:-1] if parts[-1] == "__init__" else parts)
        try:
            source = path.read_text(encoding="utf-8")
            modules.append(Module(name, path, ast.parse(source), source))
        except (OSError, ValueError, SyntaxError) as error:
            troubles.append(f"{inside}: cannot be read ({error})")
    return modules, troubles


def _importable(inside: Path) -> bool:
    return all(part.isidentifier() for part in inside.with_suffix("").parts)


def find_factories(modules: Sequence[Module]) -> tuple[list[Factory], list[str]]:
    """Factories in order of the files, and what looks like a kernel but can be none, as messages."""
    functions = {(module.name, node.name) for module in modules for node in _functions(module.tree)}
    factories: list[Factory] = []
    troubles: list[str] = []
    for module in modules:
        names = _Names()
        for node in ast.walk(module.tree):
            names.note(node)
        for function in _functions(module.tree):
            found = _look_at(function, module, names)
            if isinstance(found, str):
                troubles.append(f"{module.path.name}:{function.lineno}: {function.name} {found}")
            elif found is not None:
                factories.append(_with_reference(found, functions))
    return _without_called(factories, modules), troubles


def _functions(tree: ast.Module) -> Iterator[ast.FunctionDef]:
    """Functions at the top level, also below an ``if`` or a ``try`` (where a frontend is optional)."""
    waiting: list[ast.AST] = [tree]
    while waiting:
        node = waiting.pop(0)
        for child in ast.iter_child_nodes(node):
            if isinstance(child, ast.FunctionDef):
                yield child
            elif isinstance(child, (ast.If, ast.Try, ast.With)):
                waiting.append(child)


def _look_at(function: ast.FunctionDef, module: Module, names: _Names) -> Factory | str | None:
    decorators = {names.resolve(node): node for node in function.decorator_list}
    if any(_is_prim_func(name) for name in decorators):
        return "is a PrimFunc, not a factory: put it into a function that takes its sizes and returns it"
    own = {
        name.rpartition(".")[2]: node
        for name, node in decorators.items()
        if name.partition(".")[0] in ("tilelang", "tlaot") and name.rpartition(".")[2] in _DECORATORS
    }
    frontend = "tilelang" if own else _frontend_of(function, names)
    if frontend is None:
        return None
    eager = bool(own) and not _has_prim_func(function, names) and _opens_kernel(function, names)
    factory = Factory(
        module.name,
        function.name,
        function.lineno,
        frontend,
        tuple(_eager_arguments(function, module, names) if eager else _arguments(function)),
        decorated="jit" in own or "kernel" in own,
        remarks=tuple(_remarks(function)),
    )
    return _with_configs(factory, own["autotune"], module, names) if "autotune" in own else factory


def _is_prim_func(name: str) -> bool:
    return name.partition(".")[0] in (*_TILELANG, *_TVM) and name.endswith(".prim_func")


def _has_prim_func(function: ast.FunctionDef, names: _Names) -> bool:
    return any(
        _is_prim_func(names.resolve(decorator))
        for node in ast.walk(function)
        if isinstance(node, ast.FunctionDef) and node is not function
        for decorator in node.decorator_list
    )


def _opens_kernel(function: ast.FunctionDef, names: _Names) -> bool:
    calls = [names.resolve(node) for node in ast.walk(function) if isinstance(node, ast.Call)]
    return any(name.partition(".")[0] in _TILELANG and name.endswith(".Kernel") for name in calls)


def _frontend_of(function: ast.FunctionDef, names: _Names) -> str | None:
    """That of the PrimFuncs which a plain function defines and returns, or makes of a tensor expression."""
    returned = {
        node.value.id if isinstance(node.value, ast.Name) else names.resolve(node.value)
        for node in ast.walk(function)
        if isinstance(node, ast.Return) and node.value is not None
    }
    for node in ast.walk(function):
        if isinstance(node, ast.FunctionDef) and node is not function and node.name in returned:
            for decorator in node.decorator_list:
                name = names.resolve(decorator)
                if _is_prim_func(name):
                    return "tilelang" if name.partition(".")[0] in _TILELANG else "tvm"
    if any(name.partition(".")[0] in _TVM and name.endswith("create_prim_func") for name in returned):
        return "tvm"
    return None


def _arguments(function: ast.FunctionDef) -> Iterator[Argument]:
    given = function.args
    positional = [*given.posonlyargs, *given.args]
    defaults: list[ast.expr | None] = [None] * (len(positional) - len(given.defaults))
    for argument, default in zip(positional, [*defaults, *given.defaults], strict=True):
        yield _argument(argument, default)
    for argument, default in zip(given.kwonlyargs, given.kw_defaults, strict=True):
        yield _argument(argument, default)


def _argument(argument: ast.arg, default: ast.expr | None) -> Argument:
    value = None
    if default is not None:
        try:
            value = ast.literal_eval(default)
        except (ValueError, TypeError, SyntaxError):
            pass
    plain = value if isinstance(value, (bool, int, float, str)) else None
    return Argument(argument.arg, plain, default is not None, bool(_TUNABLE.search(argument.arg)))


def _eager_arguments(function: ast.FunctionDef, module: Module, names: _Names) -> Iterator[Argument]:
    """What an eager kernel is made for: the sizes that ``T.const`` declares, and parameters that are no tensors."""
    tensors = {
        node.target.id
        for node in ast.walk(function)
        if isinstance(node, ast.AnnAssign) and isinstance(node.target, ast.Name) and _is_tensor(node.annotation, names)
    }
    for name in constants_of(ast.get_source_segment(module.source, function) or ""):
        yield Argument(name)
    by_name = {argument.arg: argument for argument in [*function.args.args, *function.args.kwonlyargs]}
    for argument in _arguments(function):
        annotation = by_name[argument.name].annotation if argument.name in by_name else None
        if argument.name not in tensors and not (annotation is not None and _is_kernels_own(annotation, names)):
            yield argument


def _is_tensor(annotation: ast.expr, names: _Names) -> bool:
    inner = annotation.value if isinstance(annotation, ast.Subscript) else annotation
    return names.resolve(inner).partition(".")[0] in _TILELANG


def _is_kernels_own(annotation: ast.expr, names: _Names) -> bool:
    """A tensor, or a scalar like ``T.float32`` that each call gives."""
    return _is_tensor(annotation, names)


def _remarks(function: ast.FunctionDef) -> Iterator[str]:
    if function.args.vararg or function.args.kwarg:
        yield "takes *args or **kwargs, which shapes cannot name: name the arguments, or wrap it"
    if function.args.posonlyargs:
        yield "has positional-only arguments, and is called with keywords: take the / out"
    if function.name.startswith("_"):
        yield "has a private name; users will call it without the underscore"


def _with_configs(factory: Factory, decorator: ast.expr, module: Module, names: _Names) -> Factory:
    """With what ``@autotune(configs=...)`` says."""
    given = {word.arg: word.value for word in decorator.keywords} if isinstance(decorator, ast.Call) else {}
    if isinstance(decorator, ast.Call) and decorator.args:
        given.setdefault("configs", decorator.args[0])
    configs = given.get("configs")
    if configs is None:
        return factory
    value: Any = None
    try:
        value = ast.literal_eval(configs)
    except (ValueError, TypeError, SyntaxError):
        pass
    if isinstance(value, list) and value and all(isinstance(one, dict) for one in value):
        return replace(factory, literal=tuple(value))
    # get_configs and get_configs() alike: tlaot calls what can be called.
    named = configs.func if isinstance(configs, ast.Call) and not configs.args and not configs.keywords else configs
    if isinstance(named, ast.Name):
        meaning = names.meaning.get(named.id)
        return replace(factory, configs=_spell(meaning) if meaning else f"{module.name}:{named.id}")
    remark = (
        f"its configs are {ast.unparse(configs)[:60]!r}: give that a name, a function or a list, and name it as configs"
    )
    return replace(factory, remarks=(*factory.remarks, remark))


def _spell(full: str) -> str:
    module, _, name = full.rpartition(".")
    return f"{module}:{name}"


def _with_reference(factory: Factory, functions: set[tuple[str, str]]) -> Factory:
    """With the function that by its name is the reference: in its own module, else anywhere in the package."""
    stem = factory.name.strip("_")
    stems = dict.fromkeys([stem, re.sub(r"_(kernel|factory|func|impl|tl|fwd)$", "", stem)])
    wanted = [pattern.format(one) for one in stems for pattern in _REFERENCES]
    for name in [*wanted, *_GENERAL_REFERENCES]:
        if (factory.module, name) in functions:
            return replace(factory, reference=f"{factory.module}:{name}")
    for name in wanted:
        elsewhere = sorted(module for module, function in functions if function == name)
        if elsewhere:
            return replace(factory, reference=f"{elsewhere[0]}:{name}")
    # A module of references has them under the kernels' own names.
    for module, name in sorted(functions):
        if name in stems and module != factory.module and re.search(r"(^|\.)_?(ref|reference|references)$", module):
            return replace(factory, reference=f"{module}:{name}")
    return factory


def _without_called(factories: Sequence[Factory], modules: Sequence[Module]) -> list[Factory]:
    """Less plain functions that are only there for decorated ones of the same module, which call them to get their PrimFunc."""
    called: set[tuple[str, str]] = set()
    for module in modules:
        for function in _functions(module.tree):
            if (module.name, function.name) in {(one.module, one.name) for one in factories}:
                inner = [
                    node.func.id
                    for node in ast.walk(function)
                    if isinstance(node, ast.Call) and isinstance(node.func, ast.Name)
                ]
                called |= {(module.name, name) for name in inner if name != function.name}
    return [one for one in factories if one.decorated or (one.module, one.name) not in called]
