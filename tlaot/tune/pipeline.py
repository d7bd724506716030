"""The whole build, stage by stage: spec, plan, compile, measure, select, package."""

from __future__ import annotations

import os
import shutil
import sys
import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import Future
from contextlib import contextmanager
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any, Protocol

from .. import __version__
from ..errors import BuildError, SpecError, TuningError
from ..manifest import place_of, read_manifest
from ..target import Target, parse_target
from .child import Child, Failed
from .compile import EXECUTABLE, Built, CompilePool, Workshop, expand_kernel
from .frontends import FRONTENDS
from .journal import Journal
from .machine import Machine, inspect_machine
from .measure import Measured
from .package import Winner, write_package
from .place import hold_project, work_folder
from .plan import Candidate, Workload, counted
from .record import (
    candidate_keys,
    digest_sources,
    doubts_of,
    latency_of,
    load_record,
    make_record,
    record_key,
    save_record,
)
from .schedule import Stand, Tuned, tune_workloads
from .search import Search, Skipped, make_search
from .select import default_timing, select_winner
from .spec import KernelSpec, Spec
from .spec_file import read_spec
from .store import Keys, Store
from .toolchain import Toolchain, find_toolchain

__all__ = ["Settings", "build_package"]


class Settings(Protocol):
    """What a build may be told from outside; ``build_hooks.settings.Settings`` is one."""

    @property
    def tune(self) -> str: ...
    @property
    def targets(self) -> tuple[str, ...] | None: ...
    @property
    def jobs(self) -> int | None: ...
    @property
    def keep(self) -> bool: ...


@dataclass(frozen=True)
class Group:
    """The kernel entries of one frontend and one target: one kind of worker process serves them."""

    frontend: str
    target: Target
    kernels: tuple[KernelSpec, ...]


@dataclass(frozen=True)
class Site:
    """Where and with what a build runs."""

    workshop: Workshop
    machine: Machine
    records: Path
    store: Path
    sources: str
    journal: Journal
    settings: Settings


def build_package(
    spec_path: Path, source_root: Path, output: Path, settings: Settings, log: Callable[[str], None]
) -> tuple[Path, ...]:
    """Tune every kernel of a spec over every shape and write the folder that the wheel embeds.

    Args:
        spec_path: ``tltune.toml``.
        source_root: Folder from which the author's modules are imported.
        output: Folder to write, ``<build_lib>/<package>/_tlaot``.
        settings: Effective settings of the build.
        log: Takes one line of text for the person who builds.

    Returns:
        The files, relative to ``output``.

    Raises:
        SpecError: The spec, a setting or a callable of the spec is wrong.
        BuildError: A tool or device that a declared target needs is missing.
        TuningError: No candidate of some workload is left.
    """
    spec = read_spec(spec_path)
    with _open_site(spec, source_root, settings, log) as site:
        groups = _choose_groups(spec, site)
        for group in groups:
            site.workshop.warm(group.frontend, group.target)
        winners = [winner for group in groups for winner in _tune_group(group, _equip(site, group))]
        for left in output.parent.glob(f".{output.name}.*"):  # of a build that was killed; it would get into the wheel
            shutil.rmtree(left, ignore_errors=True)
        files = write_package(output, spec.package, __version__, winners, settings.keep)
        _open_packaged(output, site)
    size = sum((output / file).stat().st_size for file in files)
    log(f"tlaot: {counted(len(winners), 'kernel')} in {len(files)} files, {size / 1024:.0f} KiB")
    return files


