"""Where and with what a build runs: the machine, its compilers, the folders, and what the build was told."""

from __future__ import annotations

import os
import sys
import tempfile
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Protocol

from .. import __version__
from ..errors import SpecError
from ..target import Target
from .compiling.compile import Workshop
from .compiling.toolchain import find_toolchain
from .executors.choice import open_executor
from .executors.luggage import pack_sources
from .executors.seam import Executor
from .locks.lock import LOCK_NAME, Lock
from .locks.lock_file import read_lock
from .locks.record import digest_sources
from .locks.sources import digest_modules, modules_of
from .machine import Machine, inspect_machine
from .place import hold_project, sweep, work_folder
from .specs.spec import Spec
from .telling.journal import Journal

__all__ = ["Settings", "Site", "equip", "executor_of", "open_site", "warm_up"]


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
    @property
    def lock(self) -> str: ...
    @property
    def executor(self) -> str | None: ...
    @property
    def devices(self) -> tuple[int, ...] | None: ...


@dataclass(frozen=True)
class Site:
    """Where and with what a build runs.

    Attributes:
        spec: The spec.
        source_root: Folder that the author's modules are imported from.
        executor: Where it is compiled and measured.
        workshop: What compiling takes.
        machine: What is in the machine; its GPUs are those that the executor reaches.
        records, store: Folders of what earlier builds found and made.
        sources: Digest of all of the author's sources, for those.
        lock_path: The lock, which may not exist.
        lock: What is in it; nothing where it is to be ignored.
        journal: Is told everything.
        settings: What the build was told.
    """

    spec: Spec
    source_root: Path
    executor: Executor
    workshop: Workshop
    machine: Machine
    records: Path
    store: Path
    sources: str
    lock_path: Path
    lock: Lock
    journal: Journal
    settings: Settings

    @property
    def fresh(self) -> bool:
        """Whether nothing of what is known may be used."""
        return self.settings.tune == "force"


@contextmanager
def open_site(spec: Spec, source_root: Path, settings: Settings, log: Callable[[str], None]) -> Iterator[Site]:
    """Hold the project, look at the machine and read the lock; the scratch folder goes with the block.

    Raises:
        SpecError: The lock is malformed, or was edited.
        BuildError: There is no C compiler.
    """
    hold_project(spec.path.parent, log)
    # After that: another build may just have written it.
    lock_path = spec.path.with_name(LOCK_NAME)
    lock = _read_lock(lock_path, settings)
    base = work_folder(spec.path.parent)
    scratch = Path(tempfile.mkdtemp(dir=base, prefix="run-"))
    search_path = tuple(dict.fromkeys([str(source_root), *(entry for entry in sys.path if entry)]))
    environ = {key: value for key, value in os.environ.items() if key != "PYTHONPATH"}
    machine = inspect_machine(search_path, environ)
    told = f"tune={settings.tune}, lock={settings.lock}, targets={settings.targets or 'all'}, jobs={settings.jobs or 'all'}"
    journal = Journal(base / "autotuner.log", log, f"build of {spec.package}: {told}, tlaot {__version__}")
    try:
        toolchain = find_toolchain(environ, cuda=False)
        sources = digest_sources(source_root, [name for kernel in spec.kernels for name in modules_of(kernel)])
        folders = (base / "records", base / "store")
        name = executor_of(spec, settings)
        with closing(open_executor(name, settings.devices, journal.say, _packer(spec, source_root))) as executor:
            machine = executor.survey(machine)
            journal.details = executor.report
            jobs = settings.jobs or executor.jobs(machine)
            shop = Workshop(scratch, search_path, environ, journal.path, jobs, toolchain, spec.devices)
            yield Site(
                spec, source_root, executor, shop, machine, *folders, sources, lock_path, lock, journal, settings
            )
    finally:
        sweep(base)  # its own, and what a dying compiler of a build before may have made again


def executor_of(spec: Spec, settings: Settings) -> str:
    """Where the work is done. What the spec says is for who tunes, and not for all who build from the lock that was committed: these
    may have no cluster."""
    return settings.executor or (spec.executor if settings.lock == "update" else "local")


def _packer(spec: Spec, source_root: Path) -> Callable[[Path], str]:
    """Writes an archive of the spec's modules and those that they import, where hosts are to be sent them."""

    def pack(archive: Path) -> str:
        named = [name for kernel in spec.kernels for name in modules_of(kernel)]
        return pack_sources(source_root, [*named, *digest_modules(source_root, named)], archive)

    return pack


def equip(site: Site, target: Target) -> Site:
    """With the compilers of a target."""
    if not target.is_cuda:
        return site
    toolchain = find_toolchain(site.workshop.environ, cuda=True)
    return replace(site, workshop=replace(site.workshop, toolchain=toolchain))


def warm_up(site: Site, frontend: str, target: Target, measures: bool) -> None:
    """Have what workers, and measuring children where ``measures``, need imported while the caller goes on."""
    site.executor.warm(frontend, target, site.workshop, measures)


def _read_lock(path: Path, settings: Settings) -> Lock:
    if settings.lock == "ignore":
        return Lock()
    lock = read_lock(path)
    if lock.edited and settings.lock != "update":
        labels = "\n".join(f"  {lock.entries[key].label}" for key in sorted(lock.edited))
        raise SpecError(
            path.name,
            f"was edited by hand, or put together by a merge of lines; what is written is not what was measured:\n{labels}",
            "Take it back from version control, or measure these again: tlaot tune, or TLAOT_LOCK=update.",
        )
    return lock
