"""Write docs/reference: pages made of the code's own tables, parser, signatures and docstrings.

    python docs/generate.py            write what is not current
    python docs/generate.py --check    write nothing; exit 1 and name the pages that are not current

Needs tlaot importable, as installed or with PYTHONPATH=. from a checkout, and nothing else. A test runs the check.
"""

from __future__ import annotations

import argparse
import ast
import enum
import importlib.util
import inspect
import re
import sys
import textwrap
from collections.abc import Callable, Iterator
from pathlib import Path
from types import ModuleType
from typing import Any

import tlaot
from tlaot.cli import STATUSES, make_parser
from tlaot.cli.parser import failing_of, passed_on_by, subcommands

HERE = Path(__file__).resolve().parent
# For the commands and the other half of the run time; what users call is the rest.
INTERNAL = {"weigh", "binary_of", "cpu_level_of", "module_of", "retuned_for", "way_of"}
NOTE = "<!-- Made by docs/generate.py of the code itself: change that, and run it again. -->"


def main(words: list[str]) -> int:
    options = argparse.ArgumentParser(description=__doc__)
    options.add_argument("--check", action="store_true")
    check = options.parse_args(words).check
    stale = []
    for name, write in PAGES.items():
        path, text = HERE / "reference" / name, write()
        if not path.is_file() or path.read_text(encoding="utf-8") != text:
            stale.append(name)
            if not check:
                path.write_text(text, encoding="utf-8")
    for name in stale:
        print(f"docs/reference/{name}: {'is not current: python docs/generate.py' if check else 'written'}")
    return 1 if check and stale else 0


def page(title: str, *lines: str) -> str:
    return "\n".join([NOTE, "", f"# {title}", "", *lines]).rstrip() + "\n"


def table(header: tuple[str, ...], rows: list[tuple[str, ...]]) -> list[str]:
    cells = [tuple(" ".join(cell.split()).replace("|", "\\|") for cell in row) for row in rows]
    return [f"| {' | '.join(header)} |", f"|{'---|' * len(header)}", *(f"| {' | '.join(row)} |" for row in cells), ""]


def spec_page() -> str:
    from tlaot.tune.specs.keys import TABLES

    below = {
        "[tlaot]": "Once, for the whole package.",
        '[target."cuda:sm_90a"]': "Of one target; may be left out.",
        "[[kernel]]": "One table a kernel. Two with one name and other targets, or other shapes, are one kernel to its callers.",
        "profile": "A table in a kernel's: `profile = { rep = 200 }`, or `[kernel.profile]` below it.",
        "budget": "A table in a kernel's: `budget = { trials = 200 }`.",
        "supply": "A table in a kernel's: `supply = { ranges = { index = [0, 1024] } }`.",
    }
    lines = [
        "The file beside `pyproject.toml` that says what is tuned; or the one that `[tool.tlaot] spec` in `pyproject.toml` names. A key may",
        'be written with `-` or `_`. A key that is not here is an error, with the nearest that is. What `"module:function"` names must be',
        "importable from the project, or installed. [The one of this repository](../../tltune.toml) has every key, with comments.",
        "",
    ]
    for heading, keys in TABLES:
        lines += [f"## `{heading}`", "", below[heading], ""]
        lines += table(
            ("key", "takes", "default", "meaning"),
            [
                (f"`{key.name}`" if " " not in key.name else key.name, _values(key), _code(key.default), key.meaning)
                for key in keys
            ],
        )
    lines += [
        "## Targets",
        "",
        "| target | |",
        "|---|---|",
        "| `llvm:x86-64`, `-v2`, `-v3`, `-v4` | Apache TVM on the CPU; plain `llvm` is `-v3` (AVX2), `-v4` has AVX-512. Several can be in one wheel |",
        "| `c:x86-64`, `-v2`, `-v3`, `-v4` | TileLang on the CPU |",
        "| `cuda:sm_90a` and the like | TileLang or Apache TVM on a GPU; `a` code runs on that very architecture, `f` code on its family |",
    ]
    return page("`tltune.toml`", *lines)


def _values(key: Any) -> str:
    return " ".join(f"`{value}`" for value in key.values) if key.values else key.takes


def _code(text: str) -> str:
    return (
        f"`{text}`"
        if re.fullmatch(r"[\w.]+|\".*\"|\[\]|\[\{\}\]|\{\}", text) and text not in ("required", "none")
        else text
    )


