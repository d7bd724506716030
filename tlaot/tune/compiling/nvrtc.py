"""NVRTC: CUDA C++ to PTX in this process, several times cheaper than nvcc's front end.

It stands in for the two of nvcc's steps that cost most, the C preprocessor and cicc; the PTX goes through nvcc's own
ptxas. The headers at the top of a source, nearly all of its cost, are compiled once and kept (precompiled headers,
CUDA 12.8 and later). NVRTC finds such a file usable only where its heap lies at the address it had when the file was
made: in processes forked from one that called ``preload``.
"""

from __future__ import annotations

import ctypes
import functools
import mmap
import os
import re
import tempfile
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from .precompiled import Claim, Headers

__all__ = [
    "Flags",
    "compile_to_ptx",
    "drop_unused_constants",
    "find_library",
    "precompile_ahead",
    "preload",
    "read_build",
    "split_flags",
]

_SHIM = Path(__file__).parents[1] / "native" / "nvrtc"
_NAME = b"device_kernel.cu"

# The largest set of headers in TileLang's templates takes about 250 MiB; what is not touched costs nothing.
_HEAP = 1 << 30
# What TileLang's own NVRTC backend puts before its sources; it declares what its headers need of the C++ library.
_TILELANG_STD = "tl_templates/cuda/nvrtc_std.h"
# What TileLang's sources have between and after their includes at the top: for another compiler, and where a flag asks for it.
_TILELANG_CONDITIONS = re.compile(
    r"^#if defined\(_MSC_VER\) && !defined\(__clang__\)[^\n]*\n(?:#(?:define|undef|include) [^\n]*\n)*#endif\n"
    r"|^#ifdef ENABLE_BF16\n#include <[^\n>]*>\n#endif\n",
    re.MULTILINE,
)
_INCLUDE = re.compile(r"#include <([^>\n]+)>")
_KERNEL = 'extern "C" __global__ '

# Functions that nvcc always declares.
_DEVICE_RUNTIME = re.compile(r"\bcuda(?:GridDependencySynchronize|TriggerProgrammaticLaunchCompletion)\b")

# Headers of the toolkit that mean the same wherever they are included. TVM's sources include them among declarations,
# where they cannot be precompiled.
_MOVABLE = re.compile(
    r"^[ \t]*#[ \t]*include[ \t]*<(cuda/std/\w+|cuda_(?:fp16|bf16|fp8|fp6|fp4)\.h|mma\.h)>", re.MULTILINE
)

_JOINED = re.compile(r"-I.+|-[DU].+|--?std=.+|--(?:include-path|define-macro|undefine-macro)=.+")
_VALUES = re.compile(r"--?(?:ftz|fmad|prec-div|prec-sqrt)=(?:true|false)")
_SEPARATE = ("-I", "-D", "-U", "--include-path", "--define-macro", "--undefine-macro", "-std", "--std")
_PLAIN = ("--use_fast_math", "-use_fast_math", "--restrict", "-restrict", "-w", "--disable-warnings")
# Meant for host code, or implied by -default-device.
_WITHOUT_EFFECT = ("--expt-relaxed-constexpr", "-expt-relaxed-constexpr", "-O0", "-O1", "-O2", "-O3")
_PTXAS = ("--ptxas-options", "-Xptxas")
_REGISTERS = ("--maxrregcount", "-maxrregcount")


@dataclass(frozen=True)
class Flags:
    """nvcc's flags, for the tools that do its work.

    Attributes:
        nvrtc: For NVRTC.
        ptxas: For ptxas.
    """

    nvrtc: tuple[str, ...]
    ptxas: tuple[str, ...]


