"""Where a module comes from: the author, whose code is read, or an installed distribution, whose content is named."""

from __future__ import annotations

import functools
import hashlib
import importlib.metadata
import site
import sys
import sysconfig
from pathlib import Path, PurePath

__all__ = ["origin_of"]

# Part of the compiling, wherever they are imported from.
_FRAMEWORKS = ("tlaot", "tilelang", "tvm", "tvm_ffi", "torch", "triton", "numpy")
_SITE_FOLDERS = ("site-packages", "dist-packages")


def origin_of(module: str, file: str | None) -> str | None:
    """What stands for a module's content; None for the author's own modules.

    Args:
        module: Its name.
        file: Its ``__file__``; None where it has none.

    Returns:
        ``"python 3.11"`` for the standard library; ``"numpy==2.1.0+<digest>"`` for a distribution, the digest that of its
        record of installed files, so that a distribution built again under an old version counts as another.
    """
    top = module.partition(".")[0]
    if top == "__main__":
        return None
    if file is None:
        is_python = top in sys.stdlib_module_names or top in sys.builtin_module_names
        return _python() if is_python else _framework(top)
    if _is_installed(file):
        return _distributions(top)
    if any(PurePath(file).is_relative_to(folder) for folder in _python_folders()):
        return _python()
    return _framework(top)


def _python() -> str:
    return f"python {sys.version_info[0]}.{sys.version_info[1]}"


def _framework(top: str) -> str | None:
    if top not in _FRAMEWORKS:
        return None
    return f"{top} {getattr(sys.modules.get(top), '__version__', '')}"


@functools.lru_cache(maxsize=1)
def _python_folders() -> tuple[str, ...]:
    paths = sysconfig.get_paths()
    folders = (paths["stdlib"], paths["platstdlib"])
    return tuple({form for folder in folders for form in (folder, str(Path(folder).resolve()))})


@functools.lru_cache(maxsize=1)
def _site_folders() -> tuple[str, ...]:
    folders = [sysconfig.get_path("purelib"), sysconfig.get_path("platlib")]
    if site.ENABLE_USER_SITE:
        folders.append(site.getusersitepackages())
    return tuple({form for folder in folders for form in (folder, str(Path(folder).resolve()))})


def _is_installed(file: str) -> bool:
    path = PurePath(file)
    return any(part in _SITE_FOLDERS for part in path.parts) or any(path.is_relative_to(f) for f in _site_folders())


@functools.lru_cache(maxsize=1)
def _packages() -> dict[str, list[str]]:
    return {name: sorted(set(found)) for name, found in importlib.metadata.packages_distributions().items()}


@functools.lru_cache(maxsize=256)
def _distributions(top: str) -> str | None:
    """None where no distribution claims a module that lies among the installed ones: its code is read."""
    return " ".join(_distribution(name) for name in _packages().get(top, ())) or _framework(top)


@functools.lru_cache(maxsize=256)
def _distribution(name: str) -> str:
    found = importlib.metadata.distribution(name)
    # Scripts and metadata hold paths of the machine; the rest is the same wherever the same wheel is installed.
    lines = [
        line
        for line in (found.read_text("RECORD") or "").splitlines()
        if not line.lstrip('"').startswith(("..", "/")) and ".dist-info/" not in line and "__pycache__" not in line
    ]
    digest = hashlib.sha256("\n".join(sorted(lines)).encode()).hexdigest()
    return f"{name}=={found.version}+{digest[:16]}"
