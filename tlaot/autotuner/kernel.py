"""``TunedKernel``: one compiled kernel with the interface of TileLang's ``JITKernel``, on the run-time loader."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from ..atomic import write_atomically
from ..errors import DispatchError, LoadError, PackageError
from ..manifest import FileDigest, Param, Variant
from ..runtime.binary import EXECUTABLE
from ..runtime.call import Described
from ..runtime.kernel import Kernel
from ..target import Target, read_target
from ..tune.shipping.package import Packed, write_packed
from ..tune.specs.supply import Supply
from .args import TensorSupplyType
from .profiler import Profiler

__all__ = ["TunedKernel", "open_packed"]

_DEVICE_SOURCE, _HOST_SOURCE = "device_kernel.cu", "host_kernel.c"

# What this process has loaded: contents in order by the folder they were loaded from, and content by file.
_contents_of: dict[str, list[FileDigest]] = {}
_content_of: dict[tuple[int, int], FileDigest] = {}


class TunedKernel(Kernel):
    """One compiled kernel; calling it runs it.

    A call takes the inputs, and gives the output or a list of several (``out_idx``); or it takes all parameters, and
    writes the outputs in place. It is loaded when the object is made, and needs its folder no more.

    Attributes:
        name: Name of the kernel.
        packed: Its folder in memory.
        function: The FFI function, which takes all parameters.
    """

    def __init__(self, packed: Packed, folder: Path, config: Mapping[str, Any] | None = None) -> None:
        # The folder is the variant's own.
        one = replace(packed.variant, path=".")
        super().__init__(packed.kernel, packed.kernel, [(one, folder)])
        self.packed = packed
        self.function: Callable[..., Any] = self.module_of(one)["tlaot_call"]
        # The author's own objects, where they are at hand: JSON has none of a dtype.
        self._config = _copied(packed.variant.config if config is None else config)

    def copy(self, config: Mapping[str, Any] | None = None) -> TunedKernel:
        """Another kernel object of the same loaded library; ``config`` as in :func:`open_packed`."""
        made = TunedKernel.__new__(TunedKernel)
        Kernel.__init__(made, self.name, self.name, [(one, self._folders[id(one)]) for one in self.variants])
        made._modules.update(self._modules)
        made.packed, made.function = self.packed, self.function
        made._config = _copied(self._config if config is None else config)
        return made

    def __reduce__(self) -> tuple[Any, ...]:
        # A reference may call a kernel that was tuned before: it travels to the measuring child as its files.
        return _reopen, (self.packed, self._config)

    def _pick(self, call: Described, factory_args: Mapping[str, Any]) -> Variant:
        try:
            return super()._pick(call, factory_args)
        except DispatchError as error:
            what = error.what.replace("no packaged variant fits", "this tuned kernel does not fit", 1)
            remedy = error.remedy
            if "tltune.toml" in remedy:  # the way of packages
                remedy = "Tune for that shape: call the factory with it (for another target, with target=...)."
            raise DispatchError(error.where, what, remedy) from None

    @property
    def params(self) -> list[Param]:
        """Parameters in order, with ``name``, ``dtype`` and ``shape`` (a string for a symbolic size, None for a scalar)."""
        return list(self.packed.variant.params)

    @property
    def out_idx(self) -> list[int]:
        """Positions of the outputs that a call may leave out."""
        return list(self.packed.variant.out_idx)

    @property
    def target(self) -> Target:
        """What it was compiled for."""
        return read_target(self.packed.variant.target)

    @property
    def latency(self) -> float | None:
        """Median time of one call in ms when it was tuned; None: it was compiled and not tuned."""
        return self.packed.variant.latency.get("latency")

    @property
    def ref_latency(self) -> float | None:
        """Median time of the reference in ms; None where there was none."""
        return self.packed.variant.latency.get("ref_latency")

    @property
    def config(self) -> dict[str, Any] | None:
        """The config that won, a copy; None: it was compiled and not tuned."""
        return None if self.latency is None else _copied(self._config)

    def get_tuner_result(self) -> dict[str, Any]:
        """``{"latency", "config", "ref_latency"}``.

        Raises:
            ValueError: The kernel was not tuned.
        """
        if self.latency is None:
            raise ValueError("Tuning results are not available. Please tune the kernel first.")
        return {"latency": self.latency, "config": self.config, "ref_latency": self.ref_latency}

    def get_kernel_source(self, kernel_only: bool = True) -> str:
        """The device code, CUDA; of a CPU kernel the C code. ``kernel_only`` is TileLang's and changes nothing.

        Raises:
            PackageError: The folder has no sources.
        """
        return self._source(_DEVICE_SOURCE if _DEVICE_SOURCE in self.packed.contents else _HOST_SOURCE)

    def get_host_source(self) -> str:
        """The host code, C.

        Raises:
            PackageError: The folder has no sources.
        """
        return self._source(_HOST_SOURCE)

    @property
    def kernel_source(self) -> str:
        return self.get_kernel_source()

    @property
    def host_source(self) -> str:
        return self.get_host_source()

    def export_sources(self, kernel_path: str | Path | None = None, host_path: str | Path | None = None) -> None:
        """Write the sources to files."""
        if kernel_path is not None:
            write_atomically(Path(kernel_path), self.get_kernel_source().encode())
        if host_path is not None:
            write_atomically(Path(host_path), self.get_host_source().encode())

    def export_library(self, kernel_file: str | Path) -> None:
        """Write the shared library to a file; ``tvm_ffi.load_module(path)["tlaot_call"]`` takes all parameters."""
        path = Path(kernel_file)
        write_atomically(path, self.packed.contents[EXECUTABLE])
        path.chmod(0o755)

    def get_profiler(self, tensor_supply_type: TensorSupplyType = TensorSupplyType.Auto) -> Profiler:
        """What times and checks this kernel, with inputs of a kind."""
        return Profiler(self, Supply(type=tensor_supply_type.name.lower()))

    def do_bench(self, *args: Any, **kwargs: Any) -> float:
        """Median time of one call in ms; arguments as :meth:`Profiler.do_bench`."""
        return self.get_profiler().do_bench(*args, **kwargs)

    def _source(self, name: str) -> str:
        data = self.packed.contents.get(name)
        if data is not None:
            return data.decode()
        if self.target.kind == "llvm":
            what, remedy = "has no source: LLVM writes machine code", "Print the PrimFunc that the factory returns."
        else:
            what, remedy = f"has no {name}: the package was built without sources", "Build with -C keep=on."
        raise PackageError(self.name, what, remedy)


def open_packed(packed: Packed, folder: Path, config: Mapping[str, Any] | None = None) -> TunedKernel:
    """Load a variant from the folder that it was read from.

    Args:
        packed: The variant.
        folder: The folder.
        config: Its config with the author's own objects; None takes what the folder has.

    Raises:
        PackageError: The library was changed since it was read.
        LoadError: The dynamic linker refuses it, or it was overwritten in place while this process had it loaded.
    """
    digest = packed.variant.files[EXECUTABLE]
    real = os.path.realpath(folder)
    number = _number_of(os.path.join(real, EXECUTABLE))
    if number is not None and _content_of.get(number, digest) != digest:
        raise LoadError(
            os.path.join(real, EXECUTABLE),
            "was overwritten in place after this process had loaded it",
            "Start a new process; replace folders as a whole, as save_to_disk does.",
        )
    # The dynamic linker goes by the name: of a name that it knows it gives the old library, whatever is there now.
    # So each further content of one folder is loaded under another spelling of the folder's name.
    seen = _contents_of.setdefault(real, [])
    new = digest not in seen
    if new:
        seen.append(digest)
    kernel = TunedKernel(packed, Path(real, *(["..", os.path.basename(real)] * seen.index(digest))), config)
    if (
        number is not None and new
    ):  # otherwise the linker has given the library that it had, and this file is free to go
        _content_of[number] = digest
    return kernel


def _reopen(packed: Packed, config: Mapping[str, Any] | None) -> TunedKernel:
    with tempfile.TemporaryDirectory(prefix="tlaot-", ignore_cleanup_errors=True) as scratch:
        # A loaded library stays when its file goes.
        write_packed(Path(scratch, "kernel"), packed)
        return open_packed(packed, Path(scratch, "kernel"), config)


def _copied(value: Any) -> Any:
    """A copy of nested dicts and lists; what is in them is shared."""
    if isinstance(value, Mapping):
        return {key: _copied(item) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return type(value)(_copied(item) for item in value) if type(value) in (list, tuple) else value
    return value


def _number_of(path: str) -> tuple[int, int] | None:
    try:
        status = os.stat(path)
    except OSError:
        return None
    return status.st_dev, status.st_ino
