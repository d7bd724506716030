"""``AutotuneResult``: what a tuning gives, and the folder that it is saved in.

The folder is that of one variant in a package (README, "What ships"): a saved result can be packed, a packed one loaded.
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import os
import shutil
import tempfile
import warnings
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from ..errors import LoadError, PackageError
from ..manifest import VARIANT_NAME, Variant
from ..target import Target, parse_target, read_target
from ..tune.compiling.compile import EXECUTABLE
from ..tune.shipping.package import (
    Packed,
    Winner,
    find_executable,
    pack_winner,
    plain_config,
    read_packed,
    write_packed,
)
from .args import CompileArgs
from .kernel import TunedKernel, open_packed

__all__ = ["AutotuneResult", "TunedKernel", "restore_result", "result_from_winner", "save_packed"]

_ATTEMPTS = 10


@dataclass(frozen=True, eq=False)
class AutotuneResult:
    """The best candidate of a tuning.

    Attributes:
        latency: Median time of one call in ms; None: it was compiled and not tuned.
        config: The config that won; None as above.
        ref_latency: Median time of the reference in ms; None where there was none.
        libcode: Source of the device code (CUDA) or of the CPU kernel (C); None where there is none.
        func: The factory; None in a result that was loaded, for nothing that is saved is pickled.
        kernel: The compiled kernel, this result's own.
    """

    latency: float | None
    config: dict[str, Any] | None
    ref_latency: float | None
    libcode: str | None
    func: Callable[..., Any] | None
    kernel: TunedKernel

    def save_to_disk(self, path: str | Path, verbose: bool = False) -> None:
        """Write the result's folder; it appears whole or not at all, also among several processes.

        A complete result that is there already is kept, with a warning if it is another one; a broken one is replaced.

        Args:
            path: The folder to make.
            verbose: TileLang's; there is nothing to say.

        Raises:
            PackageError: The place is taken by a file, or by a folder with other things in it.
            OSError: The place cannot be written.
        """
        packed = self.kernel.packed
        if save_packed(packed, path):
            return
        try:
            kept = read_packed(Path(path)).variant
        except PackageError:  # gone in this moment
            return
        if (kept.files, kept.target) != (packed.variant.files, packed.variant.target):
            warnings.warn(
                f"{path}: holds another result ({dict(kept.config)} for {kept.target}), which is kept; "
                "remove the folder to save this one",
                stacklevel=2,
            )

    @classmethod
    def load_from_disk(
        cls, path: str | Path, compile_args: CompileArgs | None = None, verbose: bool = False
    ) -> AutotuneResult | None:
        """Load a result that :meth:`save_to_disk` wrote, or a variant's folder of a package.

        Every file is checked before the library is loaded. It needs neither a compiler nor the frontend, and no GPU
        before the first call.

        Args:
            path: The folder.
            compile_args: Its ``target`` and ``out_idx``, where given, must be those of the result; what else it holds
                concerns compiling.
            verbose: TileLang's; there is nothing to say.

        Returns:
            The result; None: there is no such folder.

        Raises:
            PackageError: A file is missing or damaged; the message names it.
            LoadError: The result is for another target or has other outputs, or its library cannot be loaded here.
        """
        folder = Path(path)
        if not os.path.lexists(folder):
            return None
        packed = read_packed(folder)
        if compile_args is not None:
            _check_target(packed.variant, compile_args.target, str(folder))
            _check_out_idx(packed.variant, compile_args.out_idx, str(folder))
        return _open(packed, find_executable(folder).parent, None)


def result_from_winner(
    winner: Winner, func: Callable[..., Any] | None, folder: str | Path | None = None
) -> AutotuneResult:
    """The result of a tuning, loaded, independent of the folder in which it was built.

    Args:
        winner: What won; without a latency it was compiled and not tuned.
        func: The factory.
        folder: Where to save it; a complete result that another process has saved there is taken in its place.
            None saves nothing.
    """
    packed = pack_winner(winner, keep=True)
    if folder is not None:
        if save_packed(packed, folder):
            return _open(packed, Path(folder), func, winner.config)
        return _open(read_packed(Path(folder)), Path(folder), func)
    with tempfile.TemporaryDirectory(prefix="tlaot-", ignore_cleanup_errors=True) as scratch:
        # A loaded library stays when its file goes.
        write_packed(Path(scratch, "result"), packed)
        return _open(packed, Path(scratch, "result"), func, winner.config)


def restore_result(
    result: AutotuneResult, func: Callable[..., Any] | None, configs: Iterable[Mapping[str, Any]]
) -> AutotuneResult:
    """A loaded result with what JSON could not hold: its factory, and its config as the author wrote it.

    The kernel is a new one, so the result shares nothing that can be changed with the one given.

    Args:
        result: What :meth:`AutotuneResult.load_from_disk` gave, or a cache.
        func: The factory.
        configs: The configs of the tuning, among which the result's own is.
    """
    plain = result.kernel.packed.variant.config
    config = next((config for config in configs if plain_config(config) == plain), None)
    kernel = result.kernel.copy(config)
    return replace(result, config=kernel.config, func=func, kernel=kernel)


def save_packed(packed: Packed, path: str | Path) -> bool:
    """Write a variant's folder atomically.

    Returns:
        Whether it was written; False: a complete one is there and was kept.

    Raises:
        PackageError: The place is taken by something else.
        OSError: The place cannot be written.
    """
    target = Path(os.path.realpath(path))
    if _is_complete(target):
        return False
    _refuse_foreign(target)
    target.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(
        dir=target.parent, prefix=f".{target.name}.", ignore_cleanup_errors=True
    ) as scratch:
        staging = Path(scratch, "new")
        write_packed(staging, packed)
        _sync(staging)
        with _held(target.parent):
            for attempt in range(_ATTEMPTS):
                try:
                    os.rename(staging, target)
                    return True
                except OSError as error:
                    if error.errno not in (errno.ENOTEMPTY, errno.EEXIST):
                        raise
                if _is_complete(target):  # another process was faster
                    return False
                _refuse_foreign(target)
                if _move_aside(target, Path(scratch, f"old{attempt}")):
                    return False
    raise PackageError(str(target), "others keep writing broken results here", "Save it elsewhere.")


def _open(
    packed: Packed, folder: Path, func: Callable[..., Any] | None, config: Mapping[str, Any] | None = None
) -> AutotuneResult:
    kernel = open_packed(packed, folder, config)
    try:
        libcode = kernel.get_kernel_source()
    except PackageError:
        libcode = None
    return AutotuneResult(kernel.latency, kernel.config, kernel.ref_latency, libcode, func, kernel)


@contextlib.contextmanager
def _held(folder: Path) -> Iterator[None]:
    """Whoever replaces a broken result has the folder to himself: nobody may step in where it has just been moved aside."""
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        with contextlib.suppress(OSError):  # a file system without locks: results stay whole, two may both be the first
            fcntl.flock(descriptor, fcntl.LOCK_EX)
        yield
    finally:
        os.close(descriptor)


def _is_complete(folder: Path) -> bool:
    try:
        read_packed(folder)
    except PackageError:
        return False
    return True


def _refuse_foreign(folder: Path) -> None:
    """Let nobody lose files: what is replaced is a broken result or an empty folder."""
    try:
        names = set(os.listdir(folder))
    except FileNotFoundError:
        return
    except NotADirectoryError:
        raise PackageError(str(folder), "is a file", "Name the folder to save the result in.") from None
    if names and VARIANT_NAME not in names and EXECUTABLE not in names:
        raise PackageError(
            str(folder),
            f"is a folder with other things in it ({sorted(names)[0]})",
            "Name a folder of the result's own.",
        )


def _move_aside(folder: Path, aside: Path) -> bool:
    """Take a broken folder away; whether it was no longer broken, replaced in the meantime, and is back in its place."""
    try:
        os.rename(folder, aside)
    except FileNotFoundError:
        return False
    if _is_complete(aside):
        try:
            os.rename(aside, folder)
        except OSError:
            return _is_complete(folder)  # and one more has been there
        return True
    shutil.rmtree(aside, ignore_errors=True)
    return False


def _sync(folder: Path) -> None:
    """Have the content on disk before the folder's name is."""
    for path in (*folder.iterdir(), folder):
        descriptor = os.open(path, os.O_RDONLY)
        try:
            os.fsync(descriptor)
        finally:
            os.close(descriptor)


