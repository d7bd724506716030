"""``tlaot completion``: a script for the user's shell that completes commands, options, choices and files.

It is made of the parser itself, so that it knows what the parser knows, and needs no Python when it runs: the names of kernels and
targets it reads from the ``tltune.toml`` of the current folder.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

from .parser import subcommands

__all__ = ["SHELLS", "add", "write_completion"]

_DESCRIPTION = "Prints a script that has the shell complete the commands and options of tlaot."
_EXAMPLES = """\
examples:
  tlaot completion bash >> ~/.bash_completion
  tlaot completion fish > ~/.config/fish/completions/tlaot.fish
  tlaot completion zsh > ~/.zfunc/_tlaot

zsh looks there with fpath+=~/.zfunc before compinit in ~/.zshrc.
"""


@dataclass(frozen=True)
class Level:
    """What can follow some words of a command line.

    Attributes:
        path: The commands so far, ``"lock merge"``; "" for none.
        commands: Help by name.
        options: Help by spelling.
        values: What an option takes, by spelling: choices, ``("FILES",)``, ``("KERNELS",)``, ``("TARGETS",)``, or nothing that can be
            foretold; options that take nothing are not in it.
        arguments: The same of arguments without options.
    """

    path: str
    commands: dict[str, str]
    options: dict[str, str]
    values: dict[str, tuple[str, ...]]
    arguments: tuple[str, ...]


_FILES = ("FILES",)
# What tltune.toml names: by option.
_NAMED = {"--kernel": ("KERNELS",), "--target": ("TARGETS",), "--no-launch": ("TARGETS",)}
# A choice that the parser checks itself, since the build side knows it: a test holds the two together.
_KNOWN = {"--executor": ("local", "ray")}


def add(commands: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """Add the command to the parser's."""
    parser = commands.add_parser(
        "completion", help="print a script that completes commands and options in a shell",
        description=_DESCRIPTION, epilog=_EXAMPLES,
    )  # fmt: skip
    parser.add_argument("shell", choices=SHELLS, help="the shell")
    parser.set_defaults(run=_complete)


def _complete(options: argparse.Namespace) -> int:
    from . import make_parser

    print(write_completion(make_parser(), options.shell), end="")
    return 0


def write_completion(parser: argparse.ArgumentParser, shell: str) -> str:
    """The script for a shell, one of :data:`SHELLS`."""
    return SHELLS[shell](list(_levels(parser, "")))


def _levels(parser: argparse.ArgumentParser, path: str) -> Iterator[Level]:
    commands, options, values = {}, {}, {}
    arguments: tuple[str, ...] = ()
    for action in parser._actions:
        if isinstance(action, argparse._SubParsersAction):
            commands = {choice.dest: _line(choice.help) for choice in action._choices_actions}
        elif action.option_strings:
            options.update(dict.fromkeys(action.option_strings, _line(action.help)))
            if action.nargs != 0:
                values.update(dict.fromkeys(action.option_strings, _taken(action)))
        else:
            arguments += _taken(action)
    yield Level(path, commands, options, values, tuple(dict.fromkeys(arguments)))
    for name, child in subcommands(parser):
        yield from _levels(child, f"{path} {name}".strip())


def _taken(action: argparse.Action) -> tuple[str, ...]:
    if action.choices is not None:
        return tuple(map(str, action.choices))
    for option in action.option_strings:
        if option in _NAMED or option in _KNOWN:
            return {**_NAMED, **_KNOWN}[option]
    words = set(str(action.metavar or action.dest).upper().replace("[", "").replace("]", "").split("|"))
    return (
        _FILES
        if action.type is Path or words & {"FILE", "DIR", "WHEEL", "LOCK", "FOLDER", "PATH", "OLD", "NEW", "COMMAND"}
        else ()
    )


def _line(text: str | None) -> str:
    return "" if text in (None, argparse.SUPPRESS) else " ".join(str(text).split()).replace("%%", "%")


def _quote(text: str) -> str:
    return "'" + text.replace("'", "'\\''") + "'"


