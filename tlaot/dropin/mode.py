"""Whether a package's ``tilelang`` is TileLang, or what stands in for it."""

from __future__ import annotations

import importlib
import importlib.util
import os
import sys
from collections.abc import Callable, Mapping
from functools import cache
from types import ModuleType
from typing import TYPE_CHECKING, Any

from ..errors import LoadError, PackageError, SpecError, did_you_mean
from ..runtime import load as loading
from ..runtime.places import PATH_VARIABLE, find_folders, find_homes
from ..runtime.policy import ON_MISS_VARIABLE
from .factory import PackagedFactory
from .kernel import JITKernel
from .scope import see
from .standin import StandIn, plain_functions, refuse

if TYPE_CHECKING:
    from ..runtime.load import Kernels
    from ..runtime.policy import OnMiss, Replacement

__all__ = ["VARIABLE", "kernel", "tilelang_for"]

VARIABLE = "TLAOT_DROPIN"
_CHOICES = ("auto", "packaged", "tilelang")

# Of what stands in for TileLang; its modules compare it at most.
_VERSION = "0.1.15"
_TOPS = ("tilelang", "tvm")


class Package:
    """One package with kernels, and how its factories are looked up.

    Args:
        name: Its import name.
        on_miss, fallback: As of :func:`tlaot.load`.
    """

    def __init__(
        self, name: str, on_miss: OnMiss | None = None, fallback: Mapping[str, Replacement] | None = None
    ) -> None:
        self.name = name
        self._given = on_miss, fallback
        self._kernels: Kernels | None = None

    def open(self) -> Kernels:
        """Its kernels, loaded at the first call of a factory."""
        found = self._kernels
        if found is None:
            found = self._kernels = loading.load(self.name, on_miss=self._given[0], fallback=self._given[1])
        return found

    @property
    def may_compile(self) -> bool:
        """Whether a key that is not packaged may be TileLang's to compile."""
        on_miss = self._given[0]
        return (on_miss or os.environ.get(ON_MISS_VARIABLE, "").strip()) == "jit" and _is_installed("tilelang")


def tilelang_for(name: str, *, on_miss: OnMiss | None = None, fallback: Mapping[str, Replacement] | None = None) -> Any:
    """TileLang for a package: its packaged kernels where it has some, else TileLang itself.

    In the ``__init__.py`` of a package, before it imports its own modules, in place of ``import tilelang``::

        import tlaot; tilelang = tlaot.tilelang_for(__name__)

    Modules of the package that are imported from then on see the same under ``import tilelang``, and they alone. In a module by itself it
    is that module's; write ``T = tilelang.language`` then.

    With ``TLAOT_DROPIN=tilelang`` it is TileLang whatever is packaged; with ``packaged`` never. In a build of tlaot's it is TileLang.

    Args:
        name: ``__name__`` of the package, or of a module in it.
        on_miss: What to do with keys and calls that nothing is packaged for, see :func:`tlaot.load`. ``"jit"`` has TileLang compile them,
            where it is installed; then it is imported with the package.
        fallback: As of :func:`tlaot.load`.

    Raises:
        SpecError: ``TLAOT_DROPIN`` is wrong.
        ImportError: It says ``tilelang``, which is not installed.
    """
    own = _package_of(name)
    package = Package(own or name.partition(".")[0], on_miss, fallback)
    if _is_real(own is not None):
        return importlib.import_module("tilelang")
    tops = _stand_ins(package) if not (own and package.may_compile) else _mixed(package)
    module = sys.modules.get(name)
    if module is None or hasattr(module, "__path__"):
        see(name, {top: found.at for top, found in tops.items()})
    return tops["tilelang"]


def kernel(function: Callable[..., Any] | None = None, **options: Any) -> Any:
    """``@tlaot.kernel``: ``@tilelang.jit`` for a function of a module that does not import TileLang, or whose factories are TVM's.

    Where the module's package has packaged kernels a call gives the one of its key; else the function is TileLang's (in a build of a TVM
    kernel, the function itself).

    Args:
        function: Takes what makes the kernel, returns a PrimFunc.
        **options: Of ``tilelang.jit``, ``out_idx`` for instance.
    """

    def decorate(function: Callable[..., Any]) -> Any:
        own = _package_of(function.__module__)
        if _is_real(own is not None):
            if loading.building and "tilelang" not in sys.modules:
                return function  # of TVM, or in a process that only looks something else up
            return importlib.import_module("tilelang").jit(function, **options)
        package = Package(own or function.__module__.partition(".")[0])
        real = _real_jit(function, options) if own and package.may_compile else None
        return PackagedFactory(function, package.name, package.open, real, options)

    return decorate if function is None else decorate(function)