def commands_page() -> str:
    parser = make_parser()
    lines = [
        "`tlaot` and `python -m tlaot` are the same. Each command has `--help`. Options are not abbreviated. Errors go to standard error: where,",
        "what, and on a line of its own what to do; an error of `tltune.toml` with its line.",
        "",
        "| exit status | |",
        "|--:|---|",
        *(f"| {status} | {meaning} |" for status, meaning in STATUSES.items()),
        "",
        "0, 2, 70 and 130 are of every command. The others, and which commands have `--json`:",
        "",
        *table(("command", "exit status 1 where", "`--json`"), list(_statuses(parser, "tlaot"))),
    ]
    for name, command in subcommands(parser):
        lines += _command(f"tlaot {name}", command, "##")
    return page("Commands", *lines)


def _statuses(parser: argparse.ArgumentParser, path: str) -> Iterator[tuple[str, str, str]]:
    """A row a command that can be run: when it ends with 1, or with another program's status, and whether it prints JSON."""
    children = list(subcommands(parser))
    for name, child in children:
        yield from _statuses(child, f"{path} {name}")
    if not children:
        passed = passed_on_by(parser)
        ends = failing_of(parser) or (f"({passed})" if passed else "never")
        yield f"`{path}`", ends, "yes" if "--json" in parser._option_string_actions else ""


def _command(path: str, parser: argparse.ArgumentParser, mark: str) -> Iterator[str]:
    yield from (f"{mark} {path}", "")
    children = list(subcommands(parser))
    text = parser.description or next((a.help for a in _choices(path) if a.dest == path.split()[-1]), "") or ""
    yield from (_sentence(" ".join(text.split())), "")
    rows = []
    for action in parser._actions:
        if isinstance(action, (argparse._SubParsersAction, argparse._HelpAction)):
            continue
        name = ", ".join(f"`{option}`" for option in action.option_strings) or f"`{action.metavar or action.dest}`"
        if action.option_strings and action.nargs != 0:
            taken = action.metavar or ("|".join(map(str, action.choices)) if action.choices else action.dest.upper())
            name += f" `{taken}`"
        elif not action.option_strings and action.choices:
            name = " ".join(f"`{choice}`" for choice in action.choices)
        many = {"*": " (any number)", "+": " (one or more)", "?": " (may be left out)"}.get(str(action.nargs), "")
        rows.append((name + many, (action.help or "").replace("%%", "%")))
    if rows:
        yield from table(("argument", "meaning"), rows)
    if failing_of(parser):
        yield from (f"Exit status 1 where {failing_of(parser)}.", "")
    examples = (parser.epilog or "").replace("%%", "%").partition("examples:\n")[2]
    if examples:
        yield from ("```", textwrap.dedent("  " + examples.lstrip()).rstrip(), "```", "")
    for name, child in children:
        yield from _command(f"{path} {name}", child, mark + "#")


def _choices(path: str) -> list[argparse.Action]:
    """Pseudo-actions of the commands beside the one at the path, which have their help."""
    parser: argparse.ArgumentParser = make_parser()
    for name in path.split()[1:-1]:
        parser = dict(subcommands(parser))[name]
    (found,) = [action for action in parser._actions if isinstance(action, argparse._SubParsersAction)]
    return list(found._choices_actions)


def _sentence(text: str) -> str:
    return text[:1].upper() + text[1:] + ("" if text.endswith(".") else ".")


def settings_page() -> str:
    settings = _settings()
    both = [
        (f"`-C {key}=`", f"`TLAOT_{key.upper()}`", _code(default), meaning)
        for key, (default, meaning) in settings.KEYS.items()
    ]
    variables = {**settings.STAGE_VARIABLES, **settings.RUN_TIME_VARIABLES}
    return page(
        "Settings",
        "## Of a build",
        "",
        "`-C` is for the backend `tlaot.build_hooks`; with `setuptools.build_meta` the variables count alone. `-C` goes before a variable. A",
        "setting or a `TLAOT_` variable that is not on this page is an error of a build, with the nearest that is.",
        "",
        *table(("setting", "variable", "default", "meaning"), both),
        "Those of setuptools go through: " + ", ".join(f"`{key}`" for key in settings.SETUPTOOLS_KEYS) + ".",
        "",
        "## In Python, and at run time",
        "",
        "Read when they are needed, never at import.",
        "",
        *table(("variable", "meaning"), [(f"`{name}`", meaning) for name, meaning in variables.items()]),
        "Of the autotuner's, `TILELANG_...` counts where `TLAOT_...` is unset.",
        "",
        "## Of others",
        "",
        *table(
            ("variable", "meaning"),
            [
                ("`SOURCE_DATE_EPOCH`", "the date of the files in a wheel; without it a fixed one"),
                ("`CC`, `CUDA_HOME`, `CUDA_PATH`, `PATH`", "where compilers are looked for"),
                ("`TMPDIR`", "where builds and NVRTC's precompiled headers have their temporary files"),
                ("`NO_COLOR`, `FORCE_COLOR`, `TERM=dumb`", "no colours, colours in a pipe, no colours"),
                ("`GITHUB_ACTIONS`", "`true`: errors, findings and doubtful times become annotations"),
                ("`GITHUB_STEP_SUMMARY`", "the file that `tlaot tune` and builds append a table of what ships to"),
            ],
        ),
    )


