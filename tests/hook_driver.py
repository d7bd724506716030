"""Call one PEP 517 hook, as a frontend does, with a pipeline that copies a given binary instead of tuning.

    python hook_driver.py BACKEND HOOK FOLDER BINARY REPORT CONFIG_SETTINGS_AS_JSON [--no-plugin] [--targets=A,B] [--audit]

With targets there is a kernel for each, and a manifest that says so. What the pipeline copies is no package that passes the audit of
wheels, which runs with ``--audit`` only.

Writes what happened to the JSON file REPORT. Runs in a process of its own, since setuptools is not made to be
called twice in one.
"""

from __future__ import annotations

import dataclasses
import importlib
import json
import os
import shutil
import sys
import types
from collections.abc import Callable
from pathlib import Path
from typing import Any

# setuptools writes over sys.argv.
BACKEND, HOOK, FOLDER, BINARY, REPORT, CONFIG_SETTINGS, *FLAGS = sys.argv[1:]
CALLS: list[dict[str, Any]] = []


def build_package(
    spec_path: Path, source_root: Path, output: Path, settings: Any, log: Callable[[str], None]
) -> tuple[Path, ...]:
    """The real one's interface."""
    CALLS.append({"spec": str(spec_path), "source_root": str(source_root), "settings": dataclasses.asdict(settings)})
    log("fake pipeline: building")
    if BINARY == "FAIL":
        from tlaot.errors import TuningError

        raise TuningError("kernel add", "no candidate was correct", "Mend the kernel.")
    targets = next((flag.partition("=")[2].split(",") for flag in FLAGS if flag.startswith("--targets=")), [])
    if targets:
        return build_for(targets, output, Path(BINARY).read_bytes())
    files = [Path("manifest.json"), Path("add/llvm-x86-64-v2/N1024/executable.so")]
    for file in files:
        (output / file).parent.mkdir(parents=True, exist_ok=True)
    (output / files[0]).write_text("{}\n")
    shutil.copyfile(BINARY, output / files[1])
    return tuple(files)


def build_for(targets: list[str], output: Path, binary: bytes) -> tuple[Path, ...]:
    from tlaot.manifest import Kernel, Manifest, Param, Variant, digest_of, dumps

    variants = [
        Variant(target, {"N": 1024}, {}, f"add/{target.replace(':', '-')}/N1024", (Param("A", "float32", (1024,)),), (),
                {"latency": None}, {"executable.so": digest_of(binary)})
        for target in targets
    ]  # fmt: skip
    for variant in variants:
        (output / variant.path).mkdir(parents=True)
        (output / variant.path / "executable.so").write_bytes(binary)
    package = output.parent.name
    (output / "manifest.json").write_text(dumps(Manifest(package, {"add": Kernel("add", tuple(variants))}, "0")))
    return tuple(path for path in output.rglob("*") if path.is_file())


def main() -> None:
    fake: Any = types.ModuleType("tlaot.tune.pipeline")
    fake.build_package = build_package
    sys.modules["tlaot.tune.pipeline"] = fake
    if "--audit" not in FLAGS:
        import tlaot.audit.build

        tlaot.audit.build.audit_built_wheel = lambda path, places: None
    if "--no-plugin" in FLAGS:
        import tlaot.build_hooks.plugin as plugin

        plugin.add_build_kernels = lambda distribution: None
    environ = dict(os.environ)
    function = getattr(importlib.import_module(BACKEND), HOOK)
    arguments = [] if HOOK.startswith("get_requires") else [FOLDER]
    try:
        result = function(*arguments, json.loads(CONFIG_SETTINGS))
    finally:
        ours = sorted(name for name in sys.modules if name.startswith("tlaot.") and name != "tlaot.tune.pipeline")
        changed = {name for name, _ in environ.items() ^ os.environ.items()} - {"PLAT"}  # setuptools sets PLAT itself
        Path(REPORT).write_text(json.dumps({"calls": CALLS, "modules": ours, "changed_variables": sorted(changed)}))
    body = json.loads(Path(REPORT).read_text()) | {"result": result}
    Path(REPORT).write_text(json.dumps(body))


if __name__ == "__main__":
    main()