def _is_real(packaged: bool) -> bool:
    chosen = os.environ.get(VARIABLE, "").strip() or "auto"
    if chosen not in _CHOICES:
        what = f"is not known, got {chosen!r}{did_you_mean(chosen, _CHOICES)}"
        raise SpecError(VARIABLE, what, f"Known: {', '.join(_CHOICES)}.")
    if loading.building:
        # Both frontends bring a module named tvm: a worker that serves the other one must not import this.
        return "tilelang" in sys.modules or ("tvm" not in sys.modules and _is_installed("tilelang"))
    if chosen != "auto":
        return chosen == "tilelang"
    return not packaged and _is_installed("tilelang")


@cache
def _is_installed(name: str) -> bool:
    return name in sys.modules or importlib.util.find_spec(name) is not None


def _package_of(name: str) -> str | None:
    """The package with kernels that a module is in, the innermost one; None where there is none."""
    parts = name.split(".")
    for count in range(len(parts), 0, -1):
        package = ".".join(parts[:count])
        if _has_kernels(package):
            return package
    return None


def _has_kernels(package: str) -> bool:
    try:
        if find_folders(package):
            return True
    except PackageError:
        pass  # not found by its name, as a script is; a folder may have kernels of it
    if not os.environ.get(PATH_VARIABLE):
        return False
    try:
        return bool(find_homes(package))
    except (PackageError, LoadError):
        return False


def _stand_ins(package: Package) -> dict[str, StandIn]:
    """What a package sees where TileLang is not used."""

    def jit(function: Callable[..., Any] | None = None, **options: Any) -> Any:
        def decorate(function: Callable[..., Any]) -> PackagedFactory:
            return PackagedFactory(function, package.name, package.open, None, options)

        return decorate if function is None else decorate(function)

    given = {**plain_functions(_VERSION), **_entrances(jit, _tuned, _compile), "tilelang.JITKernel": JITKernel}
    given.update({f"tilelang.jit.{home}JITKernel": JITKernel for home in ("", "kernel.")})
    return {top: StandIn(top, given) for top in _TOPS}


def _entrances(jit: Any, autotune: Any, compile_: Any) -> dict[str, Any]:
    """The ways into TileLang's compiler."""
    found = {name: jit for name in ("tilelang.jit", "tilelang.lazy_jit", "tilelang.jit.jit", "tilelang.jit.lazy_jit")}
    found.update({name: autotune for name in ("tilelang.autotune", "tilelang.autotuner.autotune")})
    if compile_ is not None:
        found.update({f"tilelang.{name}": compile_ for name in ("compile", "par_compile", "lower", "jit.compile")})
    return found


def _tuned(function: Any = None, **options: Any) -> Any:
    """``@tilelang.autotune``, above or below ``jit``: the build has tuned."""
    return function if function is not None else lambda function: function


def _compile(*args: Any, **options: Any) -> Any:
    refuse(
        "tilelang.compile",
        "compiles a PrimFunc, of which no packaged kernel is known: TileLang is not used here",
        "Decorate the function that makes it with @tilelang.jit, name that in tltune.toml, and call it.",
    )


def _real_jit(function: Callable[..., Any], options: Mapping[str, Any], tuning: Any = None) -> Callable[[], Any]:
    def make() -> Any:
        real = importlib.import_module("tilelang")
        made = real.jit(function, **options)
        return made if tuning is None else real.autotune(*tuning[0], **tuning[1])(made)

    return make


class _Mixed(ModuleType):
    """TileLang itself, but for the ways into its compiler."""

    def __init__(self, name: str, given: Mapping[str, Any]) -> None:
        super().__init__(name, "TileLang's module of this name, with packaged kernels; see tlaot.dropin.")
        self.__dict__["_given"] = given

    def __getattr__(self, name: str) -> Any:
        full = f"{self.__name__}.{name}"
        given = self.__dict__["_given"]
        return given[full] if full in given else getattr(importlib.import_module(self.__name__), name)

    def at(self, name: str) -> ModuleType:
        importlib.import_module(name)
        given = self.__dict__["_given"]
        return _Mixed(name, given) if any(full.startswith(f"{name}.") for full in given) else sys.modules[name]


def _mixed(package: Package) -> dict[str, Any]:
    """What a package sees where TileLang compiles what is not packaged."""

    def jit(function: Callable[..., Any] | None = None, **options: Any) -> Any:
        def decorate(function: Any) -> PackagedFactory:
            tuning = function.__dict__.pop("_tlaot_tuning", None) if hasattr(function, "__dict__") else None
            real = _real_jit(function, options, tuning)
            return PackagedFactory(function, package.name, package.open, real, options)

        return decorate if function is None else decorate(function)

    def autotune(*args: Any, **options: Any) -> Any:
        def decorate(function: Any) -> Any:
            if isinstance(function, PackagedFactory):
                function.tilelang = _real_jit(function.func, function.options, (args, options))
            else:
                function._tlaot_tuning = args, options  # of the jit above it
            return function

        return decorate

    importlib.import_module("tilelang")
    given = _entrances(jit, autotune, None)
    return {"tilelang": _Mixed("tilelang", given), "tvm": _Mixed("tvm", {})}
