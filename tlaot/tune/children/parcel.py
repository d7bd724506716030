"""Objects that cross to a child process: functions of any module, closures and all.

A parcel is a file named in a request as ``"pickle:<path>"``. It is made by cloudpickle and lives in a build's scratch folder;
nothing of the kind is ever shipped.
"""

from __future__ import annotations

import importlib.machinery
import io
import linecache
import os
import pickle
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import fields
from pathlib import Path
from types import CodeType, FunctionType, ModuleType
from typing import Any

from ...errors import BuildError, SpecError

__all__ = ["PREFIX", "open_parcel", "write_parcel"]

PREFIX = "pickle:"

# What cloudpickle pickles by value is said for the whole process.
_LOCK = threading.Lock()


def write_parcel(value: Any, path: Path, where: str) -> str:
    """Pickle a value for a child.

    Functions of modules that the child can import go by name; those of ``__main__``, of a notebook, or of a module that was
    loaded from outside of ``sys.path`` go whole.

    Args:
        value: A function, or an object that holds functions.
        path: File to write.
        where: What to call the value in an error.

    Returns:
        The name by which a request refers to it.

    Raises:
        SpecError: The value holds something that cannot leave this process.
        BuildError: cloudpickle is not installed.
    """
    try:
        content = _dump(value)
    except (TypeError, pickle.PicklingError, ValueError, RecursionError, AttributeError) as error:
        raise SpecError(
            where,
            f"cannot be sent to the processes that compile and measure ({type(error).__name__}: {error})",
            "Make what it holds (locks, files, modules of C objects) inside the function, or define it in an importable module.",
        ) from error
    path.write_bytes(content)
    return f"{PREFIX}{path}"


def open_parcel(name: str) -> Any:
    """The value that a parcel holds; in the child."""
    import cloudpickle  # noqa: F401 - its reducers are needed by name

    # The sources come first and apart: loading the value may parse them already.
    sources, content = pickle.loads(Path(name.removeprefix(PREFIX)).read_bytes())
    for filename, text in sources.items():
        if filename not in linecache.cache:
            # Frontends parse a function's source; no modification time means that the entry is never dropped.
            linecache.cache[filename] = (len(text), None, text.splitlines(True), filename)
    return pickle.loads(content)


def _dump(value: Any) -> bytes:
    try:
        import cloudpickle
    except ModuleNotFoundError:
        raise BuildError(
            "tlaot",
            "cloudpickle, which takes functions to the processes that compile and measure, is not installed",
            'pip install "tlaot[tilelang]", or "tlaot[tvm]" for Apache TVM: what tunes comes with the extras.',
        ) from None

    class Pickler(cloudpickle.Pickler):  # type: ignore[misc]
        def __init__(self, file: io.BytesIO, whole: Callable[[str], None]) -> None:
            super().__init__(file)
            self.files: dict[str, str] = {}
            self._whole = whole

        def reducer_override(self, obj: Any) -> Any:
            if type(obj) is CodeType:
                self.files.setdefault(obj.co_filename, "".join(linecache.getlines(obj.co_filename)))
                make, arguments = cloudpickle.Pickler.dispatch_table[CodeType](obj)[:2]
                return _code_of_file, (make, arguments, obj.co_filename)
            if isinstance(obj, (FunctionType, type)):
                self._whole(str(getattr(obj, "__module__", "")))
            elif type(obj).__module__.startswith("tilelang."):
                if type(obj).__name__ == "JITFunc":
                    return _jit_func, (obj.orig_func,)
                if type(obj).__name__ == "JITImpl":
                    return type(obj), tuple(getattr(obj, item.name) for item in fields(obj))
            return super().reducer_override(obj)

    buffer = io.BytesIO()
    with _LOCK, _by_value(cloudpickle) as whole:
        pickler = Pickler(buffer, whole)
        pickler.dump(value)
    return pickle.dumps(({name: text for name, text in pickler.files.items() if text}, buffer.getvalue()))


def _code_of_file(make: Callable[..., CodeType], arguments: tuple[Any, ...], filename: str) -> CodeType:
    """A code object with the name of its file, which cloudpickle drops and ``inspect.getsource`` needs."""
    return make(*arguments).replace(co_filename=filename)


def _jit_func(function: Callable[..., Any]) -> Any:
    """TileLang's parsed form of a function, parsed anew: the one in hand holds every global of the name of an inner function,
    a kernel that was made before for instance, and TileLang's own compiled kernels."""
    from tilelang.language.eager import prim_func

    return prim_func(function, eager_jit=True)


@contextmanager
def _by_value(cloudpickle: Any) -> Iterator[Callable[[str], None]]:
    """Yields what is called with the name of a module, and has the module pickled whole if no child finds it."""
    seen: set[str] = set()
    registered: list[ModuleType] = []

    def whole(name: str) -> None:
        if name in seen:
            return
        seen.add(name)
        module = sys.modules.get(name)
        if module is None or _is_importable(module) or name in cloudpickle.list_registry_pickle_by_value():
            return
        cloudpickle.register_pickle_by_value(module)
        registered.append(module)

    try:
        yield whole
    finally:
        for module in registered:
            cloudpickle.unregister_pickle_by_value(module)


def _is_importable(module: ModuleType) -> bool:
    """Whether a child, with this process's ``sys.path``, gets the same file for the module's name."""
    file = getattr(module, "__file__", None)
    if file is None or module.__name__ == "__main__":
        return True  # built in; cloudpickle knows what to do with __main__
    parts = module.__name__.split(".")
    spec, path = None, None
    for count in range(1, len(parts) + 1):
        spec = _find(".".join(parts[:count]), path)
        if spec is None:
            return count > 1  # some packages make their submodules in other ways, in a child as here
        path = list(spec.submodule_search_locations or ())
    return spec is not None and spec.origin is not None and os.path.realpath(spec.origin) == os.path.realpath(file)


def _find(name: str, path: list[str] | None) -> importlib.machinery.ModuleSpec | None:
    """What an import would find; the finders of editable installs are asked as well."""
    for finder in sys.meta_path:
        spec = finder.find_spec(name, path)
        if spec is not None:
            return spec
    return None
