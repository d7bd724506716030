"""Surfaces of running times as GPU kernels have them, made from a seed: what a search is tried on without a GPU."""

from __future__ import annotations

import itertools
import math
import random
from collections.abc import Mapping
from typing import Any

SMS, SHARED, REGISTERS = 132, 227 * 1024, 65536
GEMM_32 = [
    dict(block_M=m, block_N=n, block_K=k, num_stages=s, threads=t)
    for m, n, k, s, t in itertools.product((64, 128), (64, 128), (32, 64), (2, 3), (128, 256))
]
GEMM_144 = [
    dict(block_M=m, block_N=n, block_K=k, num_stages=s, threads=t)
    for m, n, k, s, t in itertools.product((64, 128, 256), (64, 128, 256), (32, 64), (1, 2, 3, 4), (128, 256))
]
GRID_16 = [dict(M=m, N=n, K=k) for m, n, k in itertools.product((512, 4096), (1024, 2048, 4096, 8192), (1024, 4096))]
LAYERS_16 = [
    dict(M=m, N=n, K=k)
    for m in (16, 128, 1024, 4096)
    for n, k in ((6144, 4096), (4096, 4096), (28672, 4096), (4096, 14336))
]
LINE_16 = [dict(M=round(64 * 1.5**i), N=4096, K=4096) for i in range(16)]


class Gemm:
    """fp16 GEMM: tile efficiency, occupancy, wave quantisation, latency of short pipelines, L2 and memory traffic, shared memory."""

    def __init__(self, seed: int, noise: float = 0.007) -> None:
        r = random.Random(seed)
        self.noise, self.chance, self.seed = noise, random.Random(seed + 1), seed
        self.peak = 4.2e12 * r.uniform(0.7, 1.1)  # flop/s of an SM at full efficiency
        self.half = r.uniform(10, 40)  # tile intensity at which it is half of that
        self.latency = r.uniform(0.4e-6, 1.0e-6)  # of a step whose loads are not hidden
        self.step = r.uniform(0.05e-6, 0.15e-6)
        self.l2, self.dram = r.uniform(4e12, 7e12), 4.2e12
        self.fixed = r.uniform(2e-6, 4e-6)
        self.start = r.uniform(0.5e-6, 1.5e-6)
        self.wide = r.uniform(0.9, 1.12)  # what 256 threads do to efficiency
        self.quirk = r.uniform(0.02, 0.08)
        self.local = r.uniform(0.005, 0.025)

    def true(self, shape: Mapping[str, Any], config: Mapping[str, Any]) -> float | None:
        M, N, K = shape["M"], shape["N"], shape["K"]
        bm, bn, bk, st, th = (config[k] for k in ("block_M", "block_N", "block_K", "num_stages", "threads"))
        shared = (bm + bn) * bk * 2 * st
        registers = min(255, bm * bn // th + 48)
        if shared > SHARED:
            return None
        spill = 1 + max(0, bm * bn // th + 48 - 255) / 200
        resident = min(SHARED // (shared + 1024), 2048 // th, REGISTERS // (registers * th), 16)
        if resident < 1:
            return None
        tiles = math.ceil(M / bm) * math.ceil(N / bn)
        steps = math.ceil(K / bk)
        intensity = bm * bn / (bm + bn)
        efficiency = intensity / (intensity + self.half) * (self.wide if th == 256 else 1) / spill
        work = 2 * bm * bn * bk / (self.peak * efficiency)
        total = 0.0
        slots = SMS * resident
        for on, times in ((slots, tiles // slots), (tiles % slots, 1)):
            if on and times:
                per_sm = math.ceil(on / SMS)
                hidden = self.latency / (st * per_sm) + self.step
                total += times * (max(per_sm * work, hidden) * steps + self.start)
        traffic = tiles * (bm + bn) * K * 2
        compulsory = 2 * (M * K + N * K + M * N)
        t = max(total, traffic / self.l2, compulsory / self.dram) + 0.15 * min(total, traffic / self.l2) + self.fixed
        own = random.Random(f"{self.seed} {sorted(config.items())}").gauss(0, self.quirk)
        here = random.Random(f"{self.seed} {sorted(config.items())} {sorted(shape.items())}").gauss(0, self.local)
        return 1e3 * t * math.exp(own + here)

    def measure(self, shape: Mapping[str, Any], config: Mapping[str, Any]) -> float | None:
        t = self.true(shape, config)
        return None if t is None else t * math.exp(abs(self.chance.gauss(0, self.noise)))


ROWS_48 = [
    dict(rows=r, threads=t, vector=v) for r, t, v in itertools.product((1, 2, 4, 8), (64, 128, 256, 512), (1, 4, 8))
]
ROWS_16 = [dict(M=m, N=n) for m, n in itertools.product((256, 1024, 4096, 16384), (512, 1024, 4096, 8192))]


class Rows:
    """A row-wise kernel (softmax, norm): bandwidth, parallelism, reduction over threads."""

    def __init__(self, seed: int, noise: float = 0.007) -> None:
        r = random.Random(seed)
        self.noise, self.chance, self.seed = noise, random.Random(seed + 1), seed
        self.dram = r.uniform(3.5e12, 4.3e12)
        self.fixed = r.uniform(1.5e-6, 3e-6)
        self.sync = r.uniform(0.1e-6, 0.4e-6)
        self.bytes = r.uniform(20, 60) * 1024
        self.quirk = r.uniform(0.01, 0.05)
        self.local = r.uniform(0.005, 0.02)
        self.narrow = r.uniform(0.5, 0.9)

    def true(self, shape: Mapping[str, Any], config: Mapping[str, Any]) -> float | None:
        M, N, rows, th, v = shape["M"], shape["N"], config["rows"], config["threads"], config["vector"]
        if rows * N * 4 > SHARED:
            return None
        blocks = math.ceil(M / rows)
        resident = max(1, min(SHARED // (rows * N * 4 + 1024), 2048 // th, 32))
        flying = min(blocks, SMS * resident) / SMS * th * v * 2 * 4
        bandwidth = self.dram * min(1, flying / self.bytes) * (self.narrow if v == 1 else 1)
        waste = math.ceil(rows * N / (th * v)) * th * v / (rows * N)
        waves = math.ceil(blocks / (SMS * resident))
        t = M * N * 4 * waste / bandwidth + waves * self.sync * (1 + math.log2(th / 32)) + self.fixed
        own = random.Random(f"{self.seed} {sorted(config.items())}").gauss(0, self.quirk)
        here = random.Random(f"{self.seed} {sorted(config.items())} {sorted(shape.items())}").gauss(0, self.local)
        return 1e3 * t * math.exp(own + here)

    measure = Gemm.measure


Surface = Gemm | Rows
