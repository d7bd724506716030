"""Imported by Python when a process of a recorded command starts (``tlaot capture``): records it, and gives way to the user's own.

It finds tlaot by its own place, so that the processes of the command need not have it installed.
"""

import importlib.machinery
import importlib.util
import os
import sys


def _record() -> None:
    package = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
    if importlib.util.find_spec("tlaot") is None:
        # Under its name, without its folder on sys.path, which has other packages than this process is meant to see.
        spec = importlib.util.spec_from_file_location(
            "tlaot", os.path.join(package, "__init__.py"), submodule_search_locations=[package]
        )
        assert spec is not None and spec.loader is not None
        module = importlib.util.module_from_spec(spec)
        sys.modules["tlaot"] = module
        spec.loader.exec_module(module)
    from tlaot.capturing.watch import watch_by_environment

    watch_by_environment(os.environ)


def _give_way() -> None:
    """The sitecustomize that Python would have imported, were this one not in front of it."""
    own = os.path.dirname(os.path.abspath(__file__))
    places = [entry for entry in sys.path if os.path.abspath(entry or os.curdir) != own]
    spec = importlib.machinery.PathFinder.find_spec("sitecustomize", places)
    if spec is not None and spec.loader is not None:
        module = importlib.util.module_from_spec(spec)
        sys.modules["sitecustomize"] = module
        spec.loader.exec_module(module)


if os.environ.get("TLAOT_CAPTURE"):
    try:
        _record()
    except Exception as error:
        print(f"tlaot capture: this process is not recorded: {type(error).__name__}: {error}", file=sys.stderr)
_give_way()
