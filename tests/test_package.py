"""What is written into the wheel: folders of variants, equal content once, the same bytes every time."""

from __future__ import annotations

import dataclasses
import json
import os
import random
import re
import shutil
import zipfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from tlaot.errors import BuildError, PackageError
from tlaot.manifest import digest_of, place_of, read_manifest
from tlaot.target import parse_target
from tlaot.tune.compiling.compile import Built
from tlaot.tune.shipping.package import Winner, find_executable, pack_winner, read_packed, write_folders, write_package
from tlaot.tune.shipping.weigh import check_budget, weigh
from tlaot.tune.specs.plan import Workload
from tlaot.tune.specs.spec import KernelSpec, Spec


@pytest.fixture(autouse=True)
def _floors_of_stand_ins(monkeypatch: pytest.MonkeyPatch) -> None:
    # The binaries here are a few bytes; test_floors.py has real ones.
    monkeypatch.setattr("tlaot.tune.shipping.package.find_floors", lambda *_: {"glibc": "2.17"})


def winner(folder: Path, shape: Mapping[str, Any], target: str = "llvm", name: str = "k", **files: bytes) -> Winner:
    """A winner with given files; ``so`` and ``cu`` stand for the binary and the kept source."""
    parsed = parse_target(target)
    spec = KernelSpec(name, "tvm", "m:f", (parsed,), (), (), "here")
    place = folder / f"{name}-{target.replace(':', '-')}-{'-'.join(map(str, shape.values()))}"
    place.mkdir(parents=True)
    binary = files.get("so", b"\x7fELF")
    (place / "executable.so").write_bytes(binary)
    if "cu" in files:
        (place / "device_kernel.cu").write_bytes(files["cu"])
    built = Built(place, digest_of(binary), (), (), {"name": "tvm", "version": "0.27"}, {})
    latency = {"latency": 1.0, "spread": 0.01, "ref_latency": None, "default_latency": None}
    return Winner(Workload(spec, parsed, shape, ({},)), {"block": 1}, built, latency, {"device": "a device"})


@pytest.fixture
def twins(tmp_path: Path) -> list[Winner]:
    """Three workloads of one kernel, the last two with equal binaries, and one of another target with that binary too."""
    return [
        winner(tmp_path, {"M": 3}, so=b"\x7fELF twin", cu=b"// kernel"),
        winner(tmp_path, {"M": 2}, so=b"\x7fELF twin", cu=b"// kernel"),
        winner(tmp_path, {"M": 1}, so=b"\x7fELF other", cu=b"// other"),
        winner(tmp_path, {"M": 2}, "llvm:x86-64-v2", so=b"\x7fELF twin"),
    ]


def tree(folder: Path) -> dict[str, bytes]:
    return {p.relative_to(folder).as_posix(): p.read_bytes() for p in sorted(folder.rglob("*")) if p.is_file()}


def test_equal_binaries_are_written_once(twins: list[Winner], tmp_path: Path) -> None:
    """The first by path of the same target holds it, whatever order the winners come in; JSON files stay in every folder."""
    files = write_package(tmp_path / "out", "pk", "0", twins, keep=True)
    v2, v3 = "k/llvm-x86-64-v2", "k/llvm-x86-64-v3"
    binaries = sorted(file.as_posix() for file in files if file.name == "executable.so")
    assert binaries == [f"{v2}/M2/executable.so", f"{v3}/M1/executable.so", f"{v3}/M2/executable.so"]
    assert (tmp_path / "out" / v3 / "M3" / "best_config.json").is_file()
    assert sum(file.name == "device_kernel.cu" for file in files) == 2, "the source of a shared binary is shared too"
    manifest = read_manifest(tmp_path / "out" / "manifest.json")
    stored = {v.path: dict(v.stored) for v in manifest.kernels["k"].variants}
    assert stored == {
        f"{v2}/M2": {},
        f"{v3}/M1": {},
        f"{v3}/M2": {},
        f"{v3}/M3": {name: f"{v3}/M2/{name}" for name in ("executable.so", "device_kernel.cu")},
    }
    for variant in manifest.kernels["k"].variants:
        for name, digest in variant.files.items():
            assert digest_of((tmp_path / "out" / place_of(variant, name)).read_bytes()) == digest, (variant.path, name)
    assert write_package(tmp_path / "again", "pk", "0", twins[::-1], keep=True) == files
    assert tree(tmp_path / "again") == tree(tmp_path / "out")


