"""What becomes of the targets that a project declares: built here, built in pip's own environment, or what is in the way."""

from __future__ import annotations

import re
import sys
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from ..errors import TlaotError
from ..target import CPU_LEVELS, Target
from ..tune.compiling.toolchain import CudaCompiler
from ..tune.frontends import FRONTENDS
from ..tune.groups import Group, all_groups, lacking_device, lacking_frontend
from ..tune.locks.lock import LOCK_NAME, Key, Lock, key_of
from ..tune.locks.lock_file import read_lock
from ..tune.shipping.floors import first_cuda
from ..tune.specs.dynamic import open_shape
from ..tune.specs.spec import KernelSpec, Spec
from ..tune.survey import fits_present
from .item import MISSING, NOTE, OK, Item, Verdict
from .survey import SETUPTOOLS, Surroundings, release_of

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

__all__ = ["Isolated", "judge", "look_at_pyproject"]

_REQUIREMENT = re.compile(r"\s*([\w.-]+)\s*(?:\[([^\]]*)\])?")
_OWN_BACKEND = "tlaot.build_hooks"

Gap = tuple[str, str]


@dataclass(frozen=True)
class Isolated:
    """What pip's isolated environment has, by ``[build-system] requires``.

    Attributes:
        distributions: Names.
        asks: Whether tlaot is among them: without it nothing is tuned.
        everything: Whether the backend asks for what the targets need.
    """

    distributions: frozenset[str] = frozenset()
    asks: bool = False
    everything: bool = False


def look_at_pyproject(project: Path) -> tuple[Isolated, list[Item]]:
    """What a project's ``pyproject.toml`` asks for, and what its users will miss."""
    path = project / "pyproject.toml"
    try:
        body = tomllib.loads(path.read_text(encoding="utf-8"))
    except OSError:
        return Isolated(), [Item("project", path.name, NOTE, "there is none", "tlaot init writes what it needs")]
    except ValueError as error:
        return Isolated(), [Item("project", path.name, MISSING, f"is not valid TOML: {error}", "correct the file")]
    system, table = body.get("build-system", {}), body.get("project", {})
    names: dict[str, set[str]] = {}
    for text in _strings(system.get("requires")):
        match = _REQUIREMENT.match(text)
        if match:
            names.setdefault(match[1].lower().replace("_", "-"), set()).update(re.findall(r"[\w-]+", match[2] or ""))
    extras = names.get("tlaot", set())
    brought = {FRONTENDS[name][1] for name in extras if name in FRONTENDS} | (extras & {"torch"})
    brought |= {"optuna"} if "search" in extras else set()
    asks, backend = "tlaot" in names, system.get("build-backend")
    if "backend-path" in system and table.get("name") == "tlaot":
        asks, backend = True, _OWN_BACKEND  # this repository's own: the same, from the source tree
    isolated = Isolated(frozenset({*names, *brought}), asks, asks and backend == _OWN_BACKEND)
    items = []
    if not isolated.asks:
        what = "[build-system] requires does not ask for tlaot: pip wheel packages no kernels"
        items.append(Item("project", path.name, MISSING, what, 'add "tlaot[FRONTEND]" to it, or run: tlaot init'))
    needs = [match[1].lower() for text in _strings(table.get("dependencies")) if (match := _REQUIREMENT.match(text))]
    elsewhere = "dependencies" in table.get("dynamic", ()) or table.get("name") == "tlaot"
    if "tlaot" not in needs and not elsewhere:
        what = "[project] dependencies lacks tlaot, which loads the kernels at your users'"
        items.append(Item("project", path.name, NOTE, what, 'dependencies = ["tlaot", ...]'))
    return isolated, items


def _strings(value: Any) -> list[str]:
    return [item for item in value if isinstance(item, str)] if isinstance(value, list) else []


def judge(spec: Spec, source_root: Path, here: Surroundings, isolated: Isolated) -> list[Verdict]:
    """A verdict a target and frontend, in the spec's order.

    Raises:
        SpecError: The lock is malformed, or a module that the spec names cannot be found.
    """
    lock = read_lock(spec.path.with_name(LOCK_NAME))
    fits = fits_present(spec, source_root) if lock.entries else lambda entry: False
    held = {key for key, entry in lock.entries.items() if key not in lock.edited and fits(entry)}
    verdicts: list[Verdict] = []
    for group in all_groups(spec):
        lacks = [
            _lacks(group, here, None, held, lock),
            *([_lacks(group, here, isolated, held, lock)] if isolated.asks else []),
        ]
        best = min(lacks, key=len)
        how = ""
        if not best:
            tuned = "tuned here" if group.stand_in is None else f"with the winners of {group.stand_in}, tuned here"
            where = "" if best is lacks[0] else ", in the environment that pip wheel makes"
            how = (_evidence(group, held) or tuned) + where
        target = Target("cuda", group.target.sm) if group.target.is_virtual else group.target
        state = OK if not best else NOTE if target in spec.when_available else MISSING
        names = tuple(dict.fromkeys(kernel.name for kernel in group.kernels))
        verdicts.append(Verdict(str(group.target), group.frontend, names, state, how, tuple(best)))
    return verdicts