@contextmanager
def _open_site(spec: Spec, source_root: Path, settings: Settings, log: Callable[[str], None]) -> Iterator[Site]:
    hold_project(spec.path.parent, log)
    base = work_folder(spec.path.parent)
    scratch = Path(tempfile.mkdtemp(dir=base, prefix="run-"))
    search_path = tuple(dict.fromkeys([str(source_root), *(entry for entry in sys.path if entry)]))
    environ = {key: value for key, value in os.environ.items() if key != "PYTHONPATH"}
    machine = inspect_machine(search_path, environ)
    told = f"build of {spec.package}: tune={settings.tune}, targets={settings.targets or 'all'}, jobs={settings.jobs or 'all'}"
    journal = Journal(base / "autotuner.log", log, f"{told}, tlaot {__version__}")
    toolchain = find_toolchain(environ, cuda=False)
    jobs = settings.jobs or machine.cpu_count
    workshop = Workshop(scratch, search_path, environ, journal.path, jobs, toolchain, spec.devices)
    sources = digest_sources(source_root, [name for kernel in spec.kernels for name in _modules(kernel)])
    try:
        yield Site(workshop, machine, base / "records", base / "store", sources, journal, settings)
    finally:
        shutil.rmtree(scratch, ignore_errors=True)


def _modules(kernel: KernelSpec) -> list[str]:
    names = [kernel.factory, kernel.reference, kernel.inputs, kernel.shapes, kernel.configs]
    return [name.partition(":")[0] for name in names if isinstance(name, str)]


def _choose_groups(spec: Spec, site: Site) -> list[Group]:
    """The declared targets, less the optional ones that this machine cannot build, by frontend and target."""
    wanted = None if site.settings.targets is None else tuple(parse_target(text) for text in site.settings.targets)
    for target in wanted or ():
        if str(target) not in spec.targets:
            raise SpecError("targets", f"no kernel is declared for {target}", f"Declared: {', '.join(spec.targets)}.")
    groups: dict[tuple[str, Target], list[KernelSpec]] = {}
    for kernel in spec.kernels:
        for target in kernel.targets:
            if wanted is None or target in wanted:
                groups.setdefault((kernel.frontend, target), []).append(kernel)
    chosen = []
    for (frontend, target), kernels in groups.items():
        missing = _missing(frontend, target, site)
        if missing is None:
            chosen.append(Group(frontend, target, tuple(kernels)))
            continue
        what, remedy = missing
        if target in spec.when_available and wanted is None:
            names = ", ".join(kernel.name for kernel in kernels)
            site.journal.say(f"tlaot: skipped {target} of {names}: {what}. {remedy}")
        else:
            raise BuildError(f"{kernels[0].where} target {target}", what, remedy)
    if not chosen:
        raise BuildError(spec.path.name, "none of the declared targets can be built here", "See the lines above.")
    return chosen


def _missing(frontend: str, target: Target, site: Site) -> tuple[str, str] | None:
    """What this machine lacks for a target, and how to get it; None where it lacks nothing."""
    distribution = FRONTENDS[frontend][1]
    found = site.machine.distributions
    if distribution not in found:
        return f"{distribution} is not installed in the build environment", (
            f'Add "tlaot[{frontend}]" to [build-system] requires, or pip install {distribution} and use --no-build-isolation.'
        )
    if not target.is_cuda:
        return None
    try:
        find_toolchain(site.workshop.environ, cuda=True)
    except BuildError as error:
        return error.what, error.remedy
    if site.machine.gpu_for(target) is None:
        gpus = ", ".join(f"{gpu.name} (sm_{gpu.capability[0]}{gpu.capability[1]})" for gpu in site.machine.gpus)
        return f"there is no GPU to tune {target} on (found: {gpus or 'none'})", "Build on a machine that has one."
    if "torch" not in found:
        return "torch, which checks and times CUDA kernels, is not installed in the build environment", (
            "Install torch and build with --no-build-isolation."
        )
    return None


def _equip(site: Site, group: Group) -> Site:
    if not group.target.is_cuda:
        return site
    toolchain = find_toolchain(site.workshop.environ, cuda=True)
    return replace(site, workshop=replace(site.workshop, toolchain=toolchain))


