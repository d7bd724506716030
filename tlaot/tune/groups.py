"""What is to be built: the declared targets that this machine has the tools for, and the workloads of each."""

from __future__ import annotations

from collections.abc import Container, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from .. import __version__
from ..errors import BuildError, SpecError
from ..target import Target, parse_target
from .children.child import Failed
from .compiling.compile import expand_kernel
from .compiling.nvrtc import read_build
from .compiling.toolchain import find_toolchain
from .frontends import FRONTENDS
from .locks.fit import spec_fields
from .locks.sources import Known, digest_modules, modules_of
from .machine import Machine
from .site import Site, equip
from .specs.plan import Workload
from .specs.spec import KernelSpec, Spec

__all__ = [
    "Group",
    "Work",
    "all_groups",
    "choose_groups",
    "is_optional",
    "lacking_device",
    "lacking_frontend",
    "plan_group",
    "refuse_nothing",
    "say_skipped",
]


@dataclass(frozen=True)
class Group:
    """The kernel entries of one frontend and one target: one kind of worker process serves them.

    Attributes:
        frontend: The frontend.
        target: The target.
        kernels: The entries.
        stand_in: The target whose winners this one takes; None where it is tuned itself.
    """

    frontend: str
    target: Target
    kernels: tuple[KernelSpec, ...]
    stand_in: Target | None = None

    @property
    def measure(self) -> bool:
        """Whether its kernels are measured, or all compiled as they are."""
        return self.kernels[0].measure

    @property
    def names(self) -> str:
        return ", ".join(kernel.name for kernel in self.kernels)


@dataclass(frozen=True)
class Work:
    """A group with its workloads, and what their evidence depends on.

    Attributes:
        group: The group.
        workloads: By their paths.
        specs: What of each entry the evidence depends on, by the entry's place in the spec.
        sources: Digests of the modules that each entry is made of, likewise.
        tools: Versions of what compiles.
    """

    group: Group
    workloads: Mapping[str, Workload]
    specs: Mapping[str, Mapping[str, Any]]
    sources: Mapping[str, Mapping[str, str]]
    tools: Mapping[str, str]


def choose_groups(spec: Spec, site: Site) -> list[Group]:
    """The declared targets, less the optional ones that this machine has no tools for, by frontend and target.

    Those that take the winners of others come last.

    Raises:
        SpecError: The settings name a target that is not declared.
        BuildError: A tool is missing that a target needs, or no target is left.
    """
    wanted = None if site.settings.targets is None else tuple(parse_target(text) for text in site.settings.targets)
    for target in wanted or ():
        if str(target) not in spec.targets:
            raise SpecError("targets", f"no kernel is declared for {target}", f"Declared: {', '.join(spec.targets)}.")
    chosen = []
    for group in all_groups(spec, wanted):
        missing = _lacking_tool(group, site)
        if missing is None:
            chosen.append(group)
        elif is_optional(group, site):
            say_skipped(group, missing, site)
        else:
            raise BuildError(f"{group.kernels[0].where} target {group.target}", *missing)
    refuse_nothing(chosen, spec)
    return chosen


def is_optional(group: Group, site: Site) -> bool:
    """Whether the wheel may do without: PTX goes with the target that it is made of."""
    target = Target("cuda", group.target.sm) if group.target.is_virtual else group.target
    return target in site.spec.when_available and site.settings.targets is None


def say_skipped(group: Group, missing: tuple[str, str], site: Site) -> None:
    site.journal.say(f"tlaot: skipped {group.target} of {group.names}: {missing[0]}. {missing[1]}")


def refuse_nothing(groups: list[Group], spec: Spec) -> None:
    if not groups:
        raise BuildError(spec.path.name, "none of the declared targets can be built here", "See the lines above.")


def all_groups(spec: Spec, wanted: tuple[Target, ...] | None = None) -> list[Group]:
    """The groups of a spec; of the ``wanted`` targets, where some are named."""
    tuned: dict[tuple[str, Target, bool], list[KernelSpec]] = {}
    derived: dict[tuple[str, Target, Target], list[KernelSpec]] = {}
    for kernel in spec.kernels:
        for target in kernel.targets:
            if wanted is not None and target not in wanted:
                continue
            # What is not measured has no winner that another target could take.
            stand_in = parse_target(spec.tuned_as.get(str(target), str(target))) if kernel.measure else target
            if stand_in == target:
                tuned.setdefault((kernel.frontend, target, kernel.measure), []).append(kernel)
            else:
                derived.setdefault((kernel.frontend, target, stand_in), []).append(kernel)
            if target == kernel.ptx_from and not kernel.measure:
                tuned.setdefault((kernel.frontend, target.virtual, False), []).append(kernel)
            elif target == kernel.ptx_from:
                derived.setdefault((kernel.frontend, target.virtual, stand_in), []).append(kernel)
    return [
        *(Group(frontend, target, tuple(kernels)) for (frontend, target, _), kernels in tuned.items()),
        *(Group(frontend, target, tuple(kernels), other) for (frontend, target, other), kernels in derived.items()),
    ]