def _evidence(group: Group, held: set[Key]) -> str | None:
    """From where what wins is known without measuring; None where it is not.

    Shapes that a function lists are not known here: one workload of the kernel speaks for them all.
    """

    def knows(target: Target) -> bool:
        return all(_is_held(kernel, str(target), held) for kernel in group.kernels)

    if not group.measure:
        return "compiled as declared (measure = false)"
    if knows(group.target):
        return f"compiled from {LOCK_NAME}"
    if group.stand_in is not None and knows(group.stand_in):
        return f"compiled from {LOCK_NAME}, with the winners of {group.stand_in}"
    return None


def _is_held(kernel: KernelSpec, target: str, held: set[Key]) -> bool:
    if isinstance(kernel.shapes, str):
        return any(key[:2] == (kernel.name, target) for key in held)
    return all(key_of(kernel.name, target, open_shape(kernel.dynamic, shape)) in held for shape in kernel.shapes)


def _lacks(group: Group, here: Surroundings, isolated: Isolated | None, held: set[Key], lock: Lock) -> list[Gap]:
    """What one way of building lacks for a group; ``isolated`` None: this environment, with --no-build-isolation."""
    lacks = []
    if isolated is None:
        installed: Mapping[str, str] = here.machine.distributions
        setuptools = here.versions.get("setuptools", "")
        if release_of(setuptools) < release_of(SETUPTOOLS):
            lacks.append(
                (f"setuptools here is {setuptools or 'not installed'}", f'pip install -U "setuptools>={SETUPTOOLS}"')
            )
        module = {"apache-tvm": "tvm"}.get(FRONTENDS[group.frontend][1], FRONTENDS[group.frontend][1])
        error = here.probes.get(module, {}).get("error")
        if error:
            lacks.append(
                (
                    f"{FRONTENDS[group.frontend][1]} cannot be imported: {error}",
                    f"pip install --force-reinstall {FRONTENDS[group.frontend][1]}",
                )
            )
    else:
        names = {*isolated.distributions, *((FRONTENDS[group.frontend][1],) if isolated.everything else ())}
        installed = dict.fromkeys(names, "")
    lacks += _or_none(lacking_frontend(group, installed))
    lacks += _lacking_compiler(group.target, here, isolated)
    if _evidence(group, held) is None:
        optuna = "optuna" in (here.versions if isolated is None else isolated.distributions)
        if not optuna and not (isolated and isolated.everything) and any(k.search == "optuna" for k in group.kernels):
            remedy = (
                'pip install "tlaot[search]"' if isolated is None else 'add "tlaot[search]" to [build-system] requires'
            )
            lacks.append(('search = "optuna" needs Optuna', remedy))
        lacks += _lacking_device(group, here, installed, isolated is None, lock)
    return lacks


def _or_none(gap: Gap | None) -> list[Gap]:
    return [] if gap is None else [gap]


def _lacking_compiler(target: Target, here: Surroundings, isolated: Isolated | None) -> Iterator[Gap]:
    if isinstance(here.cc, TlaotError):
        yield here.cc.what, here.cc.remedy
    if not target.is_cuda:
        return
    if isinstance(here.cuda, TlaotError):
        if isolated is None or not (isolated.everything or "nvidia-cuda-nvcc" in isolated.distributions):
            yield here.cuda.what, here.cuda.remedy
        return
    first = first_cuda(target)
    if first is not None and release_of(here.cuda.version) < first:
        release = ".".join(map(str, first))
        yield (
            f"nvcc {here.cuda.version} does not know {target.arch}, which came with CUDA {release}",
            f"install CUDA {release} or newer, and name it: export CUDA_HOME=/usr/local/cuda-{release}",
        )


def _lacking_device(
    group: Group, here: Surroundings, installed: Mapping[str, str], outside: bool, lock: Lock
) -> Iterator[Gap]:
    """Why nothing can be measured for a group here; in its own environment, or (not ``outside``) in one that pip makes."""
    target = group.stand_in or group.target
    machine = replace(here.machine, distributions=installed)
    gap = lacking_device(target, machine)
    advice = f"tlaot tune --target {target}, where such a device is; commit {LOCK_NAME}"
    if gap is not None and here.machine.gpu_for(target) is not None:
        remedy = 'pip install "tlaot[torch]" and pip wheel . --no-build-isolation'
        yield gap[0], remedy if outside else "pip wheel . --no-build-isolation"
    elif gap is not None:
        has = any(
            (entry.kernel, entry.target) == (kernel.name, str(target))
            for kernel in group.kernels
            for entry in lock.entries.values()
        )
        yield f"{gap[0]}, and {LOCK_NAME} {'does not hold' if has else 'has no entry of it'}", advice
    elif target.is_cuda:
        gpu = machine.gpu_for(target)
        if (
            gpu is not None
            and isinstance(here.cuda, CudaCompiler)
            and gpu.driver // 1000 < release_of(here.cuda.version)[0]
        ):
            yield (
                f"the driver is for CUDA {gpu.driver // 1000}.{gpu.driver % 1000 // 10}, and does not load what nvcc {here.cuda.version} compiles",
                f"update the driver, or set CUDA_HOME to a CUDA {gpu.driver // 1000} toolkit",
            )
        told = here.probes.get("torch", {})
        if outside and (told.get("error") or (told and not told.get("available"))):
            yield (
                f"torch finds no GPU ({told.get('error') or 'built for CUDA ' + str(told.get('cuda'))})",
                "pip install --force-reinstall torch",
            )
    elif not target.is_cuda and here.cpu_level is not None and target.cpu_rank > here.cpu_level:
        yield (
            f"this processor runs {CPU_LEVELS[here.cpu_level - 1]} and lower: {target} cannot be measured here",
            advice,
        )
