"""``tlaot.load``: a package's kernels, each loaded at its first call."""

from __future__ import annotations

import os
from collections.abc import Hashable, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ..errors import CallError, DispatchError, LoadError, PackageError, did_you_mean
from ..manifest import DIRECT, Manifest, Variant, group_by_factory, place_of
from ..target import CPU_LEVELS, DLPACK_CPU, DLPACK_CUDA, read_target
from .binary import CALL, CPU_LEVEL, EXECUTABLE, load_binary, load_function, loading
from .call import Caller, Described, describe
from .choose import pick_variant
from .device import cuda_capability, cuda_place
from .dispatch import Argument, Place, copies, describe_params, differs, resolve, spell_variant, wants_factory_args
from .floors import require_floors
from .frameworks import leave_untraced
from .notes import say_once
from .path import CallPath, Decision, Way
from .places import (
    OVERLAY_VARIABLE,
    Folders,
    Home,
    companions_for,
    find_homes,
    missing_companions,
    name_companions,
    names_of,
    overlay_path,
    pack_homes,
    refuse_clashes,
    spell_homes,
    unpack_homes,
    variants_of,
)
from .refusal import check_factory_names, refuse_binding
from .region import Range, Regions, find_ranges
from .seen import note

if TYPE_CHECKING:
    from .overlay import Overlay
    from .policy import OnMiss, Policy, Replacement
    from .preload import Only, Preloaded

__all__ = [
    "EXECUTABLE",
    "Kernel",
    "Kernels",
    "factories_of",
    "load",
    "load_function",
    "open_manifest",
    "policy_of",
]

# Set in the processes of a build: they import the author's package before it has kernels, and a package that loads them
# when it is imported must not fail there.
building = False

# A server that sees ever new sizes must not grow without bound.
_MOST_DECIDED = 64


def load(
    package: str,
    path: Folders | None = None,
    on_miss: OnMiss | None = None,
    fallback: Mapping[str, Replacement] | None = None,
) -> Kernels:
    """The kernels of an installed package.

    They are looked for in the package, in its companions (distributions with its name in theirs and an entry point of it in the
    group ``tlaot.kernels``), and in the folders of ``TLAOT_PATH``; together they are one set.

    Reads a JSON file a place (of each kernel the entries, when it is first asked for) and imports tvm_ffi. The package is not
    imported, no device is touched and no binary is loaded until a kernel is called.

    Args:
        package: Import name of the package that embeds the kernels.
        path: A folder, or several, to look into in place of those of ``TLAOT_PATH``: each holds ``<package>/_tlaot`` or a
            ``manifest.json``.
        on_miss: What to do with a call that no packaged variant fits: ``"error"``, ``"warn"``, ``"jit"``, or a function that is
            given a :class:`~tlaot.Miss` and returns what to call in place of a variant, or None. By default ``TLAOT_ON_MISS``
            says it, else it is ``"error"``.
        fallback: By kernel, what ``"warn"`` has called in place of a variant, ``{"matmul": torch.matmul}``.

    Raises:
        CallError: ``on_miss`` or ``fallback`` is wrong.
        SpecError: ``TLAOT_ON_MISS`` or ``TLAOT_PIN`` is.
        PackageError: There are no kernels of the package; a manifest is damaged or of another format; two places have a kernel for
            the same target and shape; a companion belongs to another version of the package; a folder is not there.
        LoadError: The package is inside a zip archive.
    """
    # Imported here, not at the first call: a fork while some thread's first call imports it would leave the child waiting for
    # a lock of the import system whose holder does not exist there.
    import tvm_ffi  # noqa: F401

    leave_untraced(CallPath.__call__)
    policy = _policy_of(package, on_miss, fallback)
    try:
        homes = find_homes(package, path)
    except PackageError:
        if not building:
            raise
        return Kernels(package, [])
    return Kernels(package, homes, _overlay_of(package, homes), policy)


def open_manifest(manifest: Manifest, folder: Path) -> Kernels:
    """The kernels of a manifest whose files are under a folder."""
    return Kernels(manifest.package, [Home(Path(folder), "the package", manifest, "")])


def _reopen(
    package: str,
    homes: Iterable[Any],
    on_miss: OnMiss | None = None,
    fallback: Mapping[str, Replacement] | None = None,
    name: str | None = None,
    factory_args: Mapping[str, Any] | None = None,
) -> Any:
    found = unpack_homes(homes)
    kernels = Kernels(package, found, _overlay_of(package, found), _policy_of(package, on_miss, fallback))
    if name is None:
        return kernels
    return kernels[name].bind(**factory_args) if factory_args else kernels[name]


def _overlay_of(package: str, homes: Sequence[Home]) -> Overlay | None:
    path = overlay_path(package)
    if path is None or not (os.path.lexists(path) or OVERLAY_VARIABLE in os.environ):
        return None  # as nearly everywhere: what reads one is not imported
    from .overlay import read_overlay

    return read_overlay(package, homes)