def split_flags(flags: Sequence[str]) -> Flags | None:
    """Split flags of nvcc between NVRTC and ptxas.

    Returns:
        None where a flag is not known to mean the same to them.
    """
    front: list[str] = []
    back: list[str] = []
    rest = iter(flags)
    for flag in rest:
        name, equals, value = flag.partition("=")
        if _JOINED.fullmatch(flag) or _VALUES.fullmatch(flag) or flag in _PLAIN:
            front.append(flag)
        elif flag in _SEPARATE or (name in (*_PTXAS, *_REGISTERS)):
            value = value if equals else next(rest, "")
            if not value:
                return None
            if name in _PTXAS:
                back += value.split(",")
            elif name in _REGISTERS:
                back.append(f"-maxrregcount={value}")
            else:
                front.append(f"{name}={value}" if len(name) > 2 else f"{name}{value}")
        elif flag not in _WITHOUT_EFFECT:
            return None
    return Flags(tuple(front), tuple(back))


def find_library(version: str, root: Path, packages: Sequence[Path]) -> Path | None:
    """libnvrtc of exactly one release: the toolkit's own, else one among installed Python packages.

    Args:
        version: nvcc's release, ``"13.0"``.
        root: The toolkit's folder.
        packages: Folders of Python packages.
    """
    major = version.split(".")[0]
    folders = [root / "lib64", *sorted(root.glob("targets/*/lib")), root / "lib"]
    for package in packages:
        folders += [package / "nvidia" / f"cu{major}" / "lib", package / "nvidia" / "cuda_nvrtc" / "lib"]
        folders.append(package / "torch" / "lib")
    for folder in folders:
        library = folder / f"libnvrtc.so.{major}"
        # The library's own name has the major release alone; its other half has both.
        if library.is_file() and (folder / f"libnvrtc-builtins.so.{version}").is_file():
            return library
    return None


def read_build(library: Path, release: str) -> str:
    """A libnvrtc's own version, ``"13.0.88"``, which it tells nobody but writes into PTX; the release where it has none.

    Args:
        library: The file, which is searched and not loaded.
        release: Its release, ``"13.0"``.
    """
    start = f"V{release}.".encode()
    with library.open("rb") as file, mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as data:
        place = data.find(start)
        after = place + len(start)
        digits = re.match(rb"\d*", data[after : after + 8]) if place >= 0 else None
    return f"{release}.{digits[0].decode()}" if digits and digits[0] else release


class _Library:
    """libnvrtc, loaded.

    Attributes:
        version: Release, ``"13.0"``.
        can_precompile: Whether it has precompiled headers.
        has_heap: Whether the heap for precompiled headers is in place.
    """

    def __init__(self, path: str) -> None:
        # libnvrtc opens its other half by name alone, which finds one that is loaded already.
        for builtins in sorted(Path(path).parent.glob("libnvrtc-builtins.so.*")):
            ctypes.CDLL(str(builtins), mode=ctypes.RTLD_GLOBAL)
        self._api = ctypes.CDLL(path)
        major, minor = ctypes.c_int(), ctypes.c_int()
        self._api.nvrtcVersion(ctypes.byref(major), ctypes.byref(minor))
        self.version = f"{major.value}.{minor.value}"
        self.can_precompile = hasattr(self._api, "nvrtcSetPCHHeapSize")
        self.has_heap = False

    def compile(self, source: str, options: Sequence[str]) -> tuple[str | None, str]:
        """PTX, or None where the source or an option is refused; and the log."""
        with self._compiled(source, options) as (program, status):
            return (None if status else self._text(program, "PTX")), self._text(program, "ProgramLog")

    def precompile(self, source: str, options: Sequence[str], making: Path) -> bool:
        """Write a precompiled header of a source that has nothing but directives; whether that went well."""
        # Options of precompiled headers must come first.
        with self._compiled(source, [f"--create-pch={making}", *options]) as (program, status):
            return status == 0 and self._api.nvrtcGetPCHCreateStatus(program) == 0 and making.is_file()

    @contextmanager
    def _compiled(self, source: str, options: Sequence[str]) -> Iterator[tuple[ctypes.c_void_p, int]]:
        api, program = self._api, ctypes.c_void_p()
        status = api.nvrtcCreateProgram(ctypes.byref(program), source.encode(), _NAME, 0, None, None)
        if status:
            raise MemoryError(f"nvrtcCreateProgram returned {status}")
        words = [option.encode() for option in options]
        try:
            yield program, api.nvrtcCompileProgram(program, len(words), (ctypes.c_char_p * len(words))(*words))
        finally:
            api.nvrtcDestroyProgram(ctypes.byref(program))

    def _text(self, program: ctypes.c_void_p, what: str) -> str:
        size = ctypes.c_size_t()
        getattr(self._api, f"nvrtcGet{what}Size")(program, ctypes.byref(size))
        buffer = ctypes.create_string_buffer(max(size.value, 1))
        getattr(self._api, f"nvrtcGet{what}")(program, buffer)
        return buffer.value.decode(errors="replace")

    def reserve_heap(self) -> None:
        """Put the heap for precompiled headers in place, at the address that forked processes will have it at."""
        if self.has_heap or not self.can_precompile:
            return
        self._api.nvrtcSetPCHHeapSize.argtypes = [ctypes.c_size_t]
        self._api.nvrtcSetPCHHeapSize(_HEAP)
        # NVRTC allocates it when it first makes a precompiled header.
        with tempfile.TemporaryDirectory(prefix="tlaot-") as folder:
            self.has_heap = self.precompile("#include <stdlib.h>\n", [f"-I{_SHIM}"], Path(folder) / "first.pch")


