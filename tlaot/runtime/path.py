"""The path of a call: from its arguments to what was decided for such arguments before, or to a decision.

Of one kernel there are three ways, each faster than the next: the package's library (``direct.py``), the plain function that the
previous call of such types ran, and to describe the arguments, choose a variant and load it.
"""

from __future__ import annotations

import builtins
from collections.abc import Hashable, Mapping, Sequence
from pathlib import Path
from types import MethodType
from typing import Any, TypeAlias

from ..manifest import FileDigest, Variant
from ..plain import record
from .binary import loading
from .call import Caller, Described, Probe, make_callers, make_probe
from .direct import Direct, direct_type
from .dispatch import copies
from .framework import MISALIGNED, Function
from .region import Range

__all__ = ["CallPath", "Decision", "Way"]

Callers: TypeAlias = dict[Hashable, tuple[Caller, Caller]]

# A server that sees ever new sizes must not grow without bound; describing a call again is cheap.
_MOST_CALLERS = 4096
_MOST_BOUND = 256

# The library is told of arguments of some types when such come for the second time; what finds their callers here is made at the
# third, since they are then such that it hands back, or differ each time.
_TOLD_FROM, _KEPT_FROM = 1, 2


class Way:
    """The library that may be told of a decision.

    Args:
        path: A package's ``direct.so``.
        digest: What it must be.

    Attributes:
        told: Whether it was: all that is kept of a decision has this in common.
    """

    def __init__(self, path: Path, digest: FileDigest) -> None:
        self.path = path
        self.digest = digest
        self.told = False


@record(frozen=True)
class Decision:
    """What a call runs.

    Attributes:
        call: The call's arguments, described.
        variant: The variant.
        function: What takes all of the kernel's parameters and runs it.
        plain: Its FFI function itself, which ``function`` may do something before or after; None: that must not be left out.
        ranges: Of each tensor among the arguments, the sizes for which it is chosen too; None: for these alone.
        way: The library that may be told of it; None: each such call comes through Python.
    """

    call: Described
    variant: Variant
    function: Function
    plain: Any = None
    ranges: Sequence[Sequence[Range]] | None = None
    way: Way | None = None


