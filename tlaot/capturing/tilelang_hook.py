"""The hook in TileLang's JIT: what its objects do stays as it is, and is counted.

``JITImpl.__call__``, ``.compile`` and ``.par_compile`` say which call of a factory a kernel came of; the kernel carries that as an
attribute, so that ``JITKernel.__call__`` has little to do: describe the arguments, look them up, add one. A kernel that TileLang's
cache hands out for several calls (the same code came of them) counts for the last one.
"""

from __future__ import annotations

import sys
import threading
from collections.abc import Callable, Mapping, Sequence
from types import ModuleType
from typing import Any

from ..imports import patch_imports
from .calls import arguments_of, describe_call, describe_kernel
from .dry import DryKernel, elaborate_only
from .journal import LOST, SLOTS, Journal
from .tensors import as_plain, describe_types, learn

__all__ = ["Hook"]

# The hook counts its installations, so that what an earlier one left on objects is not taken for its own.
_installed = 0


class Call:
    """One call of a factory: its counters, and the kinds of launches of its kernel."""

    __slots__ = ("failures", "kernel_known", "launches", "number", "slot")

    def __init__(self, number: int, slot: int) -> None:
        self.number = number
        self.slot = slot
        self.launches: dict[Any, tuple[int, int]] = {}
        self.failures: dict[str, int] = {}
        self.kernel_known = False