@functools.lru_cache(maxsize=4)
def _load(path: str) -> _Library:
    return _Library(path)


def preload(path: str, common: Sequence[str] = ()) -> Headers | None:
    """Load libnvrtc before a fork, so that this process and those forked from it share precompiled headers.

    Args:
        path: libnvrtc.
        common: Headers of which most sources include some.

    Returns:
        Room for precompiled headers; None where this release has none.
    """
    library = _load(path)
    library.reserve_heap()
    return Headers(common) if library.has_heap else None


def precompile_ahead(
    headers: Headers, arch: str, flags: Sequence[str], path: str, version: str
) -> tuple[Claim, Callable[[], None]] | None:
    """Begin to precompile the common headers: processes that need them wait from now on.

    Returns:
        A claim whose lock must be closed here once another process, forked from this one, has it; and what that process is to
        do. None where there is nothing to do, or no room.
    """
    library = _load(path)
    if not headers.common or library.version != version:
        return None
    top, options = _common_top(headers), _options(library, arch, flags)
    claim = headers.claim(_key(top, options), ahead=True)
    if claim is None:
        return None

    def work() -> None:
        headers.make(claim, lambda making: library.precompile(top, options, making))

    return claim, work


def compile_to_ptx(
    source: str, arch: str, flags: Sequence[str], path: str, version: str, headers: Headers | None
) -> tuple[str | None, str]:
    """Compile CUDA C++ to PTX.

    Args:
        source: CUDA C++.
        arch: The target's architecture, ``"sm_90a"``.
        flags: NVRTC's flags, include folders of the toolkit among them.
        path: libnvrtc.
        version: The release that it must be.
        headers: Precompiled headers; None for none.

    Returns:
        PTX, or None where NVRTC refuses the source; and NVRTC's log.
    """
    library = _load(path)
    if library.version != version:
        return None, f"{path} is of release {library.version}, not {version}"
    if "#include <cuda/std/" in source and not library.can_precompile:
        return None, "nvcc reads the C++ library's headers faster than NVRTC reads CCCL's"
    options = _options(library, arch, flags)
    prelude = _prelude(source, flags)
    if headers is not None and library.has_heap:
        if _is_covered(source, headers.common):  # its own includes are without effect then
            ptx, log = _compile_with_headers(library, _common_top(headers), source, options, headers)
        else:
            top = _directives(prelude + source)
            ptx, log = _compile_with_headers(library, top, (prelude + source)[len(top) :], options, headers)
        if ptx is not None:
            return ptx, log
    return library.compile(prelude + source, options)