def _settings() -> ModuleType:
    """``tlaot.build_hooks.settings`` by its file: its package asks for setuptools, and in a checkout lies elsewhere."""
    installed = Path(tlaot.__file__).with_name("build_hooks") / "settings.py"
    path = installed if installed.is_file() else HERE.parent / "build_hooks" / "settings.py"
    spec = importlib.util.spec_from_file_location("tlaot.build_hooks_settings", path)
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module  # where its dataclasses look themselves up
    module.__package__ = "tlaot.build_hooks"
    spec.loader.exec_module(module)
    return module


def python_page() -> str:
    lines = [
        "What is here is public; other names of the package may change. `import tlaot` imports nothing else of it: what a name needs is",
        "imported when it is first used. Errors are all `tlaot.TlaotError`, and have `where`, `what` and `remedy`.",
        "",
    ]
    names = [name for name in tlaot.__all__ if not name.startswith("_")]
    values = {name: getattr(tlaot, name) for name in names}
    errors = {n: v for n, v in values.items() if inspect.isclass(v) and issubclass(v, Exception)}
    run_time = [n for n in names if n not in errors and not values[n].__module__.startswith("tlaot.autotuner")]
    tuning = [n for n in names if n not in errors and n not in run_time and n != "TensorSupplyType"]
    for heading, chosen in (("Run time", run_time), ("Tuning from Python", [*tuning, "TensorSupplyType"])):
        lines += [f"## {heading}", ""]
        for name in sorted(chosen, key=lambda name: (name[0].isupper(), name)):
            lines += _object(f"tlaot.{name}", values[name], "###")
    lines += ["## torch", "", *_torch(), "## Errors", ""]
    rows = [(f"`tlaot.{n}`", ", ".join(f"`{base}`" for base in _built_in(v)), _doc(v)[0]) for n, v in errors.items()]
    return page("Python", *lines, *table(("error", "also a", "raised where"), rows))


def _torch() -> Iterator[str]:
    """What ``tlaot.torch`` has, read from its source: to import it takes torch."""
    source = Path(tlaot.__file__).with_name("torch") / "library.py"
    for node in ast.parse(source.read_text(encoding="utf-8")).body:
        if isinstance(node, ast.FunctionDef) and node.name == "register":
            shown = (
                f"{node.name}({ast.unparse(node.args)}) -> {ast.unparse(node.returns)}" if node.returns else node.name
            )
            yield from ("### `tlaot.torch.register`", "", "```python", shown, "```", "")
            yield from _markdown(ast.get_docstring(node) or "")


def _built_in(error: type[Exception]) -> list[str]:
    """The built-in exceptions that an error is, too: the nearest of each line."""
    known = [
        base
        for base in error.__mro__
        if base.__module__ == "builtins" and base not in (Exception, BaseException, object)
    ]
    return [base.__name__ for base in known if not any(base is not other and base in other.__mro__ for other in known)]


def _object(path: str, value: Any, mark: str) -> Iterator[str]:
    yield from (f"{mark} `{path}`", "")
    if inspect.isclass(value) and issubclass(value, enum.Enum):
        yield from (*_doc(value), "Members: " + ", ".join(f"`{member.name}`" for member in value) + ".", "")
        return
    if inspect.isclass(value) and not value.__module__.startswith("tlaot.autotuner"):
        # Users get these and do not make them.
        yield from re.sub(r"Args:\n\n(- .*\n(  .*\n)*)+\n?", "", "\n".join(_doc(value))).split("\n")
    else:
        yield from ("```python", f"{path.rpartition('.')[2]}{_signature(value)}", "```", "")
        yield from _doc(value)
    if inspect.isclass(value):
        for name, member in vars(value).items():
            function = member.__func__ if isinstance(member, (classmethod, staticmethod)) else member
            if name.startswith("_") or not (inspect.isfunction(function) or isinstance(member, property)):
                continue
            if not inspect.getdoc(member) or name in INTERNAL:
                continue
            signature = "" if isinstance(member, property) else _signature(function)
            yield from (f"`.{name}{signature}`", "", *_quoted(_doc(function)), "")


def _quoted(lines: list[str]) -> list[str]:
    text = "\n".join(lines).strip("\n")
    return [f"> {line}".rstrip() for line in text.split("\n")]


