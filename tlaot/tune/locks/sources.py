"""Which of the author's modules a kernel is made of, and what they say: digests by module, for ``tltune.lock``.

Modules are followed from those that a kernel's entry names through every import statement that is written in them, inside functions
too, as far as they lie below the source root. Nothing is imported, so that every machine, with whatever is installed there,
sees the same. A package's ``__init__.py`` counts where a name is imported from it, not where the package is only on the way to
a module: a new version number in it says nothing of kernels. What is imported by other means is not seen; the digests of the
generated code, which the lock has as well, are the net below.
"""

from __future__ import annotations

import ast
import hashlib
import io
import tokenize
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path

from ..specs.spec import KernelSpec

__all__ = ["Known", "changed_modules", "digest_modules", "digest_text", "modules_of"]

# What formatted strings are made of from Python 3.12 (t"" from 3.14); before, and here, they are one token.
_OPENING = {getattr(tokenize, name, -1) for name in ("FSTRING_START", "TSTRING_START")} - {-1}
_CLOSING = {getattr(tokenize, name, -1) for name in ("FSTRING_END", "TSTRING_END")} - {-1}

# Hex digits of a digest; a lock has one a module and a workload, and nobody forges them.
_DIGITS = 12


def modules_of(kernel: KernelSpec) -> list[str]:
    """The modules that a kernel's entry names."""
    names = (
        kernel.factory,
        kernel.reference,
        kernel.inputs,
        kernel.shapes,
        kernel.configs,
        kernel.manual_check,
    )
    return sorted({name.partition(":")[0] for name in names if isinstance(name, str)})


# What is known of files: the digest, and the modules that are imported.
Known = dict[Path, tuple[str, tuple[str, ...]]]


def digest_modules(root: Path, modules: Iterable[str], known: Known | None = None) -> dict[str, str]:
    """Digests of some modules and all that they import, by dotted name, as far as they lie below a folder.

    Args:
        root: The folder that the modules are imported from.
        modules: Dotted names.
        known: What is known of files there, which is added to: for several calls in a row.
    """
    known = {} if known is None else known
    found: dict[str, str] = {}
    waiting = list(modules)
    while waiting:
        name = waiting.pop()
        path = _locate(root, name)
        if name in found or path is None:
            continue
        if path not in known:
            try:
                data = path.read_bytes()
            except OSError:
                continue  # whoever imports it will say so
            known[path] = digest_text(data), tuple(_imports(data, name, path.name == "__init__.py", root))
        found[name], imports = known[path]
        waiting.extend(imports)
    return dict(sorted(found.items()))


def digest_text(data: bytes) -> str:
    """Digest of a Python source that takes no notice of comments, blank lines, trailing spaces and line ends."""
    try:
        text = _text(data)
        kept = _without_comments(text)
    except (SyntaxError, UnicodeDecodeError, tokenize.TokenError, LookupError):
        kept = data.replace(b"\r\n", b"\n").decode("latin-1")  # no Python that this version reads
    return hashlib.sha256(kept.encode("utf-8", "surrogatepass")).hexdigest()[:_DIGITS]


def _text(data: bytes) -> str:
    encoding, _ = tokenize.detect_encoding(io.BytesIO(data).readline)
    text = data.decode(encoding).replace("\r\n", "\n").replace("\r", "\n")
    return text if text.endswith("\n") else f"{text}\n"


def _without_comments(text: str) -> str:
    """The text less its comments, its line ends that end no statement, and the spaces before either.

    Tokens serve for their places alone: how a string is made of tokens differs among versions of Python.
    """
    lines = text.split("\n")
    starts = [0]
    for line in lines:
        starts.append(starts[-1] + len(line) + 1)
    kept: list[str] = []
    done = inside = 0
    for token in tokenize.generate_tokens(io.StringIO(text).readline):
        inside += (token.type in _OPENING) - (token.type in _CLOSING)
        if inside or token.type not in (tokenize.COMMENT, tokenize.NL, tokenize.NEWLINE):
            continue
        begin = starts[token.start[0] - 1] + token.start[1]
        piece = text[done:begin]
        kept.append(piece.rstrip(" \t\f"))
        if token.type == tokenize.NEWLINE:
            kept.append("\n")
        # A comment ends where its line does; so do the others, with the line end itself.
        done = starts[token.start[0]] - (1 if token.type == tokenize.COMMENT else 0)
    kept.append(text[done:].strip())
    return "".join(kept)


def _imports(data: bytes, module: str, is_package: bool, root: Path) -> Iterator[str]:
    """The modules that a module's import statements name; some may not exist."""
    try:
        tree = ast.parse(_text(data))
    except (SyntaxError, UnicodeDecodeError, LookupError, ValueError):
        return
    package = module if is_package else module.rpartition(".")[0]
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            for alias in node.names:
                yield alias.name
        elif isinstance(node, ast.ImportFrom):
            base = _resolve(node, package)
            if base is None:
                continue
            for alias in node.names:
                inner = f"{base}.{alias.name}" if base else alias.name
                # A name that is no module's comes from the module or package itself.
                yield inner if _locate(root, inner) is not None else base


def _resolve(node: ast.ImportFrom, package: str) -> str | None:
    """The module of a ``from`` statement; None where it points outside of everything."""
    if node.level == 0:
        return node.module or ""
    parts = package.split(".") if package else []
    if node.level - 1 > len(parts):
        return None
    base = parts[: len(parts) - (node.level - 1)]
    return ".".join([*base, node.module] if node.module else base)


def _locate(root: Path, name: str) -> Path | None:
    if not name:
        return None
    stem = root.joinpath(*name.split("."))
    for path in (stem / "__init__.py", stem.with_name(f"{stem.name}.py")):
        if path.is_file():
            return path
    return None


def changed_modules(old: Mapping[str, str], new: Mapping[str, str]) -> list[str]:
    """The modules whose digests differ, or that are on one side only."""
    return sorted(name for name in {*old, *new} if old.get(name) != new.get(name))