def _policy_of(package: str, on_miss: OnMiss | None, fallback: Mapping[str, Replacement] | None) -> Policy | None:
    if on_miss is None and not fallback and not os.environ.get("TLAOT_ON_MISS") and not os.environ.get("TLAOT_PIN"):
        return None  # as mostly: what reads one is not imported
    from .policy import read_policy

    return read_policy(package, on_miss, fallback)


def _pack_policy(policy: Policy | None) -> tuple[Any, ...]:
    return (None, None) if policy is None else (policy.given, policy.fallback)


def factories_of(kernels: Kernels) -> dict[str, tuple[str, ...]]:
    """A package's kernels by what makes them, ``"module:function"``, as its ``tltune.toml`` says."""
    found: dict[str, dict[str, None]] = {}
    for home in kernels._homes:
        manifest = home.manifest
        # Of a manifest that does not say it, by an older tlaot, the entries do.
        for factory, names in (manifest.factories or group_by_factory(manifest.kernels)).items():
            found.setdefault(factory, {}).update(dict.fromkeys(names))
    return {factory: tuple(names) for factory, names in found.items()}


def policy_of(kernels: Kernels) -> Policy | None:
    """How a load treats calls that no packaged variant fits; None: they are errors."""
    return kernels._policy


class Kernels:
    """The kernels of one package, by attribute or by item: ``kernels.matmul``, ``kernels["matmul"]``."""

    def __init__(
        self,
        package: str,
        homes: Sequence[Home],
        overlay: Overlay | None = None,
        policy: Policy | None = None,
    ) -> None:
        self._package = package
        self._overlay = overlay
        self._policy = policy
        self._homes = tuple(homes)
        self._names = dict.fromkeys(names_of(homes))
        self._kernels: dict[str, Kernel] = {}
        refuse_clashes(homes)

    def __reduce__(self) -> tuple[Any, ...]:
        # A copy, in this process or another, finds the package where it was; loaded libraries do not travel.
        return _reopen, (self._package, pack_homes(self._homes), *_pack_policy(self._policy))

    def __getattr__(self, name: str) -> Kernel:
        # Called for names that are not attributes; looking them up in a half-made object must not recurse.
        if name not in self.__dict__.get("_names", ()):
            raise AttributeError(self._unknown(name), name=name, obj=self)
        found = self._open(name)
        # As a plain attribute from now on: this way costs half a microsecond a call.
        vars(self)[name] = found
        return found

    def __getitem__(self, name: str) -> Kernel:
        if name not in self._names:
            raise KeyError(self._unknown(name))
        return self._open(name)

    def _open(self, name: str) -> Kernel:
        """One of the kernels, whose entries are parsed when it is first asked for."""
        found = self._kernels.get(name)
        if found is None:
            located = variants_of(self._homes, name)
            made = Kernel(f"{self._package}.{name}", name, located, self._homes, self._overlay, self._policy)
            found = self._kernels.setdefault(name, made)  # of two threads one is first
        return found

    def preload(self, device: Any = None, only: Only = None) -> Preloaded:
        """Load kernels on a device ahead of their first calls: before memory is profiled, before a CUDA graph is captured.

        A first call does the same for the one variant that it runs, under capture as well; what it takes there, of time and of
        memory, is then taken in the middle of serving. Nothing is ever unloaded. Preloading again does nothing anew, from any
        thread, and after a fork (of a process that has not used CUDA).

        Args:
            device: An ordinal, ``"cuda:1"``, ``"cpu"`` or a torch.device; None is the current CUDA device, or the CPU where the
                package or the machine has nothing for CUDA.
            only: A kernel's name or several; ``{"matmul": {"N": 4096, "K": [4096, 8192]}}``, names with factory arguments that a
                variant must have; or a function of a kernel's name and a variant that says whether it is to be loaded.

        Returns:
            What is loaded, with sizes; ``print`` shows it.

        Raises:
            CallError: There is no such kernel, or that is no device.
            PackageError: A file is missing or damaged.
            LoadError: The device is not there, or a file or its device code cannot be used.
        """
        # Imported here: programs that do not preload need none of it.
        from .preload import preload

        return preload(self, device, only)

    def __iter__(self) -> Iterator[str]:
        return iter(self._names)

    def __len__(self) -> int:
        return len(self._names)

    def __contains__(self, name: object) -> bool:
        return name in self._names

    def __dir__(self) -> list[str]:
        return sorted({*super().__dir__(), *self._names})

    def __repr__(self) -> str:
        shown = [f"<tlaot.Kernels of {self._package}: {', '.join(self._names) or 'none'}"]
        if more := spell_homes(self._homes):
            shown.append(f"also from {more}")
        if self._overlay is not None:
            shown.append(f"overlay {self._overlay.path}")
        return f"{'; '.join(shown)}>"

    def _unknown(self, name: str) -> str:
        if str(name).startswith("__"):
            return name
        hint = did_you_mean(str(name), self._names) or f"; it has {', '.join(self._names) or 'none'}"
        return f"package {self._package} has no kernel {name!r}{hint}"


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
        return _reopen, (*place, *_pack_policy(self._policy), self.name, dict(self.factory_args))

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