# In bash and in zsh: a kernel's name stands at the start of a line; what else a shape is called with does not.
_READ_SPEC = """\
_tlaot_named() {
    [[ -r tltune.toml ]] || return 0
    case "$1" in
        KERNELS) sed -n 's/^[[:space:]]*name[[:space:]]*=[[:space:]]*"\\([A-Za-z_][A-Za-z0-9_]*\\)".*/\\1/p' tltune.toml ;;
        TARGETS) sed 's/#.*//' tltune.toml | grep -oE '"(llvm|c|cuda):[A-Za-z0-9_-]+"' | tr -d '"' ;;
    esac | sort -u
}
"""

_BASH = """\
# bash completion for tlaot; made by: tlaot completion bash
@READ_SPEC@_tlaot() {
    local cur='' prev='' path='' word i
    local commands='' options='' values='' arguments=''
    local -a typed=()
    # bash breaks words at colons and equal signs: cuda:sm_90a is one, --target=cuda two.
    for ((i = 0; i <= COMP_CWORD; i++)); do
        word="${COMP_WORDS[i]}"
        if ((i > 0)) && [[ $word == :* || $cur == *: ]]; then
            cur="$cur$word"
            typed[${#typed[@]}-1]="$cur"
        elif [[ $word == '=' ]]; then
            ((i < COMP_CWORD)) || typed+=('')
        else
            typed+=("$word")
        fi
        cur="${typed[${#typed[@]}-1]}"
    done
    prev="${typed[${#typed[@]}-2]:-}"
    for ((i = 1; i < ${#typed[@]} - 1; i++)); do
        word="${typed[i]}"
        case "${path:+$path }$word" in
@PATHS@) path="${path:+$path }$word" ;;
        esac
    done
    case "$path" in
@LEVELS@
    esac
    case "$path $prev" in
@VALUES@
        *) values='-' ;;
    esac
    COMPREPLY=()
    if [[ $values == - ]]; then
        if [[ $cur == -* ]]; then values="$options"; else values="$commands $arguments"; fi
    fi
    if [[ " $values " == *' FILES '* ]]; then
        values="${values//FILES/}"
        compopt -o filenames 2>/dev/null
        while IFS= read -r word; do COMPREPLY+=("$word"); done < <(compgen -f -- "$cur")
    fi
    if [[ $values == KERNELS || $values == TARGETS ]]; then values="$(_tlaot_named "$values" | tr '\\n' ' ')"; fi
    local -a words
    read -r -a words <<< "$values"
    for word in "${words[@]}"; do [[ $word == "$cur"* ]] && COMPREPLY+=("$word"); done
    if [[ $cur == *:* && ${COMP_WORDBREAKS-} == *:* ]]; then
        for ((i = 0; i < ${#COMPREPLY[@]}; i++)); do COMPREPLY[i]="${COMPREPLY[i]#"${cur%"${cur##*:}"}"}"; done
    fi
    return 0
}
complete -F _tlaot tlaot
"""


def _write_bash(levels: list[Level]) -> str:
    paths = " | ".join(_quote(level.path) for level in levels if level.path) or "''"
    cases = [
        f"        {_quote(level.path)}) commands={_quote(' '.join(level.commands))} "
        f"options={_quote(' '.join(level.options))} arguments={_quote(' '.join(level.arguments))} ;;"
        for level in levels
    ]
    values = [
        f"        {_quote(f'{level.path} {option}')}) values={_quote(' '.join(taken))} ;;"
        for level in levels
        for option, taken in level.values.items()
    ]
    return _fill(_BASH, f"            {paths}", cases, values)


_ZSH = """\
#compdef tlaot
# zsh completion for tlaot; made by: tlaot completion zsh
@READ_SPEC@_tlaot() {
    local at='' word i
    local -a commands options values
    for ((i = 2; i < CURRENT; i++)); do
        word="${words[i]}"
        case "${at:+$at }$word" in
@PATHS@) at="${at:+$at }$word" ;;
        esac
    done
    case "$at ${words[CURRENT-1]}" in
@VALUES@
    esac
    case "$at" in
@LEVELS@
    esac
    if [[ "${words[CURRENT]}" == -* ]]; then
        _describe -o 'option' options
        return
    fi
    (( $#commands )) && _describe 'command' commands
    [[ " $values " == *' FILES '* ]] && _files
    values=("${(@)values:#FILES}")
    (( $#values )) && compadd -- $values
    return 0
}
if [[ "$funcstack[1]" == _tlaot ]]; then _tlaot "$@"; elif (( $+functions[compdef] )); then compdef _tlaot tlaot; fi
"""