class Hook:
    """Records into a journal while it is installed.

    Args:
        journal: Where to.
        launch: Whether kernels are compiled and run. Without, factories are elaborated only, and a launch returns zeros.
    """

    def __init__(self, journal: Journal, launch: bool = True) -> None:
        global _installed
        _installed += 1
        self._tag = f"_tlaot_call_{_installed}"
        self._journal = journal
        self._dry = not launch
        self._lock = threading.RLock()
        self._calls: dict[str, Call] = {}
        self._forms: dict[int, tuple[Any, dict[Any, Call]]] = {}
        self._tuning: dict[int, int] = {}
        self._strangers: dict[str, Call] = {}
        self._now = threading.local()
        self._undo: list[Callable[[], None]] = []
        self._touched: list[Any] = []
        self._finder: Any = None

    def install(self) -> None:
        """Change TileLang's classes, now or as soon as they are imported."""
        patches = {"tilelang.jit": self._patch_jit, "tilelang.autotuner.tuner": self._patch_autotuner}
        self._finder = patch_imports(patches)

    def uninstall(self) -> None:
        """Put back what was there; kernels that were only elaborated leave TileLang's caches."""
        sys.meta_path[:] = [finder for finder in sys.meta_path if finder is not self._finder]
        for undo in reversed(self._undo):
            undo()
        for impl in self._touched:
            kernels = {key: kernel for key, kernel in impl._kernel_cache.items() if type(kernel) is not DryKernel}
            impl._kernel_cache.clear()
            impl._kernel_cache.update(kernels)
            impl._call_form_cache.clear()

    def renew(self) -> None:
        """In a process that was just forked: a lock that no thread of the parent holds, and files of its own."""
        self._lock = threading.RLock()
        self._journal.renew()

    def _replace(self, owner: Any, name: str, make: Callable[[Any], Any]) -> None:
        original = getattr(owner, name)
        setattr(owner, name, make(original))
        self._undo.append(lambda: setattr(owner, name, original))

    def _patch_jit(self, module: ModuleType) -> None:
        try:
            self._journal.begin({"dry": self._dry})
            self._replace(module.JITImpl, "__call__", self._calling)
            self._replace(module.JITImpl, "compile", self._compiling)
            self._replace(module.JITImpl, "par_compile", self._compiling_many)
            self._replace(module.JITKernel, "__call__", self._launching)
            if self._dry:
                self._replace(DryKernel, "__call__", self._launching)
        except Exception as error:
            self._trouble("this TileLang is another than tlaot knows, and is not recorded", error)

    def _patch_autotuner(self, module: ModuleType) -> None:
        try:
            self._replace(module.AutoTuneImpl, "__call__", self._tuned_calling)
        except Exception as error:
            self._trouble("this TileLang's autotuner is another than tlaot knows, and is not recorded", error)

    # ---- a launch

    def _launching(self, original: Any) -> Any:
        describers, segments, tag = describe_types, self._journal.segments, self._tag

        def __call__(kernel: Any, *args: Any, **kwargs: Any) -> Any:  # noqa: N807
            try:
                call = kernel.__dict__.get(tag) or self._call_of(kernel)
                key = tuple([describers[type(arg)](arg) for arg in args])
                slots = call.launches[key]
            except Exception:
                slots = self._new_launch(kernel, args)
            slot = slots[0]
            segments[slot // SLOTS][slot % SLOTS] += 1
            try:
                return original(kernel, *args, **kwargs)
            except BaseException:
                self._journal.count(slots[1])
                raise

        return __call__

    def _new_launch(self, kernel: Any, args: Sequence[Any]) -> tuple[int, int]:
        """The counters of a kind of launch that was not seen before: of launches, and of those that failed."""
        try:
            with self._lock:
                call = kernel.__dict__.get(self._tag) or self._call_of(kernel)
                key = tuple([(describe_types.get(type(arg)) or learn(arg))(arg) for arg in args])
                found = call.launches.get(key)
                if found is None and self._journal.full:
                    found = call.launches.get("more") or self._add_launch(call, "more", {"more": True})
                return found or self._add_launch(call, key, {"arguments": as_plain(key)})
        except Exception as error:
            return self._trouble("a launch could not be recorded", error)

    def _add_launch(self, call: Call, key: Any, entry: Mapping[str, Any]) -> tuple[int, int]:
        slot = self._journal.add({"launch": call.number, **entry}, 2)
        call.launches[key] = slot, slot + 1
        return slot, slot + 1

    def _call_of(self, kernel: Any) -> Call:
        """The call of a kernel that was made before, of an eager function or by what is no ``@tilelang.jit`` function."""
        current = getattr(self._now, "call", None)
        if current is not None:
            impl, args, kwargs = current
            config = getattr(kernel, "config", None)
            made = self._register(impl, args, kwargs, config if id(impl) in self._tuning else None, kernel)
            self._mark(kernel, made)
            return made
        name = str((kernel.prim_func.attrs or {}).get("global_symbol", "?"))
        if name not in self._strangers:
            number = len(self._calls) + len(self._strangers)
            self._strangers[name] = Call(number, self._journal.add({"call": number, "stranger": name}, 1))
        self._mark(kernel, self._strangers[name])
        return self._strangers[name]

    # ---- a factory's call

    def _calling(self, original: Any) -> Any:
        known, segments, tag = self._forms, self._journal.segments, self._tag

        def __call__(impl: Any, *args: Any, **kwargs: Any) -> Any:  # noqa: N807
            if kwargs and ("__tune_params" in kwargs or "__return_compile_arguments" in kwargs):
                return original(impl, *args, **kwargs)  # one of the autotuner's candidates
            if impl.mode != "lazy":
                return self._call_eagerly(original, impl, args, kwargs)
            call: Call | None
            try:
                call = known[id(impl)][1].get((args, tuple(kwargs.items())))
            except (KeyError, TypeError):
                call = None  # not called before, or with what no dict takes for a key
            try:
                kernel = original(impl, *args, **kwargs)
            except BaseException as error:
                self._failed(impl, args, kwargs, error)
                raise
            try:
                if call is None:
                    call = self._register(impl, args, kwargs, None, kernel)
                    self._forms_of(impl)[args, tuple(kwargs.items())] = call
                slot = call.slot
                segments[slot // SLOTS][slot % SLOTS] += 1
                kernel.__dict__[tag] = call
            except TypeError:
                self._mark(kernel, call)  # arguments that no dict takes for a key are looked at each time
            except Exception as error:
                self._trouble("a call could not be recorded", error)
            return kernel

        return __call__

    def _call_eagerly(self, original: Any, impl: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """Of a function that is eager, or of which TileLang does not know yet: its launch is recorded inside, its kernel here."""
        before = getattr(self._now, "call", None)
        self._now.call = impl, args, kwargs
        try:
            result = original(impl, *args, **kwargs)
        except BaseException as error:
            self._failed(impl, args, kwargs, error)
            raise
        finally:
            self._now.call = before
        if impl.mode == "lazy":
            self._record_kernel(impl, args, kwargs, None, result)
        return result

    def _compiling(self, original: Any) -> Any:
        def compile(impl: Any, *args: Any, **kwargs: Any) -> Any:
            if self._dry:
                self._touched.append(impl)
                kernel = elaborate_only(impl, args, kwargs)
            else:
                kernel = original(impl, *args, **kwargs)
            if id(impl) not in self._tuning:
                self._record_kernel(impl, args, kwargs, None, kernel, called=False)
            return kernel

        return compile

    def _compiling_many(self, original: Any) -> Any:
        def par_compile(impl: Any, configs: Any, *args: Any, **kwargs: Any) -> Any:
            configs = list(configs)
            if self._dry:
                kernels = [impl.compile(*one) if isinstance(one, tuple) else impl.compile(**one) for one in configs]
                return kernels
            kernels = original(impl, configs, *args, **kwargs)
            for one, kernel in zip(configs, kernels, strict=True):
                if kernel is not None:
                    args_of, kwargs_of = (one, {}) if isinstance(one, tuple) else ((), one)
                    self._record_kernel(impl, args_of, kwargs_of, None, kernel, called=False)
            return kernels

        return par_compile

    def _tuned_calling(self, original: Any) -> Any:
        def __call__(tuned: Any, *args: Any, **kwargs: Any) -> Any:  # noqa: N807
            impl = tuned.jit_impl
            if self._dry:  # nothing is timed: the tunables' defaults
                wanted = kwargs.pop("__return_kernel", False)
                return impl.compile(*args, **kwargs) if wanted else impl(*args, **kwargs)
            before = getattr(self._now, "call", None)
            given = {name: value for name, value in kwargs.items() if name != "__return_kernel"}
            with self._lock:
                self._tuning[id(impl)] = self._tuning.get(id(impl), 0) + 1
            self._now.call = impl, args, given
            try:
                result = original(tuned, *args, **kwargs)
                if hasattr(result, "prim_func"):
                    config = getattr(result, "config", None)
                    self._record_kernel(impl, args, given, config or {}, result)
                return result
            except BaseException as error:
                self._failed(impl, args, given, error)
                raise
            finally:
                self._now.call = before
                with self._lock:
                    self._tuning[id(impl)] -= 1
                    if not self._tuning[id(impl)]:
                        del self._tuning[id(impl)]

        return __call__

    def _forms_of(self, impl: Any) -> dict[Any, Call]:
        # With the object, so that another one does not get its number.
        return self._forms.setdefault(id(impl), (impl, {}))[1]

    def _record_kernel(self, impl: Any, args: Any, kwargs: Any, config: Any, kernel: Any, called: bool = True) -> None:
        try:
            call = self._register(impl, args, kwargs, config, kernel)
            if called:
                self._journal.count(call.slot)
            self._mark(kernel, call)
        except Exception as error:
            self._trouble("a call could not be recorded", error)

    def _register(self, impl: Any, args: Any, kwargs: Any, config: Any, kernel: Any = None) -> Call:
        """The call, which is written when it is new; with what its kernel's parameters are, as soon as there is one."""
        chosen = {name: value for name, value in (config or {}).items() if name != "pass_configs"}
        entry = describe_call(impl, arguments_of(impl, args, {**kwargs, **chosen}), None if config is None else chosen)
        identity = repr((id(impl), entry["arguments"], entry.get("opaque"), entry.get("symbols")))
        with self._lock:
            call = self._calls.get(identity)
            if call is None:
                number = len(self._calls) + len(self._strangers)
                call = self._calls[identity] = Call(number, self._journal.add({"call": number, **entry}, 1))
                self._forms_of(impl)  # keeps it, for its number
            if kernel is not None and not call.kernel_known:
                call.kernel_known = True
                self._journal.add({"of": call.number, **describe_kernel(kernel.prim_func, kernel.out_idx)})
        return call

    def _failed(self, impl: Any, args: Any, kwargs: Any, error: BaseException) -> None:
        try:
            call = self._register(impl, args, kwargs, None)
            # A launch that failed inside is counted there.
            if not call.kernel_known:
                self._journal.count(call.slot)
                said = f"{type(error).__name__}: {(str(error).strip() or '-').splitlines()[-1][:300]}"
                slot = call.failures.get(said)
                if slot is None:
                    slot = call.failures[said] = self._journal.add({"failed": call.number, "why": said}, 1)
                self._journal.count(slot)
        except Exception as trouble:
            self._trouble("a call that failed could not be recorded", trouble)

    def _mark(self, kernel: Any, call: Call | None) -> None:
        if call is not None:
            kernel.__dict__[self._tag] = call

    def _trouble(self, what: str, error: Exception) -> tuple[int, int]:
        """Note it; returns the counters of what could not be recorded."""
        self._journal.trouble(f"{what}: {type(error).__name__}: {error}")
        return LOST
