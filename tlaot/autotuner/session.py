"""One tuning from Python, on the stages that ``pip wheel`` uses: compile, measure, select."""

from __future__ import annotations

import shutil
import tempfile
import time
import warnings
from collections.abc import Callable, Sequence
from contextlib import ExitStack, suppress
from dataclasses import replace
from pathlib import Path

from ..errors import BuildError, SpecError
from ..target import Target
from ..tune.children.child import Failed
from ..tune.compiling.compile import Built, CompilePool, Workshop, compile_candidates
from ..tune.executors.local import open_devices
from ..tune.locks.lock import doubts_of, latencies
from ..tune.measuring.measure import Measured
from ..tune.searching.schedule import Outcome, Stand, Tuned, tune_workloads
from ..tune.searching.search import make_search
from ..tune.searching.select import default_timing, select_winner
from ..tune.searching.store import Keys, Store
from ..tune.shipping.package import Winner
from ..tune.specs.plan import Candidate, Workload, counted
from ..tune.specs.supply import supply_from_json, validate_supply
from ..tune.telling.journal import Journal
from .here import check_clock, choose_devices, machine_here, resolve_target, toolchain_here
from .request import Request, check_search
from .settings import log_path, read_settings, resolve_num_workers
from .workload import make_workload

__all__ = ["compile_only", "make_scratch", "remove", "tune"]

# No tuning takes so long.
_ABANDONED_S = 2 * 86400.0


def tune(
    request: Request, scratch: Path, keys: Callable[[Candidate], Keys] | None = None, store: Path | None = None
) -> Winner:
    """Compile, check and time candidates, and choose the winner.

    Args:
        request: What to tune.
        scratch: Folder for intermediate files; the winner's files may be in it until the caller has taken them.
        keys: Identity of a candidate; None where the request has none.
        store: Folder of what earlier tunings of the factory have found; None keeps nothing.

    Returns:
        The winner.

    Raises:
        SpecError: A callback or an input is wrong.
        BuildError: A compiler, frontend or device is missing.
        TuningError: No candidate is left; the message lists every reason by count.
    """
    machine, search_path, environ = machine_here()
    target = resolve_target(request, machine)
    check_clock(request.profile_args.backend, target)
    journal = _journal(request)
    workload = make_workload(request, target, scratch)
    workshop = _workshop(target, len(workload.configs), scratch, search_path, environ, journal)
    workshop.warm(request.factory.frontend, target)
    check_search(request.run_args)
    run, search = request.run_args, make_search(workload.kernel, [workload])
    found: list[Tuned] = []
    with ExitStack() as stack:
        stand = Stand(
            pool=stack.enter_context(CompilePool(request.factory.frontend, target, workshop)),
            devices=stack.enter_context(
                open_devices(choose_devices(request, target, machine, journal), workshop, journal)
            ),
            store=Store(None if keys is None else store, keys or _no_keys, journal.say),
            journal=journal,
            progress=stack.enter_context(journal.show(len(workload.configs), workload.label)),
            overlap=target.is_cuda if run.use_pipeline is None else run.use_pipeline,
            early_stop_factor=run.early_stop_factor if run.early_stop else None,
            on_built=_check_supply,
        )
        tune_workloads([([workload], search)], stand, found.append)
    tuned = found[0]
    _raise_what_all_share(workload, tuned.outcomes)
    winner = select_winner(workload, tuned.outcomes, tuned.decision.winner_index, journal.path)
    device = machine.device_name(target)
    doubts = doubts_of(tuned.decision.trusted, tuned.decision.notes)
    if tuned.decision.notes:
        (journal.write if doubts else journal.say)(f"{workload.label}: {'; '.join(tuned.decision.notes)}")
    if doubts:
        warnings.warn(f"tlaot: {workload.label}: {'; '.join(doubts)}", stacklevel=6)
    config = request.configs[winner.candidate.index]
    latency = latencies(winner.timing, default_timing(tuned.outcomes), tuned.decision.reference)
    return Winner(workload, config, winner.built, latency, {"device": device}, doubts)


def compile_only(
    request: Request, scratch: Path, ignore_error: bool = False, num_workers: int | None = None
) -> list[Winner | Failed]:
    """Compile every config of a request and measure none.

    Raises:
        BuildError: A config does not compile, and ``ignore_error`` is off.
    """
    machine, search_path, environ = machine_here()
    target = resolve_target(request, machine)
    journal = _journal(request)
    workload = make_workload(request, target, scratch)
    workshop = _workshop(target, len(workload.configs), scratch, search_path, environ, journal)
    if num_workers is not None:
        workshop = replace(workshop, jobs=max(1, num_workers))
    outcomes = compile_candidates(workload.candidates(), request.factory.frontend, workshop, journal.compiled)
    nothing = {"latency": None, "ref_latency": None, "default_latency": None, "spread": None}
    made: list[Winner | Failed] = []
    for config, outcome in zip(request.configs, outcomes, strict=True):
        if isinstance(outcome, Failed) and not ignore_error:
            raise BuildError(
                workload.label, f"{config}: {outcome.stage}: {outcome.reason}", f"{journal.path} has more."
            )
        made.append(outcome if isinstance(outcome, Failed) else Winner(workload, config, outcome, nothing, {}))
    return made


def _workshop(
    target: Target, count: int, scratch: Path, search_path: tuple[str, ...], environ: dict[str, str], journal: Journal
) -> Workshop:
    toolchain = toolchain_here(target.is_cuda)
    return Workshop(scratch, search_path, environ, journal.path, resolve_num_workers(count), toolchain, {})


def _no_keys(candidate: Candidate) -> Keys:
    raise AssertionError("a store without a folder asks for no keys")


def _check_supply(candidate: Candidate, built: Built) -> None:
    """Raise at the first candidate that compiled, and not for each at last, that inputs must be given."""
    kernel = candidate.workload.kernel
    if kernel.inputs is None and kernel.inputs_file is None:
        validate_supply(built.params, built.out_idx, f"kernel {kernel.name!r}", supply_from_json(kernel.supply))


def _raise_what_all_share(workload: Workload, outcomes: Sequence[Outcome]) -> None:
    """Raise once what is no candidate's fault: inputs that cannot be made, a reference that fails."""
    shared = {(r.stage, r.reason) for r in outcomes if isinstance(r, Failed)}
    if len(shared) == 1 and not any(isinstance(r, Measured) for r in outcomes):
        stage, reason = next(iter(shared))
        if stage == "prepare":
            raise SpecError(workload.kernel.where, reason, "This concerns every candidate alike.")


def _journal(request: Request) -> Journal:
    verbose = request.compile_args.verbose
    verbose = read_settings().verbose if verbose is None else verbose
    begin = f"autotuner: {request.factory.name}, {counted(len(request.configs), 'config')}"
    return Journal(log_path(), print if verbose else None, begin, every_result=bool(verbose))


def remove(folder: Path) -> None:
    shutil.rmtree(folder, ignore_errors=True)


def make_scratch() -> Path:
    """A folder for the intermediate files of one tuning; those that killed processes left go after two days."""
    for left in Path(tempfile.gettempdir()).glob("tlaot-tune-*"):
        with suppress(OSError):  # another user's, or just gone
            if time.time() - left.stat().st_mtime > _ABANDONED_S:
                shutil.rmtree(left)
    return Path(tempfile.mkdtemp(prefix="tlaot-tune-"))
