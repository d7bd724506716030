"""A packaged kernel: which of its variants a call runs, loaded at its first call."""

from __future__ import annotations

from collections.abc import Hashable, Iterable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ..errors import CallError, DispatchError, LoadError
from ..manifest import DIRECT, Variant, place_of
from ..target import CPU_LEVELS, DLPACK_CPU, DLPACK_CUDA, read_target
from .binary import CALL, CPU_LEVEL, EXECUTABLE, load_binary, loading
from .call import Caller, Described, describe
from .choose import pick_variant
from .device import cuda_capability, cuda_place
from .dispatch import Argument, Place, copies, describe_params, differs, resolve, spell_variant, wants_factory_args
from .floors import require_floors
from .notes import say_once
from .path import CallPath, Decision, Way
from .places import Home, companions_for, missing_companions, name_companions, pack_homes
from .refusal import check_factory_names, refuse_binding
from .region import Range, Regions, find_ranges
from .seen import note

if TYPE_CHECKING:
    from .overlay import Overlay
    from .policy import Policy

__all__ = ["Kernel"]

# A server that sees ever new sizes must not grow without bound.
_MOST_DECIDED = 64


class Kernel(CallPath):
    """All packaged variants of one kernel; calling it runs the one that fits the arguments.

    Args:
        where: The kernel in messages, ``"package.name"``.
        name: Its name.
        located: Its variants, each with the folder that its path is relative to.
        homes: All places of the package's kernels.
        overlay: What was found to be the fastest on this machine; None for nothing.
        policy: What is done with calls that no variant fits, and which variants are pinned; None for an error, and none.

    Attributes:
        name: Its name.
        variants: Its variants; of a bound kernel those that have these factory arguments.
        factory_args: The factory's arguments that are bound.
    """

    def __init__(
        self,
        where: str,
        name: str,
        located: Iterable[tuple[Variant, Path]],
        homes: tuple[Home, ...] = (),
        overlay: Overlay | None = None,
        policy: Policy | None = None,
    ) -> None:
        located = tuple(located)
        variants = tuple(variant for variant, _ in located)
        super().__init__(where, variants)
        self.name = name
        self.variants = variants
        self.factory_args: Mapping[str, Any] = {}
        self._all = variants
        self._homes = homes
        self._overlay = overlay
        self._policy = policy
        self._folders = {id(variant): folder for variant, folder in located}
        self._modules: dict[Path, Any] = {}
        self._regions = Regions()
        # By device, arguments and their types: the decisions of calls that nothing is kept of but this.
        self._decided: dict[Hashable, Decision] = {}

    def bind(self, **factory_args: Any) -> Kernel:
        """The kernel with arguments of its factory fixed: ``causal = kernels.attention.bind(causal=True)``.

        A call of it costs what one of a kernel without a choice costs, and takes the arguments of the factory that are left. It
        can be pickled, and bound further.

        Args:
            **factory_args: Names and values, as in ``[[kernel]] shapes`` of the package's ``tltune.toml``.

        Raises:
            CallError: The factory has no argument of this name, no variant was packaged with these values, or one is bound
                to another value.
        """
        made = self._with(factory_args)
        check_factory_names(self._where, self._all, made.factory_args)
        if self._all and not made.variants:
            raise refuse_binding(self._where, self._all, made.factory_args)
        return made

    def _with(self, factory_args: Mapping[str, Any]) -> Kernel:
        for name, bound in self.factory_args.items():
            if name in factory_args and (factory_args[name] != bound or type(factory_args[name]) is not type(bound)):
                what = f"{name} is bound to {bound!r}, asked for {factory_args[name]!r}"
                raise CallError(self._where, what, "Bind the kernel that is not bound.")
        made: Kernel = object.__new__(self._plain)
        vars(made).update(vars(self))
        made._regions, made._decided = Regions(), {}
        made.factory_args = {**self.factory_args, **factory_args}
        made.variants = tuple(v for v in self.variants if wants_factory_args(v, factory_args))
        CallPath.__init__(made, self._where, made.variants or self._all)
        return made

    def __reduce__(self) -> tuple[Any, ...]:
        place = self._where.rpartition(".")[0], pack_homes(self._homes)
        # Which has imported this one: a copy is opened as the package's kernels are.
        from .load import pack_policy, reopen

        return reopen, (*place, *pack_policy(self._policy), self.name, dict(self.factory_args))

    def resolve(self, *args: Any, **factory_args: Any) -> Variant:
        """The variant that a call with these arguments runs; raises what the call would."""
        return self._pick(describe(self._where, args, self._strides), {**self.factory_args, **factory_args})

    def weigh(
        self, arguments: Sequence[Argument], device: tuple[int, int], factory_args: Mapping[str, Any]
    ) -> tuple[Place, Variant, list[Variant]]:
        """Where a call runs, the variant that it runs whatever an overlay says, and all that could run it, ranges of sizes aside.

        Args:
            arguments: The call's arguments.
            device: DLPack type and ordinal of the tensors' device.
            factory_args: Arguments of the factory that the caller names.

        Raises:
            CallError, DispatchError, LoadError: As a call does.
        """
        place = self._place(Described(tuple(arguments), device, None, None, 0), factory_args)
        chosen = pick_variant(self._where, self.variants, arguments, place, factory_args)
        return place, chosen, resolve(self.variants, arguments, place, factory_args, any_size=True)[0]

    def binary_of(self, variant: Variant) -> Path:
        """Where the binary of one of the variants lies.

        Raises:
            PackageError: The manifest names none, or one outside of the package.
        """
        return self._folders[id(variant)] / place_of(variant, EXECUTABLE)

    def cpu_level_of(self, fitting: Sequence[Variant]) -> int:
        """Rank of this processor's instruction level; the binaries themselves know how to ask.

        Args:
            fitting: Variants for the CPU, of which the one that needs the least is loaded.
        """
        lowest = min(fitting, key=lambda v: read_target(v.target).cpu_rank)
        level = int(self.module_of(lowest)[CPU_LEVEL]())
        if not 0 <= level <= len(CPU_LEVELS):
            raise LoadError(self._where, f"{EXECUTABLE} names CPU level {level}", "Build the package again.")
        return level

    def module_of(self, variant: Variant) -> Any:
        """The loaded binary of one of the variants; raises as :func:`~tlaot.runtime.binary.load_binary`, and LoadError where the
        driver or the C library is too old."""
        path = self.binary_of(variant)
        module = self._modules.get(path)
        if module is not None:
            return module
        with loading():
            module = self._modules.get(path)
            if module is None:
                require_floors(self._where, variant)
                module = self._modules[path] = load_binary(path, variant.files[EXECUTABLE])
        return module

    def retuned_for(self, place: Place) -> list[Variant]:
        """The variants that an overlay has calls on a device run."""
        return [] if self._overlay is None else self._overlay.variants_of(self.name, self.variants, place)

    def __repr__(self) -> str:
        targets = ", ".join(sorted({v.target for v in self.variants}))
        signature = describe_params(self.variants[0]) if self.variants else "()"
        more = f" and {len(self.variants) - 1} more" if len(self.variants) > 1 else ""
        bound = "".join(f"; {name}={value!r}" for name, value in self.factory_args.items())
        return f"<tlaot.Kernel {self._where}{signature}{more}; {targets or 'no target'}{bound}>"

    def _worded(self, args: tuple[Any, ...], error: Exception) -> Exception:
        """What the FFI or the kernel's own checks refused, or what was raised above them, in our words if we have any.

        Raises:
            CallError, DispatchError: In these.
        """
        try:
            self._pick(describe(self._where, args, self._strides), self.factory_args)
        except DispatchError:
            if self._policy is None or self._policy.on_miss == "error":
                raise
            return error  # of what the miss policy has called
        if type(error) is ValueError and "must be contiguous" in str(error):
            return ValueError(f"{error}\nPass a compact copy: np.ascontiguousarray(x), or x.contiguous().")
        return error

    def _decide(self, args: tuple[Any, ...]) -> Decision | Caller:
        call = describe(self._where, args, self._strides)
        known: Decision | None = self._regions.find(args, call)
        if known is not None:
            if call.arguments != known.call.arguments:
                self._note(call, known.variant)
            return replace(known, call=call)
        key = call.device, call.arguments, *map(type, args)
        decided = self._decided.get(key)
        if decided is not None:
            return replace(decided, call=call)
        try:
            variant = self._pick(call, self.factory_args)
        except DispatchError as error:
            return self._replace(call, self.factory_args, error)
        function = self.module_of(variant)[CALL]
        plain = None if differs(variant) else function
        if copies(variant) or differs(variant):
            from .guards import guard

            function = guard(self._where, variant, function)
        self._note(call, variant)
        if read_target(variant.target).is_cuda and call.device is not None:
            place = cuda_place(call.device[1])
            retuned = self._overlay is not None and self._overlay.covers(place)
            better = companions_for(self._homes, place.capability, variant.target) if place.capability else ()
            say_once(self._where, variant, call.device[1], retuned=retuned, companions=better)
        way = None if plain is None else self.way_of(variant)
        ranges = self._ranges_of(call, variant) if way is not None or variant.buckets else None
        # What is kept must not keep a caller's tensor alive.
        kept = Decision(replace(call, like=None), variant, function, plain, ranges, way)
        if len(self._decided) >= _MOST_DECIDED:
            self._decided.clear()
        self._decided[key] = kept
        if ranges is not None:
            self._regions.add(args, call, ranges, kept)
        return replace(kept, call=call)

    def _note(self, call: Described, variant: Variant) -> None:
        note(self._where, call.arguments, Place(*call.device or (DLPACK_CPU, 0)), "hit", spell_variant(variant))

    def _forget(self) -> None:
        super()._forget()
        self._regions, self._decided = Regions(), {}

    def _ranges_of(self, call: Described, variant: Variant) -> list[list[Range]] | None:
        """The other sizes that a decision holds for; an overlay and a pin decide for single sizes."""
        if self._overlay is not None or (self._policy is not None and self.name in self._policy.pins):
            return None
        place = self._place(call, self.factory_args)
        return find_ranges(self._all, variant, call.arguments, place, self.factory_args)

    def way_of(self, variant: Variant) -> Way | None:
        """The library of the variant's package that may take its calls; None where there is none."""
        if DIRECT not in variant.files:
            return None
        return Way(self._folders[id(variant)] / place_of(variant, DIRECT), variant.files[DIRECT])

    def _pick(self, call: Described, factory_args: Mapping[str, Any]) -> Variant:
        if not self._all:
            factory_args = {}  # whatever they are: the companion that knows them is not installed
        place = self._place(call, factory_args)
        pin = None if self._policy is None else self._policy.pins.get(self.name)
        if pin is not None:
            from .pin import pinned

            by_hand = pinned(self._where, self._all, call.arguments, place, factory_args, pin)
            if by_hand is not None:
                return by_hand
        try:
            chosen = pick_variant(self._where, self._all, call.arguments, place, factory_args)
        except DispatchError as error:
            raise self._name_companions(error, place) from None
        if self._overlay is None:
            return chosen
        return self._overlay.replace(self.name, self._all, chosen, call.arguments, place, factory_args)

    def _replace(self, call: Described, factory_args: Mapping[str, Any], error: DispatchError) -> Caller:
        """What the miss policy has called in place of a variant; raises what the call does where it has nothing."""
        from .miss import answer

        place = self._place(call, factory_args)
        made = answer(self._policy, self._where, self._all, call.arguments, place, factory_args, error)
        named = dict(factory_args)
        return lambda args: made(*args, **named)

    def _name_companions(self, error: DispatchError, place: Place) -> DispatchError:
        if place.device_type != DLPACK_CUDA or not missing_companions(self._homes):
            return error
        try:
            capability = cuda_capability(place.device_id)
        except LoadError:
            return error
        return name_companions(error, self._homes, self._all, capability)

    def _place(self, call: Described, factory_args: Mapping[str, Any]) -> Place:
        if call.device is None:
            check_factory_names(self._where, self._all, factory_args)
            raise CallError(self._where, "no argument is a tensor, so the device is unknown", "Pass a tensor.")
        device_type, device_id = call.device
        if device_type == DLPACK_CUDA and any(read_target(v.target).is_cuda for v in self._all):
            return cuda_place(device_id)
        place = Place(device_type, device_id)
        if device_type != DLPACK_CPU:
            return place
        fitting, _ = resolve(self._all, call.arguments, place, factory_args)
        level = self.cpu_level_of(fitting) if fitting else None
        return Place(device_type, device_id, cpu_level=level)