def _signature(value: Any) -> str:
    """As it is written, whatever this Python's own way to show signatures."""
    try:
        signature = inspect.signature(value)
    except (TypeError, ValueError):
        return "(...)"
    parts, kinds = [], inspect.Parameter
    for parameter in signature.parameters.values():
        if parameter.name in ("self", "cls"):
            continue
        if parameter.kind is kinds.KEYWORD_ONLY and not any(part.startswith("*") for part in parts):
            parts.append("*")
        star = {kinds.VAR_POSITIONAL: "*", kinds.VAR_KEYWORD: "**"}.get(parameter.kind, "")
        note = "" if parameter.annotation is kinds.empty else f": {_annotation(parameter.annotation)}"
        default = repr(parameter.default)
        default = str(parameter.default) if isinstance(parameter.default, enum.Enum) else default
        default = (
            "..." if "object at 0x" in default or "factory" in default or default.startswith("<class") else default
        )
        parts.append(f"{star}{parameter.name}{note}" + ("" if parameter.default is kinds.empty else f" = {default}"))
    returns = signature.return_annotation
    shown = "" if inspect.isclass(value) or returns is signature.empty else f" -> {_annotation(returns)}"
    return f"({', '.join(parts)}){shown}"


def _annotation(value: Any) -> str:
    return value if isinstance(value, str) else inspect.formatannotation(value)


def _doc(value: Any) -> list[str]:
    return _markdown(inspect.getdoc(value) or "")


def _markdown(text: str) -> list[str]:
    """A docstring as Markdown: its sections (``Args:``, ``Raises:``) become lists."""
    lines: list[str] = []
    item = re.compile(r"    ([\w, *.:`]+?): (.*)")
    section, code = "", False
    for line in text.replace("\\", "\\\\").splitlines():
        heading = re.fullmatch(r"(Args|Returns|Raises|Attributes|Yields):", line)
        found = item.fullmatch(line) if section in ("Args", "Raises", "Attributes") else None
        if heading is not None:
            section = heading[1]
            lines += ["", f"{section}:", ""]
        elif found is not None:
            lines.append(f"- `{found[1]}`: {found[2]}")
        elif section and line.startswith("    "):
            lines.append(f"  {line.strip()}" if section != "Returns" else line.strip())
        elif line.startswith("    ") != code and line.strip():
            code = not code
            lines += ["```python", line.strip()] if code else ["```", "", line]
        else:
            section = section if line.strip() == "" else ""
            lines.append(line.removeprefix("    ") if code else line)
    text = "\n".join([*lines, *(["```"] if code else []), ""])
    text = re.sub(r":(?:class|func|data|meth|attr|mod|exc):`~?(?:[\w.]*\.)?(\w+)`", r"`\1`", text)
    text = re.sub(r"(?<!`)``(?!`)", "`", text)
    return re.sub(r"\n{3,}", "\n\n", text).split("\n")


def manifest_page() -> str:
    from tlaot import manifest

    return page(
        "The manifest",
        "`<package>/_tlaot/manifest.json` lists what a package ships. It is written by builds, read by `tlaot.load`, C++ programs and the",
        "commands; `tlaot inspect --json` is the way for programs of others. It is JSON with sorted keys, a line a variant, and carries a",
        "digest of itself; each variant's folder has its own entry as `variant.json`. Formats: "
        f"{manifest.FORMAT_VERSION}, and {manifest.BUCKETS_VERSION} where variants serve ranges of sizes.",
        "",
        "    my_package/_tlaot/manifest.json",
        "    my_package/_tlaot/<kernel>/<target>/<workload>/executable.so, variant.json, best_config.json, latency.json, ...",
        "",
        *_classes(
            [manifest.Manifest, manifest.Kernel, manifest.Variant, manifest.Bucket, manifest.Param, manifest.FileDigest]
        ),
    )


def lock_page() -> str:
    from tlaot.tune.locks import lock, lock_file
    from tlaot.tune.measuring.timing import Timing

    return page(
        "`tltune.lock`",
        "What tuning found, as data that is committed: [deploying.md](../deploying.md#the-lock) says how it is used. `tlaot tune` writes it,",
        "`tlaot lock` looks after it. It is JSON with a line a field, and a line a candidate; entries are sorted by kernel, target and shape,",
        "so that it reads well in a diff and merges by lines. Each entry has a digest of itself: one that was edited by hand is known.",
        f"Version {lock_file.LOCK_VERSION}.",
        "",
        *_classes([lock.Entry, lock.Tried, Timing, lock.Sized, lock.Part]),
    )


def _classes(classes: list[type]) -> Iterator[str]:
    for one in classes:
        yield from (f"## {one.__name__}", "", *_doc(one))


PAGES: dict[str, Callable[[], str]] = {
    "spec.md": spec_page,
    "commands.md": commands_page,
    "settings.md": settings_page,
    "python.md": python_page,
    "manifest.md": manifest_page,
    "lock.md": lock_page,
}

if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