def _options(library: _Library, arch: str, flags: Sequence[str]) -> list[str]:
    # Precompiled headers are good for the same words only.
    words = [f"-I{os.path.realpath(flag[2:])}" if flag.startswith("-I/") else flag for flag in flags]
    options = ["-default-device", f"-arch=compute_{arch.removeprefix('sm_')}", *words, f"-I{_SHIM}"]
    return [*options, f"-D__CUDACC_VER_MAJOR__={library.version.split('.')[0]}"]


def _common_top(headers: Headers) -> str:
    return "".join(f"#include <{name}>\n" for name in headers.common)


def _is_covered(source: str, common: Sequence[str]) -> bool:
    """Whether a source is an author's kernel as TileLang writes it: includes, all of them common ones, and functions after that."""
    top = _directives(source)
    lines = _TILELANG_CONDITIONS.sub("", top).split("\n")
    names = [_INCLUDE.fullmatch(line) for line in lines if line.strip()]
    return (
        bool(names)
        and all(match is not None and match[1] in common for match in names)
        and source.startswith(_KERNEL, len(top))
    )


def _prelude(source: str, flags: Sequence[str]) -> str:
    lines = []
    if "CUtensorMap" in source:
        lines.append("#include <cuda.h>\n")
    if _DEVICE_RUNTIME.search(source):
        lines.append("#include <cuda_device_runtime_api.h>\n")
    if "#include" not in _directives(source):
        lines += [f"#include <{name}>\n" for name in dict.fromkeys(_MOVABLE.findall(source))]
    folders = [flag[2:] for flag in flags if flag.startswith("-I")]
    if "<tl_templates/" in source and any(Path(folder, _TILELANG_STD).is_file() for folder in folders):
        lines.append(f"#include <{_TILELANG_STD}>\n")
    return "".join(lines)


def _compile_with_headers(
    library: _Library, top: str, rest: str, options: Sequence[str], headers: Headers
) -> tuple[str | None, str]:
    """Compile with the directives at the top precompiled; that is done here first, unless another process is at it."""
    if "#include" not in top:
        return None, ""
    key = _key(top, options)
    found = headers.find(key)
    if found is None:
        claim = headers.claim(key)
        if claim is not None:
            found = headers.make(claim, lambda making: library.precompile(top, options, making))
    return (None, "") if found is None else library.compile(top + rest, [f"--use-pch={found}", *options])


def _key(top: str, options: Sequence[str]) -> str:
    return repr((top, list(options)))


def _directives(source: str) -> str:
    """The longest run of directives, comments and blank lines at the top of a source that ends outside any #if."""
    end = offset = depth = 0
    continued = False
    for line in source.splitlines(keepends=True):
        text = line.strip()
        if not continued and text and not text.startswith(("#", "//")):
            break
        word = text.removeprefix("#").lstrip() if not continued else ""
        if word.startswith("if"):
            depth += 1
        elif word.startswith("endif"):
            depth -= 1
        continued = text.endswith("\\")
        offset += len(line)
        if depth == 0 and not continued:
            end = offset
    return source[:end]


_GLOBAL = re.compile(r"\.global [^\n]*?([A-Za-z_$][\w$]*)(?:\[\d*\])?(?: = [^\n]*)?;")
_WORD = re.compile(r"[A-Za-z_$][\w$]*")


def drop_unused_constants(ptx: str) -> str:
    """Remove module variables of internal linkage that nothing names.

    ``-default-device`` makes device variables of all constants in the headers, 100 KB of them for TileLang's, which
    nvcc leaves out.
    """
    lines = ptx.split("\n")
    candidates = {i: match[1] for i, line in enumerate(lines) if (match := _GLOBAL.fullmatch(line))}
    used = set(_WORD.findall("\n".join(line for i, line in enumerate(lines) if i not in candidates)))
    used.update(word for i in candidates for word in _WORD.findall(lines[i].partition(" = ")[2]))
    return "\n".join(line for i, line in enumerate(lines) if candidates.get(i, line) in used or i not in candidates)