def _tune_group(group: Group, site: Site) -> list[Winner]:
    """Plan and tune for one frontend and target; a workload whose record holds is only compiled."""
    planned = _plan(group, site)
    device, tools = site.machine.device_name(group.target), _tools(group, site)
    keys = {path: record_key(workload, site.sources, tools, device) for path, workload in planned.items()}
    fresh = site.settings.tune == "force"
    records = {
        path: record
        for path, workload in planned.items()
        if not fresh and (record := load_record(site.records, workload, keys[path])) is not None
    }
    winners: dict[str, Winner] = {}

    def decided(tuned: Tuned) -> None:
        winners[tuned.workload.path] = _conclude(tuned, keys[tuned.workload.path], device, store, site)

    def identify(candidate: Candidate) -> Keys:
        return candidate_keys(candidate, site.sources, tools, device)

    store = Store(site.store, identify, site.journal.say, fresh)
    with CompilePool(group.frontend, group.target, site.workshop) as pool:
        recorded = _compile_recorded(planned, records, pool, store)
        plans = _plan_searches(group, [workload for path, workload in planned.items() if path not in records])
        if plans:
            _tune(group, plans, pool, store, site, decided)
        for path, waiting in recorded.items():
            winners[path] = _from_record(planned[path], records[path], waiting, store, site)
    return [winners[path] for path in planned]


def _tune(
    group: Group,
    plans: Sequence[tuple[Sequence[Workload], Search]],
    pool: CompilePool,
    store: Store,
    site: Site,
    decided: Callable[[Tuned], None],
) -> None:
    count = sum(len(workload.configs) for workloads, _ in plans for workload in workloads)
    number = sum(len(workloads) for workloads, _ in plans)
    site.journal.say(f"tlaot: {group.target}: {counted(count, 'candidate')} of {counted(number, 'workload')}")
    with _measuring_child(group.target, site) as child, site.journal.show(count, str(group.target)) as progress:
        stand = Stand(pool, [child], store, site.journal, progress, overlap=group.target.is_cuda)
        tune_workloads(plans, stand, decided)


def _plan_searches(group: Group, workloads: Sequence[Workload]) -> list[tuple[list[Workload], Search]]:
    """One search a kernel entry, over those of its workloads that have no record."""
    mine = [(kernel, [workload for workload in workloads if workload.kernel is kernel]) for kernel in group.kernels]
    return [(own, make_search(kernel, own)) for kernel, own in mine if own]


def _plan(group: Group, site: Site) -> dict[str, Workload]:
    """The workloads of a group by their paths."""
    child = site.workshop.worker(group.frontend, group.target)
    planned: list[Workload] = []
    try:
        for kernel in group.kernels:
            expanded = expand_kernel(kernel, group.target, child, site.workshop)
            if isinstance(expanded, Failed):
                site.journal.write(expanded.detail)
                raise SpecError(kernel.where, f"its shapes and configs cannot be had: {expanded.reason}", "")
            planned.extend(expanded[0])
    finally:
        child.kill()
    paths: dict[str, Workload] = {}
    for workload in planned:
        if workload.path in paths:
            raise SpecError(
                workload.kernel.where, f"the shape of {workload.label} is listed twice", "Keep one of them."
            )
        paths[workload.path] = workload
    return paths


def _tools(group: Group, site: Site) -> dict[str, Any]:
    toolchain: Toolchain = site.workshop.toolchain
    cuda = toolchain.cuda if group.target.is_cuda else None
    return {
        "tlaot": __version__,
        "frontend": site.machine.distributions[FRONTENDS[group.frontend][1]],
        "cc": toolchain.host.version,
        "nvcc": None if cuda is None else cuda.version,
        "nvrtc": cuda is not None and bool(cuda.nvrtc),
    }


def _compile_recorded(
    planned: Mapping[str, Workload], records: Mapping[str, Mapping[str, Any]], pool: CompilePool, store: Store
) -> dict[str, Built | Future[Built | Failed]]:
    """The recorded winners' binaries: from the store, or on their way."""
    found: dict[str, Built | Future[Built | Failed]] = {}
    for path, record in records.items():
        candidate = planned[path].candidates()[record["winner"]]
        built = store.built(candidate)
        found[path] = pool.submit(candidate) if built is None else built
    return found


