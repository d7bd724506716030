"""The manifest: round trip, and every kind of damage is an error."""

from __future__ import annotations

import dataclasses
import json
import random
from pathlib import Path

import pytest
from fixtures_runtime import scalar, tensor, variant

from tlaot.errors import PackageError
from tlaot.manifest import (
    BUCKETS_VERSION,
    FORMAT_VERSION,
    FileDigest,
    Kernel,
    Manifest,
    digest_of,
    dumps,
    loads,
    place_of,
    read_manifest,
    variant_dumps,
    variant_loads,
    verify_file,
)


def sample() -> Manifest:
    """A manifest with every kind of value in it."""
    params = [
        tensor("A", "m", 64, dtype="bfloat16", strides=("s", 1), align=16),
        scalar("scale"),
        tensor("C", "m", written=True),
    ]
    one = variant("mul", params, [2], {"K": 64, "causal": True, "mode": "é", "eps": 1e-6}, "cuda:sm_90a")
    files = {"executable.so": digest_of(b"\x7fELF"), "params.json": FileDigest("0" * 64, 0)}
    one = dataclasses.replace(one, files=files, frontend={"name": "tvm", "version": "0.27"}, properties={"sms": 132})
    bare = variant("mul", [], [], {})
    bare = dataclasses.replace(bare, latency={"latency": None})
    return Manifest("pkg", {"mul": Kernel("mul", (one, bare)), "none": Kernel("none", ())}, "0.1.0", *SPLIT)


SPLIT = ({"name": "pkg", "version": "1.0"}, {"pkg-cuda-sm-90a": ("cuda:sm_90a",)})


def test_round_trip() -> None:
    """What is written is read back equal, whatever order it was made in, and is always the same text."""
    manifest = sample()
    text = dumps(manifest)
    assert loads(text) == loads(text.encode()) == manifest
    assert dumps(loads(text)) == text
    swapped = Manifest("pkg", dict(reversed(list(manifest.kernels.items()))), "0.1.0", *SPLIT)
    assert dumps(swapped) == text


def test_every_truncation_is_an_error() -> None:
    """Cut anywhere but in the white space at its end, it is no manifest."""
    data = dumps(sample()).encode()
    for end in range(len(data.rstrip())):
        with pytest.raises(PackageError):
            loads(data[:end])


def test_every_flipped_bit_is_an_error_or_changes_nothing() -> None:
    """No single wrong bit is ever read as another manifest, nor raises anything but PackageError."""
    manifest = sample()
    data = dumps(manifest).encode()
    harmless = 0
    for position in range(len(data)):
        for bit in range(8):
            damaged = bytearray(data)
            damaged[position] ^= 1 << bit
            try:
                # Escapes and exponents may be spelt in either case: 1e-06 is 1E-06.
                assert loads(bytes(damaged)) == manifest
                harmless += 1
            except PackageError:
                pass
    assert harmless < 8


def test_random_damage_is_an_error() -> None:
    """Overwritten, removed, doubled and inserted stretches; the seed makes a failure repeatable."""
    manifest = sample()
    data = dumps(manifest).encode()
    random_ = random.Random(7)
    refused = 0
    for _ in range(3000):
        start = random_.randrange(len(data))
        end = min(len(data), start + random_.randrange(1, 40))
        noise = random_.randbytes(random_.randrange(0, 20))
        middle = random_.choice([b"", noise, data[start:end] * 2, b'"', b"{", b"[" * 50])
        try:
            assert loads(data[:start] + middle + data[end:]) == manifest
        except PackageError:
            refused += 1
    assert refused > 2900


@pytest.mark.parametrize(
    "text", ["", "null", "[]", "1", '"x"', "{}", '{"format": "1"}', "[" * 100_000, "\xff", "\0" * 64]
)
def test_what_is_no_manifest(text: str) -> None:
    """Other JSON, no JSON, and JSON that is nested too deeply to read."""
    with pytest.raises(PackageError) as caught:
        loads(text.encode("latin-1"), "here.json")
    assert caught.value.where == "here.json"
    assert caught.value.remedy


