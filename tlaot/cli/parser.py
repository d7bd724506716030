"""The parser of the ``tlaot`` command: argparse, with a hint for what is misspelt."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Iterator, Sequence
from typing import Any, NoReturn

from ..errors import did_you_mean

__all__ = ["Parser", "add_json", "failing_of", "fails", "passed_on_by", "passes_on", "subcommands"]


class _Formatter(argparse.HelpFormatter):
    """Sets descriptions to the terminal's width, and leaves examples as they are."""

    def _fill_text(self, text: str, width: int, indent: str) -> str:
        if text.startswith("examples:"):
            return "\n".join(f"{indent}{line}".rstrip() for line in text.splitlines())
        return super()._fill_text(text, width, indent)


class Parser(argparse.ArgumentParser):
    """A parser whose errors name the nearest command, option or choice; so do those of its commands."""

    def __init__(self, **options: Any) -> None:
        options.setdefault("allow_abbrev", False)  # an option that comes later must not change what scripts mean
        options.setdefault("formatter_class", _Formatter)
        super().__init__(**options)

    def parse_args(self, args: Sequence[str] | None = None, namespace: Any = None) -> Any:  # type: ignore[override]
        words = list(sys.argv[1:] if args is None else args)
        found, extras = self.parse_known_args(words, namespace)
        if extras:
            parser = self._of(words)
            known = [option for action in parser._actions for option in action.option_strings]
            unknown = next((word for word in extras if word.startswith("-")), extras[0])
            hint = did_you_mean(unknown.partition("=")[0], known) if unknown.startswith("-") else ""
            parser.error(f"unknown argument {unknown}{hint}")
        return found

    def error(self, message: str) -> NoReturn:
        """As other errors of tlaot: what is wrong, then what to do, on a line of its own."""
        self.exit(2, f"{self.prog}: {message}\n{self.prog} --help says what there is.\n")

    def _check_value(self, action: argparse.Action, value: Any) -> None:
        if action.choices is not None and value not in action.choices:
            known = [str(choice) for choice in action.choices]
            what = "command" if isinstance(action, argparse._SubParsersAction) else "choice"
            message = f"there is no {what} {value!r}{did_you_mean(str(value), known)}"
            name = "/".join(action.option_strings) or str(action.metavar or action.dest)
            self.error(message if what == "command" else f"{name}: {message}")

    def _of(self, words: Sequence[str]) -> argparse.ArgumentParser:
        """The parser of the command that the words name."""
        parser: argparse.ArgumentParser = self
        for word in words:
            parser = dict(subcommands(parser)).get(word, parser)
        return parser


def add_json(parser: argparse.ArgumentParser, what: str) -> None:
    """Add ``--json``, which prints something as JSON."""
    parser.add_argument("--json", action="store_true", help=f"print {what} as JSON")


def fails(parser: argparse.ArgumentParser, when: str) -> None:
    """Say when a command's exit status is 1."""
    parser.set_defaults(fails=when)


def passes_on(parser: argparse.ArgumentParser, what: str) -> None:
    """Say which exit status of another program a command's may be."""
    parser.set_defaults(passes_on=what)


def passed_on_by(parser: argparse.ArgumentParser) -> str:
    """Which exit status of another program a command's may be; "" for none."""
    return str(parser.get_default("passes_on") or "")


def failing_of(parser: argparse.ArgumentParser) -> str:
    """When a command's exit status is 1; "" for never."""
    return str(parser.get_default("fails") or "")


def subcommands(parser: argparse.ArgumentParser) -> Iterator[tuple[str, argparse.ArgumentParser]]:
    """The commands of a parser, by name, in order."""
    for action in parser._actions:
        if isinstance(action, argparse._SubParsersAction):
            yield from action.choices.items()