def _write_zsh(levels: list[Level]) -> str:
    def described(items: dict[str, str]) -> str:
        return " ".join(_quote(name.replace(":", "\\:") + (f":{text}" if text else "")) for name, text in items.items())

    paths = " | ".join(_quote(level.path) for level in levels if level.path) or "''"
    cases = [
        f"        {_quote(level.path)}) commands=({described(level.commands)}) "
        f"options=({described(level.options)}) values=({' '.join(map(_quote, level.arguments))}) ;;"
        for level in levels
    ]
    values = [
        f"        {_quote(f'{level.path} {option}')}) {_zsh_values(taken)}; return ;;"
        for level in levels
        for option, taken in level.values.items()
    ]
    return _fill(_ZSH, f"            {paths}", cases, values)


def _zsh_values(taken: tuple[str, ...]) -> str:
    if taken in _NAMED.values():
        return f'compadd -- ${{(f)"$(_tlaot_named {taken[0]})"}}'
    return "_files" if taken == _FILES else f"compadd -- {' '.join(map(_quote, taken))}" if taken else "true"


def _fill(script: str, paths: str, levels: list[str], values: list[str]) -> str:
    filled = script.replace("@PATHS@", paths).replace("@READ_SPEC@", _READ_SPEC)
    return filled.replace("@LEVELS@", "\n".join(levels)).replace("@VALUES@", "\n".join(values))


_FISH = """\
# fish completion for tlaot; made by: tlaot completion fish
function __tlaot_at
    set -l at
    for word in (commandline -opc)[2..-1]
        switch "$at $word"
            case @PATHS@
                set at (string trim "$at $word")
        end
    end
    test "$at" = "$argv[1]"
end
function __tlaot_named
    test -r tltune.toml; or return 0
    switch $argv[1]
        case KERNELS
            sed -n 's/^[[:space:]]*name[[:space:]]*=[[:space:]]*"\\([A-Za-z_][A-Za-z0-9_]*\\)".*/\\1/p' tltune.toml | sort -u
        case TARGETS
            sed 's/#.*//' tltune.toml | grep -oE '"(llvm|c|cuda):[A-Za-z0-9_-]+"' | tr -d '"' | sort -u
    end
end
complete -c tlaot -f
"""


def _write_fish(levels: list[Level]) -> str:
    paths = " ".join(
        _quote(f"{parent} {name}") for parent, _, name in (level.path.rpartition(" ") for level in levels if level.path)
    )
    lines = [_FISH.replace("@PATHS@", paths)]
    for level in levels:
        at = f"complete -c tlaot -n {_quote(f'__tlaot_at {_quote_fish(level.path)}')}"
        lines += [f"{at} -a {name} -d {_quote_fish(text)}" for name, text in level.commands.items()]
        for option, text in level.options.items():
            kind = f"-l {option[2:]}" if option.startswith("--") else f"-s {option[1:]}"
            lines.append(f"{at} {kind} -d {_quote_fish(text)}{_fish_value(level.values.get(option))}")
        if level.arguments:
            choices = [word for word in level.arguments if word != "FILES"]
            lines.append(at + (" -F" if "FILES" in level.arguments else "") + _fish_words(choices))
    return "\n".join(lines) + "\n"


def _fish_value(taken: tuple[str, ...] | None) -> str:
    if taken is None:
        return ""
    if taken in _NAMED.values():
        return f' -x -a "(__tlaot_named {taken[0]})"'
    return " -r -F" if taken == _FILES else " -x" + _fish_words(list(taken))


def _fish_words(words: list[str]) -> str:
    # fish evaluates the list once more.
    escaped = ("'" + word.replace("\\", "\\\\").replace("'", "\\'") + "'" for word in words)
    return f" -a {_quote_fish(' '.join(escaped))}" if words else ""


def _quote_fish(text: str) -> str:
    return '"' + text.replace("\\", "\\\\").replace('"', '\\"').replace("$", "\\$") + '"'


SHELLS: dict[str, Callable[[list[Level]], str]] = {"bash": _write_bash, "zsh": _write_zsh, "fish": _write_fish}
