"""Companion wheels: of a wheel with kernels, each CUDA architecture's become a wheel of their own.

Most users have one kind of GPU. The main wheel keeps its code, its CPU kernels and a manifest that says which companions there are;
a companion has the kernels of one target, requires exactly the main wheel's version, and is found by an entry point in the group
``tlaot.kernels``. Nothing is compiled or tuned: files move from one archive to another, and the same wheel always gives the same
bytes.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from . import __version__
from .elf import EM_CUDA, is_elf
from .errors import PackageError
from .manifest import FOLDER, MANIFEST_NAME, Kernel, Manifest, Variant, digest_of, dumps, loads, place_of
from .runtime.companions import GROUP, normal_name
from .target import read_target
from .wheel_file import Date, Member, Members, WheelName, header, headers_of, parse_name, read_wheel, wheel_bytes

__all__ = ["Split", "Wheel", "split_wheel", "write_wheels"]

_AGAIN = "Build the wheel again."

# What a companion says of itself as the main wheel does.
_INHERITED = (
    "author", "author-email", "classifier", "home-page", "license", "license-expression", "license-file", "maintainer",
    "maintainer-email", "platform", "project-url", "requires-python",
)  # fmt: skip


@dataclass(frozen=True)
class Wheel:
    """A wheel in memory.

    Attributes:
        name: File name.
        content: The archive.
        targets: Targets of the kernels in it, sorted.
    """

    name: str
    content: bytes
    targets: tuple[str, ...]


@dataclass(frozen=True)
class Split:
    """What a wheel was split into; no companions where there was nothing to split."""

    main: Wheel
    companions: tuple[Wheel, ...]


@dataclass(frozen=True)
class _Part:
    """A companion in the making."""

    name: WheelName
    target: str
    members: Members


def split_wheel(wheel: Path) -> Split:
    """Split a wheel by CUDA architecture.

    Args:
        wheel: The wheel; it is only read.

    Raises:
        PackageError: It is no wheel, is damaged or signed, or has no kernels.
    """
    name = parse_name(wheel.name)
    members, info = read_wheel(wheel)
    manifests = [path for path in members if path.endswith(f"/{FOLDER}/{MANIFEST_NAME}")]
    if not manifests:
        raise PackageError(str(wheel), "has no packaged kernels", "Build it with a tltune.toml, without -C tune=off.")
    kept: list[str] = []
    parts: list[_Part] = []
    for path in manifests:
        manifest = loads(members[path].content, f"{wheel}:{path}")
        kept += _sort_targets(manifest)[0]
        parts += _take_parts(members, path, info, name, manifest, wheel)
    targets = tuple(sorted(set(kept)))
    if not parts:
        return Split(Wheel(wheel.name, wheel.read_bytes(), targets), ())
    _check_names(members, parts, wheel)
    main = _retag(members, info, name)
    companions = [Wheel(str(part.name), wheel_bytes(part.members, part.name.info), (part.target,)) for part in parts]
    companions.sort(key=lambda companion: companion.name)
    return Split(Wheel(str(main), wheel_bytes(members, info), targets), tuple(companions))


def write_wheels(wheels: Iterable[Wheel], folder: Path) -> list[Path]:
    """Write wheels into a folder, which is made where it does not exist; each appears whole."""
    folder.mkdir(parents=True, exist_ok=True)
    paths = []
    for wheel in wheels:
        path = folder / wheel.name
        temporary = path.with_name(f".{wheel.name}.part")
        temporary.write_bytes(wheel.content)
        temporary.replace(path)
        paths.append(path)
    return paths


def _take_parts(
    members: Members, path: str, info: str, name: WheelName, manifest: Manifest, wheel: Path
) -> list[_Part]:
    """Take the companions of one package out of the wheel's members; its manifest names them from then on."""
    metadata = headers_of(members[f"{info}/METADATA"].content)
    project = {"name": header(metadata, "name", wheel), "version": header(metadata, "version", wheel)}
    staying, moving = _sort_targets(manifest)
    if not moving:
        return []
    _check_apart(manifest, wheel)
    parts = []
    for target in moving:
        own = replace(_select(manifest, (target,)), project=project, companions={})
        companion = _name_companion(name, project["name"], manifest.package, target)
        made = _take_files(members, path[: -len(MANIFEST_NAME)], own, target, members[f"{info}/WHEEL"].date)
        made |= _make_metadata(members, info, metadata, project, own.package, companion, target)
        parts.append(_Part(companion, target, made))
    named = {part.name.project.replace("_", "-"): (part.target,) for part in parts}
    rest = replace(
        _select(manifest, staying, keep_empty=True),
        project=project,
        companions=dict(sorted({**manifest.companions, **named}.items())),
    )
    members[path] = replace(members[path], content=dumps(rest).encode())
    return parts


def _sort_targets(manifest: Manifest) -> tuple[list[str], list[str]]:
    """Targets that stay in the main wheel, and those that become companions."""
    targets = sorted({variant.target for variant in _variants(manifest)})
    cuda = [target for target in targets if read_target(target, "manifest").is_cuda]
    return [target for target in targets if target not in cuda], cuda


def _select(manifest: Manifest, targets: Sequence[str], keep_empty: bool = False) -> Manifest:
    kernels = {
        name: Kernel(name, tuple(variant for variant in kernel.variants if variant.target in targets))
        for name, kernel in manifest.kernels.items()
    }
    return replace(
        manifest, kernels={name: kernel for name, kernel in kernels.items() if kernel.variants or keep_empty}
    )


def _name_companion(main: WheelName, project: str, package: str, target: str) -> WheelName:
    slug = read_target(target, "manifest").slug
    stem = normal_name(package.replace(".", "-"))
    own = normal_name(project)
    if stem.replace("-", "") != own.replace("-", ""):  # flash-kernels and flashkernels are one name to people
        own = f"{own}-{stem}"
    name = normal_name(f"{own}-{slug}").replace("-", "_")
    return replace(main, project=name, python="py3", abi="none")