@contextmanager
def _measuring_child(target: Target, site: Site) -> Iterator[Child]:
    device = "cpu"
    if target.is_cuda:
        gpu = site.machine.gpu_for(target)
        assert gpu is not None
        device = f"cuda:{gpu.index}"
    child = site.workshop.measurer(device)
    try:
        yield child
    finally:
        child.kill()


def _conclude(tuned: Tuned, key: str, device: str, store: Store, site: Site) -> Winner:
    workload, outcomes = tuned.workload, tuned.outcomes
    try:
        winner = select_winner(workload, outcomes, tuned.decision.winner_index, site.journal.path)
    except TuningError as error:
        site.journal.write(str(error))
        raise
    record = make_record(workload, key, device, outcomes, tuned.decision)
    save_record(site.records, workload, record)
    for candidate in workload.candidates():
        if candidate.index != winner.candidate.index:
            store.drop_sources(candidate)
    site.journal.say(f"tlaot: {'; '.join([_summary(tuned, winner), *tuned.decision.notes])}")
    return Winner(
        workload, winner.candidate.config, winner.built, latency_of(record), {"device": device}, doubts_of(record)
    )


def _from_record(
    workload: Workload,
    record: Mapping[str, Any],
    waiting: Built | Future[Built | Failed],
    store: Store,
    site: Site,
) -> Winner:
    candidate = workload.candidates()[record["winner"]]
    built = waiting if isinstance(waiting, Built) else waiting.result()
    if isinstance(built, Failed):
        raise TuningError(
            candidate.label,
            f"the recorded winner does not build any more: {built.stage}: {built.reason}",
            "Tune again: -C tune=force or TLAOT_TUNE=force.",
        )
    if built is not waiting:
        built = store.keep_built(candidate, built)
    doubts, told = doubts_of(record), [f"the record of an earlier build holds, {candidate.settings}"]
    if doubts:
        told += [*doubts, "TLAOT_TUNE=force on a quiet machine tunes again"]
    site.journal.say(f"tlaot: {workload.label}: {'; '.join(told)}")
    return Winner(workload, candidate.config, built, latency_of(record), {"device": record["device"]}, doubts)


def _summary(tuned: Tuned, winner: Measured) -> str:
    outcomes, reference = tuned.outcomes, tuned.decision.reference
    failed = sum(isinstance(outcome, Failed) for outcome in outcomes)
    skipped = sum(isinstance(outcome, Skipped) for outcome in outcomes)
    default = default_timing(outcomes)
    parts = [f"{tuned.workload.label}: {winner.timing.latency:.4g} ms with {winner.candidate.settings}"]
    if default is not None:
        parts.append(f"default {default.latency:.4g} ms")
    elif isinstance(outcomes[0], Failed):
        parts.append("the default failed")
    if reference is not None:
        parts.append(f"reference {reference.latency:.4g} ms")
    parts.append(counted(len(outcomes), "candidate"))
    return "; ".join(parts) + "".join(f", {n} {what}" for n, what in ((failed, "failed"), (skipped, "not tried")) if n)


def _open_packaged(output: Path, site: Site) -> None:
    """Load every packaged binary in a fresh process: what fails must fail here, not at a user's."""
    manifest = read_manifest(output / "manifest.json")
    variants = [variant for kernel in manifest.kernels.values() for variant in kernel.variants]
    candidates = [
        {"path": str(output / place_of(variant, EXECUTABLE)), "digest": asdict(variant.files[EXECUTABLE])}
        for variant in variants
    ]
    child = site.workshop.measurer("cpu")
    try:
        answer = child.request({"op": "open", "candidates": candidates}, 300, again=2)
    finally:
        child.kill()
    if isinstance(answer, Failed):
        shutil.rmtree(output, ignore_errors=True)
        raise BuildError(str(output), f"a packaged kernel does not load: {answer.reason}", f"See {site.journal.path}.")