def test_a_folder_of_a_package_is_read_whole(twins: list[Winner], tmp_path: Path) -> None:
    """With what lies in another folder, also by a relative name or a link; it does not say any more that it lay there."""
    write_package(tmp_path / "out", "pk", "0", twins, keep=True)
    folder = tmp_path / "out" / "k" / "llvm-x86-64-v3" / "M3"
    packed = read_packed(folder)
    assert packed.contents["executable.so"] == b"\x7fELF twin"
    assert packed.contents["device_kernel.cu"] == b"// kernel"
    assert not packed.variant.stored
    assert (
        "stored" not in json.loads(packed.contents["variant.json"])
        or not json.loads(packed.contents["variant.json"])["stored"]
    )
    assert packed.variant.files["variant.json"] == digest_of(packed.contents["variant.json"])
    assert find_executable(folder) == folder.parent / "M2" / "executable.so"
    assert find_executable(folder.parent / "M2") == folder.parent / "M2" / "executable.so"
    (tmp_path / "link").symlink_to(folder)
    assert read_packed(tmp_path / "link") == packed
    there = Path.cwd()
    os.chdir(folder)
    try:
        assert read_packed(Path()) == packed
    finally:
        os.chdir(there)


def test_packed_again_it_is_the_same(twins: list[Winner], tmp_path: Path) -> None:
    """Folders read from a package and written into another one: byte for byte."""
    write_package(tmp_path / "out", "pk", "0", twins, keep=True)
    packed = [read_packed(path.parent) for path in sorted((tmp_path / "out").rglob("variant.json"))]
    write_folders(tmp_path / "again", "pk", "0", packed)
    assert tree(tmp_path / "again") == tree(tmp_path / "out")


def test_a_folder_out_of_its_package_says_what_it_lacks(twins: list[Winner], tmp_path: Path) -> None:
    write_package(tmp_path / "out", "pk", "0", twins, keep=True)
    folder = tmp_path / "out" / "k" / "llvm-x86-64-v3" / "M3"
    shutil.copytree(folder, tmp_path / "alone")
    with pytest.raises(PackageError, match=r"has no \w+\.\w+: its package has it in k/llvm-x86-64-v3/M2") as caught:
        read_packed(tmp_path / "alone")
    assert "k/llvm-x86-64-v3/M3" in caught.value.remedy
    with pytest.raises(PackageError, match=r"has no executable\.so"):
        find_executable(tmp_path / "alone")
    (folder.parent / "M2" / "executable.so").write_bytes(b"\x7fELF else")
    with pytest.raises(PackageError, match=r"M2/executable\.so: the file is not the one"):
        read_packed(folder)


def test_no_stored_place_leads_out_of_the_package(twins: list[Winner], tmp_path: Path) -> None:
    from tlaot.manifest import variant_dumps

    write_package(tmp_path / "out", "pk", "0", twins, keep=False)
    folder = tmp_path / "out" / "k" / "llvm-x86-64-v3" / "M3"
    (tmp_path / "executable.so").write_bytes(b"\x7fELF twin")
    one = next(v for v in read_manifest(tmp_path / "out" / "manifest.json").kernels["k"].variants if v.stored)
    for place in ("../executable.so", str(tmp_path / "executable.so")):
        (folder / "variant.json").write_text(
            variant_dumps("k", dataclasses.replace(one, stored={"executable.so": place}))
        )
        with pytest.raises(PackageError, match="has no executable"):
            read_packed(folder)