def test_a_variants_entry_stands_alone() -> None:
    """``variant.json`` is the manifest's entry, lists every file but itself, and no damage is read as another."""
    one = sample().kernels["mul"].variants[0]
    data = variant_dumps("mul", one).encode()
    kernel, found = variant_loads(data)
    assert kernel == "mul"
    assert found == dataclasses.replace(one, files={**one.files, "variant.json": digest_of(data)})
    assert "variant.json" not in json.loads(data)["files"]
    assert variant_dumps("mul", found).encode() == data, "an entry read and written again is the same"
    for end in range(len(data.rstrip())):
        with pytest.raises(PackageError):
            variant_loads(data[:end])
    for position in range(len(data)):
        damaged = bytearray(data)
        damaged[position] ^= 1 << position % 7
        try:
            name, read = variant_loads(bytes(damaged))
            assert (name, read.config, read.params) == ("mul", one.config, one.params)
        except PackageError:
            pass


@pytest.mark.parametrize("text", ["", "null", "[]", "{}", '{"format": "1"}', "[" * 100_000, "\xff", dumps(sample())])
def test_what_is_no_variants_entry(text: str) -> None:
    """Other JSON, no JSON, and the whole manifest."""
    with pytest.raises(PackageError) as caught:
        variant_loads(text.encode("latin-1"), "here.json")
    assert caught.value.where == "here.json"
    assert caught.value.remedy


def test_a_newer_format_says_upgrade() -> None:
    """A manifest of the future names both formats and the way out; one of the past says to build again."""
    body = json.loads(dumps(sample()))
    body["format"] = BUCKETS_VERSION + 1
    reads = f"formats {FORMAT_VERSION} and {BUCKETS_VERSION}"
    with pytest.raises(PackageError, match=f"format {BUCKETS_VERSION + 1}.*{reads}\nUpgrade tlaot"):
        loads(json.dumps(body))
    body["format"] = FORMAT_VERSION - 1
    with pytest.raises(PackageError, match="Build the package again"):
        loads(json.dumps(body))


@pytest.mark.parametrize("key", ["package", "writer", "kernels"])
def test_a_missing_field_with_a_right_digest(key: str) -> None:
    """A well-sealed manifest that lacks a field is an error that names the field."""
    from tlaot.manifest import _body_digest

    body = json.loads(dumps(sample()))
    del body["digest"], body[key]
    body["digest"] = _body_digest(body)
    with pytest.raises(PackageError, match=key):
        loads(json.dumps(body))


def test_read_manifest_of_a_missing_file(tmp_path: Path) -> None:
    """No file, or a folder in its place: PackageError with the path."""
    for path in (tmp_path / "manifest.json", tmp_path):
        with pytest.raises(PackageError, match=str(path)):
            read_manifest(path)


def test_where_a_file_lies() -> None:
    """In the variant's folder, or where it is stored; nowhere outside of the package."""
    one = dataclasses.replace(sample().kernels["mul"].variants[0], stored={"params.json": "mul/x/y/params.json"})
    assert place_of(one, "executable.so") == f"{one.path}/executable.so"
    assert place_of(one, "params.json") == "mul/x/y/params.json"
    with pytest.raises(PackageError, match=r"no kernel\.cubin"):
        place_of(one, "kernel.cubin")
    for outside in ("/etc/passwd", "../x/params.json", "a/../../params.json"):
        with pytest.raises(PackageError, match=r"no params\.json"):
            place_of(dataclasses.replace(one, stored={"params.json": outside}), "params.json")
    with pytest.raises(PackageError, match=r"no executable\.so"):
        place_of(dataclasses.replace(one, path="../mul"), "executable.so")


@pytest.mark.parametrize("content", [b"", b"abc", b"abcd\0", b"abcD", None])
def test_verify_file(tmp_path: Path, content: bytes | None) -> None:
    """A file that is empty, cut, longer, changed or absent is refused; the right one passes."""
    path = tmp_path / "f"
    path.write_bytes(b"abcd")
    expected = digest_of(b"abcd")
    verify_file(path, expected)
    path.unlink()
    if content is not None:
        path.write_bytes(content)
    with pytest.raises(PackageError, match=str(path)):
        verify_file(path, expected)