class CallPath:
    """A kernel as it is called; what a call runs is for a subclass to say.

    Args:
        where: The kernel in messages.
        variants: Its variants.
    """

    def __init__(self, where: str, variants: Sequence[Variant]) -> None:
        self._where = where
        self._plain: type = type(self)  # until a type of its own takes its place
        self._strides = any(p.strides is not None for v in variants for p in v.params)
        self._dtypes = _tell_by_dtype(variants)
        # By the arguments' types: what asks the arguments for their key, and what to run by key.
        self._callers: dict[tuple[type, ...], tuple[Probe, Callers]] = {}
        # How often arguments of these types came here before they had one.
        self._came: dict[tuple[type, ...], int] = {}
        # Of the previous call, replaced as one so that threads never mix two calls; the last two are its key and what it ran.
        self._last: tuple[Probe, Callers, Any, Caller] = _no_caller, {}, (), _no_caller
        self._direct: Direct | None = None
        self._copies = any(map(copies, variants))
        # By the factory arguments of a call: the kernel with them bound.
        self._bound: dict[Hashable, CallPath] = {}
        # Those of them that the library calls itself.
        self._linked: set[int] = set()

    def __call__(self, *args: Any, **factory_args: Any) -> Any:
        """Run the kernel.

        Args:
            *args: The kernel's parameters in order: all of them, outputs included (they are written in place),
                or all but the outputs (they are allocated on the inputs' device by the inputs' framework).
                Tensors of torch, numpy or anything with ``__dlpack__``; Python numbers for scalars. A CUDA kernel
                runs on torch's current stream of the tensors' device.
            **factory_args: Arguments of the kernel's factory, where the tensors alone leave a choice.

        Returns:
            The output, or a list of several; None if the kernel declares none.

        Raises:
            CallError: The arguments fit no kernel of this name, whatever was packaged.
            DispatchError: No packaged variant fits; the message says why for each.
            PackageError: The variant's file is missing or damaged.
            LoadError: The variant's file or the device cannot be used on this machine.
            ValueError, TypeError: The binary's own checks refuse an argument: strides, alignment of its address.
        """
        if factory_args:
            return self._named(factory_args)(*args)
        probe, callers, last, caller = self._last
        key = probe(args)  # None for arguments of other types
        # Comparing with the previous call's key costs less than a look-up.
        if key != last:
            found = callers.get(key)
            if found is None:
                found = self._find_callers(args)
            else:
                self._last = probe, callers, key, found[0]
            caller = found[0]
        try:
            return caller(args)
        except BufferError:
            return self._lend(args)
        except (TypeError, ValueError, RuntimeError) as error:
            raise self._worded(args, error) from None

    def _decide(self, args: tuple[Any, ...]) -> Decision | Caller:
        """What a call runs, a variant or something else; raises what the call would."""
        raise NotImplementedError

    def _worded(self, args: tuple[Any, ...], error: Exception) -> Exception:
        """What the FFI or the kernel's own checks refused, or what was raised above them, in our words if we have any."""
        raise NotImplementedError

    def _with(self, factory_args: Mapping[str, Any]) -> CallPath:
        """The kernel with arguments of the factory bound, unchecked."""
        raise NotImplementedError

    def _named(self, factory_args: Mapping[str, Any]) -> CallPath:
        """The kernel with a call's factory arguments bound: made once, and kept."""
        # True == 1, yet they are two workloads.
        key = *factory_args, *factory_args.values(), *map(type, factory_args.values())
        try:
            found = self._bound.get(key)
        except TypeError:  # of a value that cannot be one
            return self._with(factory_args)
        if found is None:
            found = self._with(factory_args)
            if len(self._bound) >= _MOST_BOUND:
                self._bound.clear()
            self._bound[key] = found
        elif found._direct is not None:
            direct = self._direct or self._go_direct(found._direct.kind)
            if id(found) not in self._linked:
                self._linked.add(id(found))
                direct.call.bind(tuple(factory_args), tuple(factory_args.values()), found)
        return found

    def _lend(self, args: tuple[Any, ...]) -> Any:
        """The call again, after an export through DLPack was refused: nothing has run yet."""
        _, callers, key = self._look(args)
        lending = self._find_callers(args)[1]
        try:
            out = lending(args)
        except (TypeError, ValueError, RuntimeError, BufferError) as error:
            raise self._worded(args, error) from None
        # Such arrays come again, weights for instance; others of this key are passed as they are.
        callers[key] = lending, lending
        self._last = _no_caller, {}, (), _no_caller
        return out

    def _look(self, args: tuple[Any, ...]) -> tuple[Probe, Callers, Hashable]:
        """What asks arguments of these types for their key, the callers for these types, and the key."""
        kinds = tuple(map(type, args))
        if kinds not in self._callers:
            self._callers[kinds] = make_probe(self._where, args, self._strides, self._dtypes), {}
        probe, callers = self._callers[kinds]
        return probe, callers, probe(args)

    def _find_callers(self, args: tuple[Any, ...]) -> tuple[Caller, Caller]:
        kinds, found = tuple(map(type, args)), None
        if kinds not in self._callers:
            # What makes the calls after it fast takes as long as all else that a first call does: it is done when there are any.
            # Those that the library takes do not come here again, nor need what finds them here.
            came = self._came[kinds] = self._came.get(kinds, -1) + 1
            if came < _KEPT_FROM:
                found, enough = self._make_callers(args, tell=came >= _TOLD_FROM)
                if enough:
                    return found
        probe, callers, key = self._look(args)
        known = callers.get(key)
        if known is None:
            known = found or self._make_callers(args, tell=True)[0]
            if len(callers) >= _MOST_CALLERS:
                callers.clear()
            callers[key] = known
        self._last = probe, callers, key, known[0]
        return known

    def _make_callers(self, args: tuple[Any, ...], tell: bool) -> tuple[tuple[Caller, Caller], bool]:
        """What runs such calls, and whether nothing need be kept of it: the package's library takes them, which is told where ``tell``
        says so, or it is too early for either. What the miss policy has called is to be kept."""
        decision = self._decide(args)
        if not isinstance(decision, Decision):
            return (decision, decision), False
        found, way = make_callers(self._where, decision.variant, decision.function, decision.call, args), decision.way
        if tell and way is not None and not way.told:
            way.told = self._tell(args, decision, way)
        return found, not tell or (way is not None and way.told)

    def _tell(self, args: tuple[Any, ...], decision: Decision, way: Way) -> bool:
        """Have the package's library take such calls from now on; whether it does. It knows nothing of None."""
        if any(arg is None for arg in args):
            return False
        direct = self._direct
        if direct is None:
            kind = direct_type(way.path, way.digest)
            if kind is None:
                return False
            direct = self._go_direct(kind)
        if direct.full:
            # What is kept here would not be told again.
            direct.forget()
            self._forget()
        return direct.tell(args, decision.call, decision.variant, decision.plain, self._strides, decision.ranges)

    def _forget(self) -> None:
        """Have every call decided anew."""
        self._callers.clear()

    def _go_direct(self, kind: Any) -> Direct:
        """Have calls of this object go to one of the library's."""
        with loading():
            if self._direct is None:  # else another thread was first
                own = self._plain
                # Methods of the class as it is: looked up in the object, they would be what replaces them.
                direct = self._direct = Direct(kind, MethodType(_answer, self), MethodType(_explain, self))
                # A call of an object is a call of what its type has: a type of its own, without a Python function between.
                content = {
                    "__call__": direct.call,
                    "__signature__": property(_signature),
                    "__slots__": (),
                    "__module__": own.__module__,
                    "__doc__": own.__doc__,
                }
                self.__class__ = type(own.__name__, (own,), content)
            return self._direct


def _signature(self: CallPath) -> Any:
    """For inspect.signature, which cannot look into the library."""
    import inspect

    return inspect.signature(MethodType(CallPath.__call__, self))


def _answer(self: CallPath, args: tuple[Any, ...], factory_args: Mapping[str, Any] | None) -> Any:
    return CallPath.__call__(self, *args, **(factory_args or {}))


def _explain(self: CallPath, args: tuple[Any, ...], kind: str, message: str) -> Any:
    if self._copies and kind == "ValueError" and MISALIGNED in message:
        return CallPath.__call__(self, *args)  # which copies; nothing has run yet
    found = getattr(builtins, kind, RuntimeError)
    made = found if isinstance(found, type) and issubclass(found, Exception) else RuntimeError
    error = made(message)
    raise (self._worded(args, error) if isinstance(error, (TypeError, ValueError, RuntimeError)) else error) from None


def _no_caller(args: tuple[Any, ...]) -> Any:
    """Before the first call: the key of none."""
    return None


def _tell_by_dtype(variants: Sequence[Variant]) -> bool:
    """Whether dispatch needs the arguments' dtypes; where it does not, the kernel's own check of them is enough."""
    return len({tuple(p.dtype for p in v.params) for v in variants}) > 1