def test_the_builders_umask_is_no_part_of_it(twins: list[Winner], tmp_path: Path) -> None:
    """Others can read what a careful builder packed."""
    before = os.umask(0o077)
    try:
        write_package(tmp_path / "out", "pk", "0", twins, keep=True)
    finally:
        os.umask(before)
    modes = {path.stat().st_mode & 0o777 for path in [tmp_path / "out", *(tmp_path / "out").rglob("*")]}
    assert modes == {0o644, 0o755}
    for path in (tmp_path / "out").rglob("*"):
        assert (path.stat().st_mode & 0o111 != 0) is (path.is_dir() or path.name == "executable.so"), path


def random_bytes(seed: int, size: int) -> bytes:
    return b"\x7fELF" + random.Random(seed).randbytes(size)


def spec_of(winners: list[Winner], budget: int | None, **rest: Any) -> Spec:
    kernels = tuple(winner.workload.kernel for winner in winners)
    return Spec(Path("tltune.toml"), "my.pk", kernels, {}, (), size_budget=budget, **rest)


@pytest.fixture
def heavy(tmp_path: Path) -> list[Winner]:
    """Some kernels whose binaries do not compress: 20, 10 (twice, equal), 5 and 5 KB."""
    return [
        winner(tmp_path, {"M": 1}, "cuda:sm_90a", so=random_bytes(1, 20_000)),
        winner(tmp_path, {"M": 1}, "cuda:sm_80", so=random_bytes(2, 10_000)),
        winner(tmp_path, {"M": 2}, "cuda:sm_80", so=random_bytes(2, 10_000)),
        winner(tmp_path, {"M": 1}, so=random_bytes(3, 5_000), name="small"),
        winner(tmp_path, {"M": 2}, so=random_bytes(4, 5_000), name="small"),
    ]


def test_what_is_weighed_is_what_the_wheel_grows_by(heavy: list[Winner], tmp_path: Path) -> None:
    """To the byte, for the archive that zipfile makes."""
    output = tmp_path / "my" / "pk" / "_tlaot"
    files = write_package(output, "my.pk", "0", heavy, keep=True)
    weights, manifest = weigh(output, "my.pk")
    with zipfile.ZipFile(tmp_path / "x.whl", "w", zipfile.ZIP_DEFLATED) as archive:
        for file in files:
            archive.write(output / file, f"my/pk/_tlaot/{file}")
    end = 22  # of the archive's directory
    assert manifest + sum(w.deflated for w in weights) == (tmp_path / "x.whl").stat().st_size - end
    assert [(w.kernel, w.target, w.variants, w.binaries) for w in weights] == [
        ("k", "cuda:sm_90a", 1, 1),
        ("small", "llvm:x86-64-v3", 2, 2),
        ("k", "cuda:sm_80", 2, 1),
    ]
    installed = sum((output / file).stat().st_size for file in files if file.name != "manifest.json")
    assert sum(w.installed for w in weights) == installed


def test_a_budget_that_is_kept_says_nothing(heavy: list[Winner], tmp_path: Path) -> None:
    write_package(tmp_path / "out", "my.pk", "0", heavy, keep=False)
    check_budget(tmp_path / "out", spec_of(heavy, None))
    check_budget(tmp_path / "out", spec_of(heavy, 100_000))
    weights, manifest = weigh(tmp_path / "out", "my.pk")
    total = manifest + sum(w.deflated for w in weights)
    check_budget(tmp_path / "out", spec_of(heavy, total))
    with pytest.raises(BuildError, match=r"0\.0% more than"):
        check_budget(tmp_path / "out", spec_of(heavy, total - 1))


