"""``tlaot include``: where the C++ headers are, and how to compile and link with them."""

from __future__ import annotations

import argparse
from pathlib import Path

from ..errors import LoadError

__all__ = ["add"]

_HELP = "print the folder of the C++ headers, or the flags to compile and link with them"
_EXAMPLES = """\
examples:
  tlaot include
  c++ $(tlaot include --cxxflags) serve.cc $(tlaot include --ldflags) -o serve
"""

HEADERS = Path(__file__).parents[1] / "include"


def add(commands: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """Add the command to the parser's."""
    parser = commands.add_parser("include", help=_HELP, description="Of <tlaot/tlaot.h>.", epilog=_EXAMPLES)
    which = parser.add_mutually_exclusive_group()
    which.add_argument("--cxxflags", action="store_true", help="flags of the compiler, with apache-tvm-ffi's headers")
    which.add_argument("--ldflags", action="store_true", help="flags of the linker, with the place of libtvm_ffi.so")
    parser.set_defaults(run=_include)


def _include(options: argparse.Namespace) -> int:
    if not (options.cxxflags or options.ldflags):
        print(HEADERS)
        return 0
    from tvm_ffi import libinfo

    try:
        if options.cxxflags:
            # Of some releases both are one folder.
            folders = dict.fromkeys([str(HEADERS), libinfo.find_include_path(), libinfo.find_dlpack_include_path()])
            print("-std=c++17", "-pthread", *(f"-I{folder}" for folder in folders))
        else:
            place = Path(libinfo.find_libtvm_ffi()).parent
            print(f"-pthread -L{place} -Wl,-rpath,{place} -ltvm_ffi -ldl")
    except RuntimeError as error:
        raise LoadError("apache-tvm-ffi", str(error), "Reinstall it.") from None
    return 0
