"""A package ``tilelang`` with the parts of TileLang's JIT that ``tlaot capture`` hooks into, written where a test wants it."""

from __future__ import annotations

import textwrap
from pathlib import Path

__all__ = ["write_standin"]

_JIT = '''
"""A factory returns a list of shapes, which stands for a PrimFunc; sizes may be names."""
import functools
import inspect
import types
from dataclasses import dataclass, field


class Buffer:
    def __init__(self, name, shape):
        self.name, self.dtype, self.shape = name, "float32", shape


class PrimFunc:
    def __init__(self, name, shapes):
        self.params = [f"p{i}" for i in range(len(shapes))]
        self.buffer_map = {param: Buffer(param, shape) for param, shape in zip(self.params, shapes)}
        self.attrs = {"global_symbol": name}


class JITKernel:
    def __init__(self, func, out_idx):
        self.prim_func, self.out_idx, self.config = func, out_idx, None

    def __call__(self, *args, **kwargs):
        for arg, param in zip(args, self.prim_func.params):
            for size, wanted in zip(arg.shape, self.prim_func.buffer_map[param].shape):
                if isinstance(wanted, int) and wanted != size:
                    raise ValueError(f"expected {wanted}, got {size}")
        return sum(arg.shape[0] for arg in args)


@dataclass
class JITImpl:
    func: object
    signature: object
    mode: str = "auto"
    out_idx: object = None
    _kernel_cache: dict = field(default_factory=dict)
    _call_form_cache: dict = field(default_factory=dict)

    def get_tir(self, *args, **kwargs):
        return PrimFunc(self.func.orig_func.__name__, self.func.orig_func(*args, **kwargs))

    def compile(self, *args, **kwargs):
        return JITKernel(self.get_tir(*args, **kwargs), [])

    def par_compile(self, configs, num_workers=None):
        return [self.compile(*one) if isinstance(one, tuple) else self.compile(**one) for one in configs]

    def __call__(self, *args, **kwargs):
        kwargs.update(kwargs.pop("__tune_params", {}))
        self.mode = "lazy"
        key = repr((args, sorted(kwargs.items())))
        if key not in self._kernel_cache:
            self._kernel_cache[key] = self.compile(*args, **kwargs)
        return self._kernel_cache[key]


def jit(func):
    return JITImpl(types.SimpleNamespace(orig_func=func, tensor_args={}), inspect.signature(func))
'''

_TUNER = '''
class AutoTuneImpl:
    """Takes the last config, after it has compiled all."""

    def __init__(self, jit_impl, configs):
        self.jit_impl, self.configs = jit_impl, configs

    def __call__(self, *args, **kwargs):
        for config in self.configs:
            kernel = self.jit_impl(*args, **kwargs, __tune_params=config)
        kernel.config = config
        return kernel


def autotune(configs):
    return lambda impl: AutoTuneImpl(impl, configs)
'''

_KERNELS = """
import dataclasses

import tilelang


@dataclasses.dataclass(frozen=True)
class Options:
    depth: int
    tile: tuple = (1, 2)


@tilelang.jit
def scale(M, N=256, factor=2.0, *, causal=False):
    return [(M, N)]


@tilelang.jit
def rows(hidden, block_M=64):
    return [("num_tokens", hidden), ("num_tokens", hidden)]


@tilelang.autotune(configs=[{"block_N": 64}, {"block_N": 128}])
@tilelang.jit
def tuned(M, block_N=32):
    return [(M, M)]


@tilelang.jit
def persistent(hidden, num_persistent_blocks):
    return [(hidden,)]


@tilelang.jit
def odd(M, hook=None):
    if M == 13:
        raise ValueError("13 is not a size")
    return [(M,)]
"""


def write_standin(folder: Path) -> None:
    """Write ``tilelang`` and a package ``pkg`` with kernels (``scale``, ``rows``, ``tuned``, ``odd``) into a folder."""
    for name, text in (
        ("tilelang/__init__.py", "from .jit import jit\nfrom .autotuner.tuner import autotune\n"),
        ("tilelang/jit/__init__.py", _JIT),
        ("tilelang/autotuner/__init__.py", ""),
        ("tilelang/autotuner/tuner.py", _TUNER),
        ("pkg/__init__.py", ""),
        ("pkg/kernels.py", _KERNELS),
        (
            "pkg/array.py",
            "class Array:\n    dtype = 'float32'\n    def __init__(self, *shape):\n        self.shape = shape\n",
        ),
    ):
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(textwrap.dedent(text))