def test_a_budget_that_is_not_kept_is_told_with_a_table(heavy: list[Winner], tmp_path: Path) -> None:
    write_package(tmp_path / "out", "my.pk", "0", heavy, keep=False)
    with pytest.raises(BuildError) as caught:
        check_budget(tmp_path / "out", spec_of(heavy, 20 << 10))
    lines = str(caught.value).splitlines()
    assert re.fullmatch(
        r"tltune\.toml \[tlaot\] size-budget: the kernels take 4\d\.\d KiB of the wheel, 2\.\d times the 20\.0 KiB of the budget:",
        lines[0],
    )
    table = [re.split(r"  +", line.strip()) for line in lines[1:6]]
    assert table[0] == ["kernel", "target", "variants", "binaries", "in the wheel", "share", "installed"]
    assert [row[:4] for row in table[1:4]] == [
        ["k", "cuda:sm_90a", "1", "1"],
        ["small", "llvm:x86-64-v3", "2", "2"],
        ["k", "cuda:sm_80", "2", "1"],
    ]
    assert table[4][0] == "manifest.json"
    shares = [int(row[-2].rstrip("%")) for row in table[1:4]]
    assert shares == sorted(shares, reverse=True) and sum(shares) > 90
    assert [line.partition(":")[0].strip() for line in lines[6:]] == [
        "What would help",
        "fewer targets",
        'split = "arch"',
        "max-slowdown = 1.05",
        "fewer shapes, or a larger size-budget",
    ]


def test_a_long_table_ends_with_a_sum(tmp_path: Path) -> None:
    many = [winner(tmp_path, {"M": 1}, so=random_bytes(i, 1000 + 100 * i), name=f"k{i:02}") for i in range(30)]
    write_package(tmp_path / "out", "my.pk", "0", many, keep=False)
    with pytest.raises(BuildError) as caught:
        check_budget(tmp_path / "out", spec_of(many, 1000))
    table = str(caught.value).splitlines()[2:-2]
    assert len(table) == 22
    assert table[0].split()[0] == "k29" and table[19].split()[0] == "k10"
    assert table[20].split()[:4] == ["10", "more", "10", "10"]


def test_each_wheel_of_a_split_package_has_the_budget(heavy: list[Winner], tmp_path: Path) -> None:
    write_package(tmp_path / "out", "my.pk", "0", heavy, keep=False)
    check_budget(tmp_path / "out", spec_of(heavy, 25 << 10, split="arch"))
    with pytest.raises(BuildError, match="of the companion wheel for cuda:sm_90a, 4") as caught:
        check_budget(tmp_path / "out", spec_of(heavy, 15 << 10, split="arch"))
    assert "cuda:sm_80" not in str(caught.value) and "split" not in str(caught.value)


def test_kept_sources_are_advised_against(tmp_path: Path) -> None:
    one = winner(tmp_path, {"M": 1}, so=random_bytes(1, 1000), cu=random_bytes(2, 9000))
    write_package(tmp_path / "out", "my.pk", "0", [one], keep=True)
    with pytest.raises(BuildError, match=r"-C keep=off: .* take [89]\.\d KiB"):
        check_budget(tmp_path / "out", spec_of([one], 5000))


def test_what_a_call_must_heed_is_in_the_manifest(tmp_path: Path) -> None:
    """``on-misaligned`` and ``deterministic`` where they differ from the default; what makes such a kernel again."""
    made = winner(tmp_path, {"M": 1})
    plain = pack_winner(made, keep=False).variant.properties
    assert not {"on_misaligned", "deterministic"} & plain.keys()
    assert plain["made_by"] == {"factory": "m:f"}

    def of(**fields: Any) -> Mapping[str, Any]:
        kernel = dataclasses.replace(made.workload.kernel, **fields)
        workload = dataclasses.replace(made.workload, kernel=kernel)
        return pack_winner(dataclasses.replace(made, workload=workload), keep=False).variant.properties

    changed = of(on_misaligned="copy", deterministic=False, reference="m:r", rtol=0.5, pass_configs={"a": 1})
    assert (changed["on_misaligned"], changed["deterministic"]) == ("copy", False)
    assert changed["made_by"] == {"factory": "m:f", "reference": "m:r", "rtol": 0.5, "pass_configs": {"a": 1}}
    # A factory from Python is a file of the process that tuned it.
    assert "made_by" not in of(factory="pickle:/tmp/tlaot-tune-x/parcels/factory.pkl")
