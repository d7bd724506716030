"""The text of a manifest: its digest is checked and its kernels are found without parsing it, whoever laid it out."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from fixtures_runtime import tensor, variant

import tlaot
from tlaot import manifest as manifest_module
from tlaot.errors import PackageError
from tlaot.layout import lay_out, read_layout
from tlaot.manifest import FOLDER, Kernel, Manifest, dumps, loads, open_manifest
from tlaot.runtime.places import Home, refuse_clashes

PARAMS = [tensor("A", 4), tensor("B", 4, written=True)]


def sample(*names: str, target: str = "llvm:x86-64") -> Manifest:
    kernels = {
        name: Kernel(name, tuple(variant(name, PARAMS, [1], {"N": n, "é": "\n"}, target) for n in range(3)))
        for name in names
    }
    return Manifest("pk", {**kernels, "none": Kernel("none", ())}, "0.1.0")


@pytest.fixture
def parsed(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """The variants that were parsed, by their N."""
    made: list[int] = []
    real = manifest_module._variant_from_json

    def counting(entry: dict[str, dict[str, int]]) -> manifest_module.Variant:
        made.append(entry["shape"]["N"])
        return real(entry)

    monkeypatch.setattr(manifest_module, "_variant_from_json", counting)
    return made


def test_a_line_a_variant_and_the_digest_of_the_json() -> None:
    """The text has the digest that a reader finds who parses it all, and no white space but line feeds."""
    text = dumps(sample("a", "b"))
    body = json.loads(text)
    digest = body.pop("digest")
    assert digest == manifest_module._body_digest(body)
    assert sum('"config"' in line for line in text.splitlines()) == 6
    assert text.replace("\n", "") == json.dumps({**body, "digest": digest}, sort_keys=True, separators=(",", ":"))
    for name, entry in body["index"].items():
        start = text.index('"kernels":{\n') + len('"kernels":{\n') + entry["at"][0]
        assert json.loads(text[start : start + entry["at"][1]]) == body["kernels"][name]


@pytest.mark.parametrize("names", [(), ("a",), ("a", "b")])
def test_only_what_is_asked_for_is_parsed(names: tuple[str, ...], parsed: list[int]) -> None:
    """Names, targets and everything beside the kernels are known before; each kernel is parsed once."""
    made = sample(*names)
    found = open_manifest(dumps(made))
    assert set(found.kernels) == {*names, "none"}
    assert found.targets == {**dict.fromkeys(names, ("llvm:x86-64",)), "none": ()}
    assert not parsed
    for name in names:
        assert found.kernels[name] == made.kernels[name]
        assert found.kernels[name] is found.kernels[name]
    assert parsed == [0, 1, 2] * len(names)
    assert found == made
    with pytest.raises(KeyError):
        found.kernels["c"]


def test_another_layout_is_the_same_manifest() -> None:
    """Indented, in another order, with an index or without: what counts is the JSON."""
    text = dumps(sample("a", "b"))
    assert read_layout(text.encode()) is not None
    body = json.loads(text)
    other = json.dumps(dict(reversed(body.items())), indent=2)
    assert read_layout(other.encode()) is None
    assert loads(other) == loads(text)
    assert open_manifest(other).digest == open_manifest(text).digest == body["digest"]
    assert open_manifest(other).targets == open_manifest(text).targets
    del body["index"], body["digest"]
    body["digest"] = manifest_module._body_digest(body)
    assert loads(json.dumps(body)) == loads(text)


def test_an_entry_that_lacks_a_field_is_an_error_where_it_is_read() -> None:
    """Sealed by who forgot a field: other kernels are sound, and reading the whole says it at once."""
    body = json.loads(dumps(sample("a", "b")))
    entries = body.pop("kernels")
    del body["digest"], body["index"], entries["b"][1]["out_idx"]
    text = lay_out(body, entries)
    found = open_manifest(text, "here.json")
    assert len(found.kernels["a"].variants) == 3
    for read in (lambda: found.kernels["b"], lambda: loads(text, "here.json")):
        with pytest.raises(PackageError, match=r"here\.json: the kernel manifest lacks a field.*out_idx"):
            read()


def test_loading_a_package_parses_the_kernels_that_are_used(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, parsed: list[int]
) -> None:
    """Names and membership are known without; a kernel is parsed at its first mention, and is the same object ever after."""
    folder = tmp_path / "pk" / FOLDER
    folder.mkdir(parents=True)
    (folder.parent / "__init__.py").write_text("")
    (folder / "manifest.json").write_text(dumps(sample("a", "b")))
    monkeypatch.syspath_prepend(str(tmp_path))
    kernels = tlaot.load("pk")
    assert list(kernels) == ["a", "b", "none"]
    assert "a" in kernels
    assert repr(kernels) == "<tlaot.Kernels of pk: a, b, none>"
    assert not parsed
    assert kernels.a is kernels["a"]
    assert kernels.a is kernels.a
    assert parsed == [0, 1, 2]


def test_two_places_are_compared_where_their_targets_meet(tmp_path: Path, parsed: list[int]) -> None:
    """Companions of other architectures are not parsed; a claim to the same target and shape is an error as ever."""

    def home(name: str, manifest: Manifest) -> Home:
        return Home(tmp_path / name, name, open_manifest(dumps(manifest)), name)

    sm80, sm90, again = (home(target, sample("a", target=f"cuda:{target}")) for target in ("sm_80", "sm_90a", "sm_90a"))
    refuse_clashes([sm80, sm90])
    assert not parsed
    with pytest.raises(PackageError, match=r"two places have a for cuda:sm_90a"):
        refuse_clashes([sm80, sm90, again])