def _lacking_tool(group: Group, site: Site) -> tuple[str, str] | None:
    """What this machine lacks to compile for a target, and how to get it; None where it lacks nothing."""
    missing = lacking_frontend(group, site.machine.distributions)
    if missing is not None:
        return missing
    if group.target.is_cuda:
        try:
            find_toolchain(site.workshop.environ, cuda=True)
        except BuildError as error:
            return error.what, error.remedy
    return None


def lacking_frontend(group: Group, installed: Container[str]) -> tuple[str, str] | None:
    """What distribution an environment lacks to lower a group's kernels, and how to get it; None where it lacks nothing."""
    distribution = FRONTENDS[group.frontend][1]
    if distribution in installed:
        return None
    return f"{distribution} is not installed in the build environment", (
        f'Add "tlaot[{group.frontend}]" to [build-system] requires, '
        f"or pip install {distribution} and use --no-build-isolation."
    )


def lacking_device(target: Target, machine: Machine) -> tuple[str, str] | None:
    """What a machine lacks to measure on a target's device, and how to get it; None where it lacks nothing."""
    if not target.is_cuda:
        return None
    if machine.gpu_for(target) is None:
        gpus = ", ".join(f"{gpu.name} (sm_{gpu.capability[0]}{gpu.capability[1]})" for gpu in machine.gpus)
        return f"there is no GPU to tune {target} on (found: {gpus or 'none'})", "Build on a machine that has one."
    if "torch" not in machine.distributions:
        return "torch, which checks and times CUDA kernels, is not installed in the build environment", (
            "Install torch and build with --no-build-isolation."
        )
    return None


def plan_group(group: Group, site: Site) -> Work:
    """The workloads of a group, from a worker that may import the author's modules.

    Raises:
        SpecError: Shapes or configs cannot be had, or one shape is listed twice.
    """
    # PTX is of the shapes of the target that it is made of.
    target = Target("cuda", group.target.sm) if group.target.is_virtual else group.target
    child = site.workshop.worker(group.frontend, target)
    planned: list[Workload] = []
    try:
        for kernel in group.kernels:
            expanded = expand_kernel(kernel, target, child, site.workshop)
            if isinstance(expanded, Failed):
                site.journal.write(expanded.detail)
                raise SpecError(kernel.where, f"its shapes and configs cannot be had: {expanded.reason}", "")
            planned.extend(replace(workload, target=group.target) for workload in expanded[0])
    finally:
        child.kill()
    paths: dict[str, Workload] = {}
    for workload in planned:
        if workload.path in paths:
            raise SpecError(
                workload.kernel.where, f"the shape of {workload.label} is listed twice", "Keep one of them."
            )
        paths[workload.path] = workload
    return _describe(group, paths, site)


def _describe(group: Group, workloads: Mapping[str, Workload], site: Site) -> Work:
    """The group with what its evidence depends on."""
    known: Known = {}
    evidence = group.stand_in or group.target
    device = site.workshop.device_of(evidence)
    return Work(
        group,
        workloads,
        specs={kernel.where: spec_fields(kernel, device) for kernel in group.kernels},
        sources={k.where: digest_modules(site.source_root, modules_of(k), known) for k in group.kernels},
        tools=_tools(group, equip(site, group.target)),
    )


def _tools(group: Group, site: Site) -> dict[str, str]:
    cuda, distribution = site.workshop.toolchain.cuda, FRONTENDS[group.frontend][1]
    tools = {
        "tlaot": __version__,
        distribution: site.machine.distributions[distribution],
        "cc": site.workshop.toolchain.host.version,
    }
    if group.target.is_cuda and cuda is not None:
        # Compilers of one release whose builds differ may give other device code.
        tools["cuda"] = cuda.build or cuda.version
        if cuda.nvrtc:
            tools["nvrtc"] = read_build(Path(cuda.nvrtc), cuda.version)
    return tools