def _check_target(variant: Variant, asked: Any, where: str) -> None:
    """Refuse a result whose code does not run on what was asked for."""
    if asked is None or asked == "auto":
        return
    kind, arch = _asked(asked)
    found = read_target(variant.target)
    if kind == found.kind and (arch is None or _runs(found, parse_target(f"{kind}:{arch}", "compile_args.target"))):
        return
    raise LoadError(
        where,
        f"is for {found}, compile_args asks for {kind}{'' if arch is None else f':{arch}'}",
        "Tune for that target, or load with target='auto'.",
    )


def _asked(asked: Any) -> tuple[str, str | None]:
    """Kind and architecture of a target as users write it; None: any architecture."""
    if isinstance(asked, Target):
        return asked.kind, asked.arch
    if isinstance(asked, str):
        kind, _, arch = asked.partition(":")
        return kind, arch or None
    if isinstance(asked, Mapping):
        return str(asked.get("kind")), asked.get("arch") or asked.get("mcpu")
    attributes = getattr(asked, "attrs", {})  # a TVM target
    named = attributes.get("arch") or attributes.get("mcpu")
    return str(getattr(asked.kind, "name", asked.kind)), None if named is None else str(named)


def _runs(found: Target, asked: Target) -> bool:
    if found == asked:
        return True
    return found.runs_on(asked.capability) if found.is_cuda else found.cpu_rank <= asked.cpu_rank


def _check_out_idx(variant: Variant, asked: Any, where: str) -> None:
    if asked is None:
        return
    count = len(variant.params)
    positions = tuple(i + count if i < 0 else i for i in ((asked,) if isinstance(asked, int) else asked))
    if sorted(positions) != sorted(variant.out_idx):
        raise LoadError(
            where,
            f"has the outputs {list(variant.out_idx)} of {count} parameters, compile_args says {asked}",
            "Leave out_idx out: it is saved with the result.",
        )
