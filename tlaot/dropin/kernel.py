"""What a factory's call gives: a packaged kernel with the interface of TileLang's ``JITKernel``."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NoReturn

from ..errors import LoadError, PackageError
from ..manifest import Param, Variant, place_of, verify_file
from ..runtime.kernel import Kernel

__all__ = ["JITKernel"]

_DEVICE_SOURCE, _HOST_SOURCE, _EXECUTABLE = "device_kernel.cu", "host_kernel.c", "executable.so"


class JITKernel(Kernel):
    """The packaged kernel of one key, for all targets that it is packaged for; calling it runs the one that fits the device.

    A call takes the inputs and gives the output, or a list of several; or it takes all parameters and writes the outputs in place.
    """

    @classmethod
    def of(cls, kernel: Kernel, variants: Sequence[Variant]) -> JITKernel:
        """Some of the variants of a kernel; what either has loaded both have."""
        located = [(variant, kernel._folders[id(variant)]) for variant in variants]
        made = cls(kernel._where, kernel.name, located, kernel._homes, kernel._overlay, kernel._policy)
        made._modules = kernel._modules
        return made

    def __reduce__(self) -> tuple[Any, ...]:
        whole = Kernel(self._where, self.name, (), self._homes, self._overlay, self._policy)
        make, arguments = whole.__reduce__()
        return _reopen, (make, arguments, [variant.path for variant in self.variants])

    @property
    def params(self) -> list[Param]:
        """Parameters in order, with ``name``, ``dtype`` and ``shape`` (a string for a symbolic size, None for a scalar)."""
        return list(self.variants[0].params)

    @property
    def out_idx(self) -> list[int]:
        """Positions of the outputs that a call may leave out."""
        return list(self.variants[0].out_idx)

    @property
    def config(self) -> Mapping[str, Any]:
        """The config that was chosen in the build; where several targets are packaged, for the first of them."""
        return dict(self.variants[0].config)

    @property
    def latency(self) -> float | None:
        """Median time of one call in ms when it was tuned; None: nobody measured it."""
        return self.variants[0].latency.get("latency")

    @property
    def ref_latency(self) -> float | None:
        """Median time of the reference in ms; None where it was not measured."""
        return self.variants[0].latency.get("ref_latency")

    def get_kernel_source(self, kernel_only: bool = True) -> str:
        """The device code, CUDA; of a CPU kernel the C code. ``kernel_only`` is TileLang's and changes nothing.

        Raises:
            PackageError: The package was built without sources.
        """
        return self._text(_DEVICE_SOURCE if _DEVICE_SOURCE in self.variants[0].files else _HOST_SOURCE)

    def get_host_source(self) -> str:
        """The host code, C.

        Raises:
            PackageError: The package was built without sources.
        """
        return self._text(_HOST_SOURCE)

    @property
    def kernel_source(self) -> str:
        return self.get_kernel_source()

    @property
    def host_source(self) -> str:
        return self.get_host_source()

    def export_library(self, kernel_file: str | Path) -> None:
        """Copy the shared library to a file; ``tvm_ffi.load_module(path)["tlaot_call"]`` takes all parameters.

        Raises:
            PackageError: The package's own is missing or damaged.
        """
        Path(kernel_file).write_bytes(self._read(_EXECUTABLE))

    def get_profiler(self, *args: Any, **options: Any) -> NoReturn:
        """TileLang's profiler needs TileLang; raises LoadError with what does without."""
        raise LoadError(
            self._where,
            "has no profiler: it is a packaged kernel, and TileLang is not used here",
            "Its time when it was tuned is kernel.latency; tlaot retune measures on this device.",
        )

    def _text(self, name: str) -> str:
        if name not in self.variants[0].files:
            raise PackageError(
                self._where, f"has no {name}: the package was built without sources", "Build it with -C keep=on."
            )
        return self._read(name).decode()

    def _read(self, name: str) -> bytes:
        variant = self.variants[0]
        path = self._folders[id(variant)] / place_of(variant, name)
        verify_file(path, variant.files[name])
        return path.read_bytes()


def _reopen(make: Any, arguments: tuple[Any, ...], paths: Sequence[str]) -> JITKernel:
    kernel: Kernel = make(*arguments)
    return JITKernel.of(kernel, [variant for variant in kernel.variants if variant.path in paths])