def _import_name(package: str, target: str) -> str:
    """Import name of a companion's package, which has nothing but kernels."""
    return f"{package}_{read_target(target, 'manifest').slug}".replace(".", "_").replace("-", "_")


def _take_files(members: Members, folder: str, manifest: Manifest, target: str, date: Date) -> Members:
    """The package of a companion; the files of its variants leave the main wheel."""
    package = _import_name(manifest.package, target)
    made: Members = {}
    for variant in _variants(manifest):
        for file in variant.files:
            place = place_of(variant, file)
            source = f"{folder}{place}"
            if f"{package}/{FOLDER}/{place}" not in made:
                if source not in members or digest_of(members[source].content) != variant.files[file]:
                    raise PackageError(source, "is not what the kernel manifest says", _AGAIN)
                made[f"{package}/{FOLDER}/{place}"] = members.pop(source)
    what = f'"""Kernels of {manifest.package} for {target}; tlaot finds them by itself."""\n'
    made[f"{package}/__init__.py"] = _text(what, date)
    made[f"{package}/{FOLDER}/{MANIFEST_NAME}"] = _text(dumps(manifest), date)
    return made


def _make_metadata(
    members: Members,
    info: str,
    metadata: Sequence[tuple[str, str]],
    project: Mapping[str, str],
    package: str,
    name: WheelName,
    target: str,
) -> Members:
    own, date = _import_name(package, target), members[f"{info}/WHEEL"].date
    texts = {
        "METADATA": _companion_metadata(metadata, project, name, target),
        "WHEEL": _wheel_text(name),
        "entry_points.txt": f"[{GROUP}]\n{package} = {own}\n",
        "top_level.txt": f"{own}\n",
    }
    made = {f"{name.info}/{file}": _text(text, date) for file, text in texts.items()}
    licenses = {value for key, value in metadata if key == "license-file"}
    for path, member in members.items():
        inside = path.removeprefix(f"{info}/")
        if inside != path and (inside.startswith("licenses/") or inside in licenses):
            made[f"{name.info}/{inside}"] = member
    return made


def _text(content: str, date: Date) -> Member:
    return Member(content.encode(), 0o100644, date)


def _companion_metadata(
    metadata: Sequence[tuple[str, str]], project: Mapping[str, str], name: WheelName, target: str
) -> str:
    version = next(value for key, value in metadata if key == "metadata-version")
    lines = [
        f"Metadata-Version: {version}",
        f"Name: {name.project.replace('_', '-')}",
        f"Version: {project['version']}",
        f"Summary: Kernels of {project['name']} for {target}",
        *(f"{key.title()}: {value}" for key, value in metadata if key in _INHERITED),
        f"Requires-Dist: {project['name']}=={project['version']}",
        "Description-Content-Type: text/plain",
    ]
    description = (
        f"Kernels of {project['name']} {project['version']} for {target}, compiled when it was built.\n\n"
        f"Install it beside {project['name']}, which finds it by itself. It does nothing alone.\n"
    )
    return "\n".join(lines) + "\n\n" + description


def _wheel_text(name: WheelName) -> str:
    build = [f"Build: {name.build[1:]}"] if name.build else []
    lines = ["Wheel-Version: 1.0", f"Generator: tlaot {__version__}", "Root-Is-Purelib: false"]
    return "\n".join([*lines, *(f"Tag: {tag}" for tag in name.tags), *build]) + "\n"


def _retag(members: Members, info: str, name: WheelName) -> WheelName:
    """The main wheel's name; where no binary is left in it, it is for every platform."""
    path = f"{info}/WHEEL"
    if name.abi != "none" or any(map(_is_host_binary, members.items())):
        return name
    name = replace(name, platform="any")
    headers = [
        (key, value) for key, value in headers_of(members[path].content) if key not in ("tag", "root-is-purelib")
    ]
    lines = [f"{key.title()}: {value}" for key, value in headers]
    lines[2:2] = ["Root-Is-Purelib: true", *(f"Tag: {tag}" for tag in name.tags)]
    members[path] = replace(members[path], content=("\n".join(lines) + "\n").encode())
    return name


def _is_host_binary(item: tuple[str, Member]) -> bool:
    return is_elf(item[1].content[:4]) and int.from_bytes(item[1].content[18:20], "little") != EM_CUDA


def _check_apart(manifest: Manifest, wheel: Path) -> None:
    """Refuse a variant whose content lies with one that goes to another wheel."""

    def part(target: str) -> str:
        return target if read_target(target, "manifest").is_cuda else ""

    holders = {variant.path: part(variant.target) for variant in _variants(manifest)}
    for variant in _variants(manifest):
        for file in variant.files:
            holder = place_of(variant, file).rpartition("/")[0]
            if holders.get(holder) != part(variant.target):
                what = f"has {file} of {variant.path} in {holder}, which goes to another wheel"
                raise PackageError(str(wheel), what, "Build it with this tlaot, which shares files within a target.")


def _check_names(members: Members, parts: Sequence[_Part], wheel: Path) -> None:
    """Refuse companions that would overwrite each other or the package."""
    tops = [{path.partition("/")[0] for path in made} for made in (members, *(part.members for part in parts))]
    every = [top for own in tops for top in own]
    twice = next((top for top in every if every.count(top) > 1), None)
    if twice is not None:
        raise PackageError(str(wheel), f"has {twice}, the name of a companion's package too", "Rename the package.")


def _variants(manifest: Manifest) -> list[Variant]:
    return [variant for kernel in manifest.kernels.values() for variant in kernel.variants]
