"""What ``@tilelang.jit`` makes of a function where its kernels are packaged: an object with the interface of TileLang's own."""

from __future__ import annotations

import functools
import inspect
import operator
import sys
import threading
from collections.abc import Callable, Hashable, Iterable, Mapping
from enum import Enum
from typing import Any, NoReturn, cast

from ..errors import CallError, DispatchError, LoadError, TlaotError
from ..keys import bind_call, encode
from ..runtime.dispatch import Place
from ..runtime.load import Kernels, factories_of, policy_of
from ..runtime.miss import Miss
from ..runtime.saying import warn_once
from ..runtime.seen import note
from ..target import DLPACK_CPU
from .choose import Choices, Packaged, refuse_key, runtime_names
from .kernel import JITKernel

__all__ = ["PackagedFactory"]

# A server that sees ever new keys must not grow without bound; finding a kernel again is cheap.
_MOST_CALLS = 4096

# Types that a cache of C tells apart by themselves; of others, a tuple say, (1, 2) == (True, 2).
_FLAT = frozenset([bool, int, float, str, type(None)])
_NESTED = object()


class PackagedFactory:
    """A factory whose calls give packaged kernels.

    ``factory(M, N)`` is the kernel of that key; of an eager function, called with tensors, it runs that kernel. What TileLang's object
    has beside that: :meth:`compile`, :meth:`par_compile`, :meth:`get_kernel_source`, ``signature``, ``func``, ``mode``.

    Args:
        function: The author's function; it is never called.
        package: Import name of the package that embeds the kernels.
        open_kernels: Gives the package's kernels.
        fallback: Makes TileLang's own object of the function, for keys that are not packaged; None where TileLang is not used.
        options: What the decorator was given. The compiled kernels have it in them, so that nothing of it is needed here.
    """

    def __init__(
        self,
        function: Callable[..., Any],
        package: str,
        open_kernels: Callable[[], Kernels],
        fallback: Callable[[], Any] | None = None,
        options: Mapping[str, Any] | None = None,
    ) -> None:
        functools.update_wrapper(self, function)
        self.func = function
        self.signature = inspect.signature(function)
        self.package = package
        self.options = dict(options or {})
        self.where = f"{function.__module__}:{function.__qualname__}"
        self.tilelang = fallback
        self._open_kernels = open_kernels
        self._made: Any = None
        self._lock = threading.Lock()
        self._choices: Choices | None = None
        self._runtime: tuple[str, ...] | None = None  # until the kernels are looked for
        self._kernels: dict[Any, Any] = {}
        self._keys: dict[Any, Any] = {}
        self._flat = True  # until a call has a tuple or a dataclass among its arguments
        self._known = functools.lru_cache(_MOST_CALLS, typed=True)(self._find_flat)

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """The packaged kernel of this key; of an eager function, what that kernel returns for these tensors.

        Raises:
            TypeError: The function does not take these arguments.
            DispatchError: Nothing is packaged for the key, and the miss policy says that this is an error.
            PackageError, LoadError: As :func:`tlaot.load` and a call of a kernel.
        """
        if self._runtime != ():  # an eager one, or nobody knows yet
            return self._call_eager(args, kwargs)
        try:
            if not self._flat:
                return self._find_nested(args, kwargs)
            found = self._known(*args, **kwargs)
        except TypeError:
            # An argument that cannot be a key of a dict, a list say; or one that is wrong, which is said there.
            return self._find(self._bind(args, kwargs))
        if found is not _NESTED:
            return found
        self._flat = False  # as the next calls will not be
        return self._find_nested(args, kwargs)

    def compile(self, *args: Any, **kwargs: Any) -> Any:
        """The packaged kernel of this key, of an eager function too; it compiles nothing.

        Raises:
            TypeError, DispatchError, PackageError, LoadError: As a call.
        """
        self._open()
        return self._find(self._bind(args, kwargs))

    def par_compile(
        self,
        configs: Iterable[Mapping[str, Any] | tuple[Any, ...]],
        num_workers: int | None = None,
        ignore_error: bool = False,
    ) -> list[Any]:
        """The packaged kernels of several keys, each a dict of arguments or a tuple of them; None for one that has none, where
        errors are ignored. ``num_workers`` is TileLang's: there is no work.

        Raises:
            ValueError: A key is neither.
            TypeError, DispatchError, PackageError, LoadError: As a call.
        """
        found: list[Any] = []
        for config in configs:
            if not isinstance(config, (tuple, dict)):
                raise ValueError(f"Invalid config type: {type(config)}, expected tuple or dict.")
            try:
                found.append(self.compile(*config) if isinstance(config, tuple) else self.compile(**config))
            except TlaotError:
                if not ignore_error:
                    raise
                found.append(None)
        return found

    def get_kernel_source(self, *args: Any, **kwargs: Any) -> str:
        """The source of a key's kernel, where the package was built with sources."""
        source: str = self.compile(*args, **kwargs).get_kernel_source()
        return source

    def get_tir(self, *args: Any, **kwargs: Any) -> NoReturn:
        """A packaged kernel has no TIR; raises LoadError."""
        raise LoadError(
            self.where, "has no TIR: its kernels are packaged, and TileLang is not used here", _USE_TILELANG
        )

    @property
    def mode(self) -> str:
        """``"lazy"`` or ``"eager"``, as TileLang calls it."""
        return "eager" if self._open() else "lazy"

    @property
    def out_idx(self) -> Any:
        """What the decorator was given."""
        return self.options.get("out_idx")

    def __repr__(self) -> str:
        return f"<{self.where}{self.signature}, packaged kernels of {self.package}>"

    def __reduce__(self) -> Any:
        return _named, (self.func.__module__, self.func.__qualname__)

    def __get__(self, instance: Any, owner: Any = None) -> Any:
        return self if instance is None else functools.partial(self, instance)

    def _open(self) -> tuple[str, ...]:
        """Look for the kernels, once; gives the parameters that are an eager kernel's own."""
        runtime = self._runtime
        if runtime is None:
            parameters = self.signature.parameters.values()
            names = [p.name for p in parameters if p.kind not in (p.VAR_POSITIONAL, p.VAR_KEYWORD)]
            defaults = {p.name: p.default for p in parameters if p.default is not p.empty}
            kernels = self._open_kernels()
            found = [Packaged(name, variant) for name in self._named_by(kernels) for variant in kernels[name].variants]
            found = [one for one in found if self._is_mine(one)]
            runtime = runtime_names(found, names)
            self._choices = Choices(found, names, defaults)
            self._runtime = runtime  # last: who sees it sees the rest
        return runtime

    def _named_by(self, kernels: Kernels) -> list[str]:
        """The package's kernels that name this factory."""
        return [name for factory, names in factories_of(kernels).items() if self._is_named(factory) for name in names]

    def _is_named(self, factory: str) -> bool:
        """Whether ``"module:name"`` is this object; a module may have taken it from the one that defines it."""
        if factory == self.where:
            return True
        module, _, name = factory.partition(":")
        found: Any = sys.modules.get(module)
        for part in name.split("."):
            found = getattr(found, part, None)
        return found is self

    def _is_mine(self, one: Packaged) -> bool:
        # A kernel's entries may be of several factories, one a target.
        made_by = one.variant.properties.get("made_by")
        return isinstance(made_by, Mapping) and self._is_named(str(made_by.get("factory")))

    def _bind(self, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> dict[str, Any]:
        """A call's arguments by name.

        Raises:
            TypeError: The function does not take them.
        """
        runtime, choices = self._open(), self._choices
        assert choices is not None
        own = {name: value for name, value in kwargs.items() if name in self.signature.parameters}
        sizes = {name: value for name, value in kwargs.items() if name not in own}
        known = {name for one in choices.packaged for name in one.variant.shape}
        if sizes.keys() <= known and runtime:
            bound = self.signature.bind_partial(*args, **own)
            bound.apply_defaults()
            return {**bound.arguments, **sizes}
        try:
            return bind_call(self.signature, args, kwargs)
        except TypeError:
            # What only a config gives may be left out: it is the build's choice.
            bound = self.signature.bind_partial(*args, **kwargs)
            bound.apply_defaults()
            missing = choices.lacking(bound.arguments)
            if missing or not choices.packaged:
                raise
            return dict(bound.arguments)

    def _call_eager(self, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> Any:
        runtime = self._open()
        if not runtime:
            return self(*args, **kwargs)
        given = self._bind(args, kwargs)
        key = {name: value for name, value in given.items() if name not in runtime}
        kernel = self._find(key) if key else self._kernels.get(()) or self._find(key)
        return kernel(*(given[name] for name in runtime if name in given))

    def _find_flat(self, *args: Any, **kwargs: Any) -> Any:
        if all(type(x) in _FLAT or isinstance(x, Enum) or _is_dtype(x) for x in (*args, *kwargs.values())):
            return self._find(self._bind(args, kwargs))
        return _NESTED

    def _find_nested(self, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> Any:
        key = (*map(_typed, args), *((name, _typed(value)) for name, value in kwargs.items()))
        found = self._keys.get(key)
        if found is None:
            found = self._find(self._bind(args, kwargs))
            if len(self._keys) >= _MOST_CALLS:
                self._keys.clear()
            self._keys[key] = found
        return found

    def _find(self, given: Mapping[str, Any]) -> Any:
        """The kernel of a key; one and the same for all spellings of it."""
        choices = self._choices
        assert choices is not None and self._runtime is not None
        given = {name: value for name, value in given.items() if name not in self._runtime}
        found = choices.find(self.where, given)
        if not found:
            return self._miss(given, refuse_key(self.where, self.package, choices, given))
        variants = tuple(id(one.variant) for one in found)
        kernel = self._kernels.get(variants)
        if kernel is None:
            whole = self._open_kernels()[found[0].kernel]
            made = JITKernel.of(whole, [one.variant for one in found])
            kernel = self._kernels.setdefault(variants, made)  # of two threads one is first
            if not given:
                self._kernels[()] = kernel
        return kernel

    def _miss(self, given: Mapping[str, Any], error: DispatchError) -> Any:
        """What the miss policy has in place of a kernel; raises what a call does where it has nothing."""
        kernels, choices = self._open_kernels(), self._choices
        assert choices is not None
        policy = policy_of(kernels)
        on_miss = "error" if policy is None else policy.on_miss
        what = error.remedy.rpartition("\n")[2].strip()
        made: Any = None
        outcome = "miss"
        try:
            if on_miss == "jit":
                outcome, made = "jit", self._jit(given, error)
            elif on_miss == "warn" and policy is not None:
                outcome, made = "fallback", self._fall_back(policy.fallback, choices, error)
            elif callable(on_miss):
                key = {name: encode(value, f"{self.where} {name}") for name, value in given.items()}
                nearest = tuple(one.variant for one in choices.nearest(key))
                place = Place(DLPACK_CPU)
                miss = Miss(self.where, (), "", dict(given), (key,), nearest, error, place)
                outcome, made = "callback", on_miss(miss)
            if made is None:
                raise error
            return made
        finally:
            note(self.where, map(repr, given.values()), "", outcome if made is not None else "miss", what)

    def _fall_back(self, fallback: Mapping[str, Callable[..., Any]], choices: Choices, error: DispatchError) -> Any:
        for name in dict.fromkeys(one.kernel for one in choices.packaged):
            if name in fallback:
                warn_once(
                    ("miss", self.where),
                    f"{error}\nIts fallback is called. This is said once; tlaot.coverage() has all.",
                )
                return fallback[name]
        return None

    def _jit(self, given: Mapping[str, Any], error: DispatchError) -> Any:
        if self.tilelang is None:
            raise LoadError(
                error.where,
                f'{error.what}\nThe miss policy "jit" needs TileLang, which is not installed or was not there when the package was imported',
                "pip install tilelang, or leave TLAOT_ON_MISS at error.\n" + error.remedy,
            )
        warn_once(("jit", self.where), f"{error}\nTileLang compiles it now; so for later misses.")
        if self._runtime:
            return functools.partial(_call_eagerly, self, dict(given))
        return self.unwrapped(**given)

    @property
    def unwrapped(self) -> Any:
        """TileLang's own object of the function.

        Raises:
            LoadError: TileLang is not used here.
        """
        if self.tilelang is None:
            raise LoadError(self.where, "TileLang is not used here", _USE_TILELANG)
        with self._lock:
            if self._made is None:
                self._made = self.tilelang()
            return self._made


_USE_TILELANG = "Install TileLang and set TLAOT_DROPIN=tilelang."


def _call_eagerly(factory: PackagedFactory, given: Mapping[str, Any], *tensors: Any) -> Any:
    return factory.unwrapped(**dict(zip(factory._open(), tensors, strict=False)), **given)


def _is_dtype(value: Any) -> bool:
    return type(value).__name__ == "dtype"


def _typed(value: Any) -> Any:
    """A value that equals another only where all that is in it is of the same types."""
    kind = type(value)
    if kind in _FLAT:
        return kind, value
    if isinstance(value, tuple):
        parts: tuple[Any, ...] = tuple(value)
    else:
        get = _parts_of(cast(Hashable, kind))
        if get is None:
            return kind, value
        parts = get(value)
    return kind, *map(type, parts), *[part if type(part) in _FLAT else _typed(part) for part in parts]


@functools.cache
def _parts_of(kind: Hashable) -> Callable[[Any], tuple[Any, ...]] | None:
    """What gives the fields of a dataclass; None for other types."""
    names = tuple(getattr(kind, "__dataclass_fields__", ()))
    if not names:
        return None
    return operator.attrgetter(*names) if len(names) > 1 else lambda value: (getattr(value, names[0]),)


def _named(module: str, name: str) -> Any:
    import importlib

    found: Any = importlib.import_module(module)
    for part in name.split("."):
        found = getattr(found, part)
    if not isinstance(found, PackagedFactory):
        raise CallError(f"{module}:{name}", f"is no packaged factory, but a {type(found).__name__}")
    return found
