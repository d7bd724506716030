"""``tlaot report``: what is gathered, where a kernel stands, and the page's text; in test_report_page.py a browser opens it."""

from __future__ import annotations

import dataclasses
import json
import re
from pathlib import Path
from typing import Any

import locks
import pytest
from fixtures_runtime import tensor, variant, write_package

from tlaot import manifest
from tlaot.cli import main
from tlaot.errors import BuildError, PackageError, SpecError
from tlaot.report import library
from tlaot.report.detail import show_detail
from tlaot.report.evidence import Bucket, Try, Work, gather
from tlaot.report.kinds import KINDS
from tlaot.report.library import find_library
from tlaot.report.page import write_page
from tlaot.report.pieces import Plots, spell_count, spell_percent, spell_time
from tlaot.report.plots import landscape, over_sizes, roofline, sizes, unit_of, varying
from tlaot.report.roofline import DEVICES, Place, bytes_of, place, width_of
from tlaot.tune.locks.lock import Part, Sized, Tried, digest_entry
from tlaot.tune.locks.lock_entry import entry_to_json
from tlaot.tune.locks.lock_file import dump_lock
from tlaot.tune.specs.arithmetic import check_expression, evaluate

HALF = [
    tensor("A", 64, 32, dtype="float16"),
    tensor("B", 32, 64, dtype="float16"),
    tensor("C", 64, 64, dtype="float16", written=True),
]


def dynamic_entry() -> Any:
    """A dynamic workload over M: the third config is wrong at the largest size, of two that ship each is best at one end."""
    found = tuple(
        Sized(
            {"M": m},
            (m > 64 and 1) or 0,
            {0: locks.timing(0.01 * m / 16), 1: locks.timing(0.02 + 0.004 * m / 16)},
            {2: ("check", "wrong")} if m == 1024 else {},
            locks.timing(0.05 * m / 16),
        )
        for m in (16, 64, 256, 1024)
    )
    parts = (Part(locks.CONFIGS[0], {"cubin": "a" * 64}), Part(locks.CONFIGS[1], {"cubin": "b" * 64}))
    return locks.entry(64, "dyn", shape={"M": "M", "N": 64}, sizes=found, parts=parts)


@pytest.fixture
def lock(tmp_path: Path) -> Path:
    """A lock with a tuned workload that has a failure, a stand-in and a dynamic one."""
    stand_in = locks.entry(
        64, target="cuda:sm_100a", tuned_as="cuda:sm_90a", winner={}, device={}, candidates=(), reference=None
    )
    path = tmp_path / "tltune.lock"
    path.write_text(dump_lock(locks.lock(locks.entry(64), stand_in, dynamic_entry())))
    return path


@pytest.fixture
def package(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    """The same workloads as a package, the dynamic one with ranges."""
    open_shape = [tensor("A", "M", 32, dtype="float16"), tensor("C", "M", 64, dtype="float16", written=True)]
    one = variant("add", HALF, [2], {"N": 64}, "cuda:sm_90a")
    parts = [
        dataclasses.replace(
            variant("dyn", open_shape, [1], {"M": "M", "N": 64}, "cuda:sm_90a"),
            config=config,
            path=f"dyn/{number}",
            buckets=(manifest.Bucket({"M": ends}, (0.1, 0.2), 1.02),),
        )
        for number, (config, ends) in enumerate(zip(locks.CONFIGS, [(16, 100), (101, 1024)], strict=False))
    ]
    built = {"add": [(one, b"\x7fELF" + b"1" * 500)], "dyn": [(part, b"\x7fELF" + bytes(700)) for part in parts]}
    write_package(tmp_path, "pk_report", built)
    monkeypatch.syspath_prepend(str(tmp_path))
    return "pk_report"


def by_kernel(works: list[Work], target: str = "cuda:sm_90a") -> dict[str, Work]:
    return {work.kernel: work for work in works if work.target == target}


def test_a_lock_has_the_candidates(lock: Path) -> None:
    sources, works = gather([str(lock)])
    assert [(source.kind, source.label, source.count) for source in sources] == [("lock", "tltune.lock", 3)]
    add = by_kernel(works)["add"]
    assert (add.ms, add.default_ms, add.reference_ms) == (0.125, 0.25, 0.5)
    assert [one.roles for one in add.tries] == [("default",), ("fastest", "ships"), ()]
    assert [one.stage for one in add.failed] == ["check"]
    assert add.size is None and not add.params
    assert by_kernel(works, "cuda:sm_100a")["add"].tuned_as == "cuda:sm_90a"


def test_a_package_adds_signatures_sizes_and_ranges(lock: Path, package: str) -> None:
    _, works = gather([str(lock), package])
    found = by_kernel(works)
    assert found["add"].size is not None and found["add"].size > 500
    assert found["add"].signature.startswith("(A: float16[64, 32]")
    assert len(found["add"].tries) == 3
    assert [bucket.sizes["M"] for bucket in found["dyn"].buckets] == [(16, 100), (101, 1024)]
    assert len(works) == 3, "the two sources speak of the same workloads"


def test_a_package_alone(package: str) -> None:
    _, works = gather([package])
    assert [(work.kernel, len(work.tries)) for work in works] == [("add", 0), ("dyn", 0)]


def test_records_of_builds(tmp_path: Path) -> None:
    """A torn one counts as none."""
    folder = tmp_path / "build" / "tlaot" / "records"
    (folder / "add").mkdir(parents=True)
    body = entry_to_json(locks.entry(64))
    (folder / "add" / "N64.json").write_text(json.dumps({**body, "key": "k", "digest": digest_entry(body)}))
    (folder / "add" / "N65.json").write_text("{")
    sources, works = gather([str(folder)])
    assert sources[0].label == "build/tlaot/records"
    assert [work.kernel for work in works] == ["add"]


def test_what_is_not_there() -> None:
    with pytest.raises(PackageError, match="there is no such file"):
        gather(["missing.lock"])


def test_bytes_are_those_of_the_signature() -> None:
    assert bytes_of(tuple(HALF), {}) == (64 * 32 + 32 * 64 + 64 * 64) * 2
    assert bytes_of((tensor("A", "M", 8), tensor("n")), {"M": 4}) == 4 * 8 * 4 + 4
    assert bytes_of((tensor("A", "M", 8),), {}) is None
    assert bytes_of((tensor("A", 3, dtype="bool"), tensor("B", 4, dtype="float8_e4m3fn")), {}) == 7
    assert bytes_of((tensor("A", 4, dtype="float4_e2m1fnx2"),), {}) == 4
    assert width_of((tensor("A", 3, dtype="int32"), tensor("B", 4, dtype="float8_e4m3fn"))) == "8"


def test_the_place_under_the_roof() -> None:
    work = Work(
        "k",
        "cuda:sm_90a",
        {"M": 64, "N": 64, "K": 32},
        {},
        ms=0.001,
        params=tuple(HALF),
        device={"name": "NVIDIA H200"},
    )
    at = place(work, "2*M*N*K", True)
    assert at.flops == 2 * 64 * 64 * 32 and at.bytes == 16384
    assert at.rate == pytest.approx(at.flops / 1e-6)
    assert at.of_rate == pytest.approx(at.rate / 989.5e12)
    assert at.of_bandwidth == pytest.approx(16384 / 1e-6 / 4.8e12)
    assert not at.unknown
    [(name, plot)] = roofline([(work, at)])
    assert name == "NVIDIA H200"
    assert plot["values"][0]["share"] < 1


def test_what_is_unknown_is_said() -> None:
    """No figure is made up."""
    work = Work("k", "cuda:sm_90a", {"N": 64}, {}, ms=0.001, device={"name": "NVIDIA Unheard Of"})
    at = place(work, None, False)
    assert (at.bytes, at.flops, at.rate, at.of_bandwidth) == (None, None, None, None)
    assert [sentence.partition(":")[0] for sentence in at.unknown] == ["Bytes", "FLOPs", "Peak"]
    assert list(roofline([(work, at)])) == []


def test_arithmetic_of_flops() -> None:
    assert evaluate("2*M*(N + 1) // 3", {"M": 4, "N": 2}) == 8
    assert evaluate("2*X", {"M": 4}) is None
    assert evaluate("M/(M-4)", {"M": 4}) is None
    assert check_expression("M/(M-4)", "w") == "M/(M-4)"
    for wrong in ("__import__('os')", "M.real", "2**M", "M if N else 1", "f(M)", "2 *", "True"):
        with pytest.raises(SpecError, match="no arithmetic"):
            check_expression(wrong, "w")


def test_devices_have_figures_that_can_be() -> None:
    for peak in DEVICES.values():
        assert 1e11 < peak.bandwidth < 1e13
        assert peak.flops["32"] < peak.flops["16"] < peak.flops["8"]


def test_a_landscape(lock: Path) -> None:
    """The fastest on top; what failed has no point; colours and shapes only of what is there."""
    _, works = gather([str(lock)])
    plot = landscape(by_kernel(works)["add"])
    assert plot is not None
    assert [value["config"] for value in plot["values"]] == ["128", "64"]
    assert plot["fill"]["@roles"] == ["ships", "default"]
    assert plot["values"][0]["low"] < plot["values"][0]["time"] < plot["values"][0]["high"]
    assert plot["kind"] == "landscape", "the reference is so slow that it would squeeze the rest"
    assert landscape(by_kernel(works, "cuda:sm_100a")["add"]) is None


def test_many_candidates_have_ranks_for_names() -> None:
    configs = [{"block": n} for n in range(100)]
    tries = tuple(Tried(config, timing=locks.timing(1 + config["block"] / 100), binary="b") for config in configs)
    path_entry = locks.entry(64, candidates=tries, ships=configs[0], winner=configs[0], reference=locks.timing(2.0))
    from tlaot.report.evidence import _unite

    plot = landscape(_unite(path_entry, "", []))
    assert plot is not None
    assert plot["fill"]["@y"] == "rank"
    assert plot["kind"] == "landscape-reference"


def test_time_over_size(lock: Path, package: str) -> None:
    _, works = gather([str(lock), package])
    plot = over_sizes(by_kernel(works)["dyn"])
    assert plot is not None and plot["kind"] == "over-sizes-ranges"
    assert {value["label"] for value in plot["values"]} == {"64", "128", "reference"}
    assert [(one["first"], one["last"]) for one in plot["fill"]["@buckets"]] == [(16, 101), (101, 1024)]
    _, alone = gather([str(lock)])
    assert (over_sizes(by_kernel(alone)["dyn"]) or {})["kind"] == "over-sizes"
    assert over_sizes(by_kernel(works)["add"]) is None


def test_sizes_by_kernel_and_target(package: str) -> None:
    _, works = gather([package])
    plot = sizes(works)
    assert plot is not None
    assert [(value["kernel"], value["target"]) for value in plot["values"]] == [
        ("add", "cuda:sm_90a"),
        ("dyn", "cuda:sm_90a"),
    ]
    assert sizes([]) is None


def test_every_place_in_a_plot_is_filled(lock: Path, package: str) -> None:
    """The names that the page's script puts values for are those that a plot brings, and colours."""
    _, works = gather([str(lock), package])
    placed = [(work, place(work, "2*N", True)) for work in works]
    plots = [landscape(work) for work in works] + [over_sizes(work) for work in works] + [sizes(works)]
    plots += [plot for _, plot in roofline(placed)]
    for plot in filter(None, plots):
        names = set(re.findall(r'"(@\w+)"', json.dumps(KINDS[plot["kind"]])))
        assert (
            names - {"@accent", "@good", "@warn", "@muted", "@text", "@legend", "@titled", "@ticks"}
            <= plot["fill"].keys()
        )


def test_units() -> None:
    assert [spell_time(ms) for ms in (0.0139, 2.6, 25000.0)] == ["13.9 µs", "2.6 ms", "25 s"]
    assert unit_of([0.5, 20]) == ("us", 1e3)
    assert [spell_count(rate) + "FLOP/s" for rate in (6.6e14, 1.1e10, 1536, 192)] == [
        "660 TFLOP/s",
        "11 GFLOP/s",
        "1.536 kFLOP/s",
        "192 FLOP/s",
    ]
    assert [spell_percent(share) for share in (0.67, 0.012, 0.00001)] == ["67%", "1.2%", "under 0.1%"], "never 0.0%"


def test_what_the_time_hangs_on() -> None:
    """Each tunable's values by the fastest config that has them; the one that matters most on top."""
    times = {(64, 2): 1.0, (64, 3): 1.01, (128, 2): 2.0, (128, 3): 2.2}
    tries = tuple(Try({"block": b, "stages": s}, ms=ms, spread=0.01) for (b, s), ms in times.items())
    work = Work("k", "llvm", {"N": 64}, {"block": 64, "stages": 2}, ms=1.0, tries=tries)
    page = show_detail(work, Place(), 0, Plots())
    block, stages = re.findall(r"<tr><th class=\"short\" scope=\"row\">(\w+)</th><td>(.*?)</td></tr>", page)
    assert block == ("block", "<strong>64</strong>, 128 <small>+100.0%</small>")
    assert stages == ("stages", "<strong>2</strong>, 3 <small>+1.0%</small>")


def test_ranges_go_by_size() -> None:
    """Whichever variant serves them; one of a single size is told as such."""
    ends: list[tuple[int, int | None]] = [(33, 64), (1, 31), (65, None), (32, 32)]
    buckets = tuple(Bucket({"config": n}, {"M": one}, 1.0) for n, one in enumerate(ends))
    page = show_detail(Work("k", "llvm", {"M": "M"}, {}, buckets=buckets), Place(), 0, Plots())
    found = re.findall(r"<td class=\"short\">(M.*?)</td>", page)
    assert found == ["M 1 to 31", "M = 32", "M 33 to 64", "M 65 and above"]


def test_a_doubt_is_told_once() -> None:
    doubts = tuple(f"others kept {n} CPUs busy; times cannot be trusted" for n in (1, 1, 2))
    page = show_detail(Work("k", "llvm", {}, {}, ms=1.0, doubts=doubts), Place(), 0, Plots())
    assert "Times not to be trusted: others kept 1 CPUs busy; others kept 2 CPUs busy." in page


def test_a_tunable_that_some_leave_out_stays_a_number() -> None:
    """Its column is on the right, and what has none is last."""
    tries = (Try({"fixed": 4}, ms=1.0), Try({"per_row": 3}, ms=2.0))
    page = show_detail(Work("k", "llvm", {}, {}, ms=1.0, tries=tries), Place(), 0, Plots())
    assert '<td class="n" data-v="">-</td>' in page
    assert '<th scope="col" class=n>fixed</th>' in page


def test_one_target_has_no_column(lock: Path) -> None:
    _, works = gather([str(lock)])
    both = write_page("t", [], [(work, Place()) for work in works], "")
    one = write_page("t", [], [(work, Place()) for work in works if work.target == "cuda:sm_90a"], "")
    assert ">Target</th>" in both and ">Target</th>" not in one
    assert "<small>cuda:sm_90a</small>" in one


def test_the_page_escapes_what_authors_write(tmp_path: Path) -> None:
    """A reason or a name is text, wherever it stands."""
    evil = "</script><script>alert(1)</script>"
    tries = (Tried({"x": evil}, timing=locks.timing(1.0), binary="b"), Tried({"x": 2}, failed=("compile", evil)))
    path = tmp_path / "tltune.lock"
    path.write_text(dump_lock(locks.lock(locks.entry(64, candidates=tries, ships={"x": evil}, winner={"x": evil}))))
    sources, works = gather([str(path)])
    page = write_page(f"<b>{evil}", sources, [(work, place(work, None, False)) for work in works], "/* </script> */")
    assert page.count("<script") == 3 and page.count("</script>") == 3
    assert "alert(1)" in page
    data = re.search(r'<script type="application/json" id="data">(.*?)</script>', page)
    assert data is not None and evil in json.loads(data[1])["plots"][0]["values"][0]["label"]


def test_the_page_says_all_of_a_workload(lock: Path, package: str) -> None:
    sources, works = gather([str(lock), package])
    page = write_page("title", sources, [(work, place(work, None, True)) for work in works], "")
    assert "1 config failed" in page
    assert "1 of 64 elements differ from the reference" in page
    assert "A stand-in: it was not measured" in page
    assert "tltune.toml does not say (flops" in page
    assert '<td class="short">M 16 to 100</td>' in page and '<td class="n">2.0%</td>' in page
    assert "Where no size is named, figures are of the largest ones, M=1024" in page
    assert '<span class="tag " title="not measured: the config of cuda:sm_90a">stand-in</span>' in page
    assert not re.search(r'(src|href)="(?!#|data:,)', page), "nothing is loaded from anywhere"
    assert varying(by_kernel(works)["add"].tries) == ["block"]


def test_the_command(
    lock: Path, package: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Without arguments it takes the lock of this folder, and the spec beside it."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("TLAOT_CACHE_DIR", str(tmp_path / "cache"))
    monkeypatch.setattr(library, "find_library", lambda cache: "")
    spec = '[tlaot]\npackage = "pkg"\ntargets = ["cuda:sm_90a"]\n[[kernel]]\nname = "add"\nfrontend = "tilelang"\n'
    (tmp_path / "tltune.toml").write_text(
        spec + 'factory = "p.k:f"\ncheck = false\nshapes = { N = 64 }\nflops = "3*N"\n'
    )
    assert main(["report"]) == 0
    assert capsys.readouterr().out.startswith("report.html: 3 workloads of 2 kernels")
    page = (tmp_path / "report.html").read_text()
    assert "<title>pkg: tuned kernels</title>" in page
    assert "192 FLOPs" in page
    assert main(["report", package, "-o", "other.html", "--title", "Mine"]) == 0
    assert "<title>Mine</title>" in (tmp_path / "other.html").read_text()


def test_nothing_to_report(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(library, "find_library", lambda cache: "")
    assert main(["report"]) == 2
    assert "there is no tltune.lock in this folder" in capsys.readouterr().err


def test_what_draws_is_an_extra(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """It is kept once it was made; without it the message says what to install."""
    monkeypatch.setattr(library, "_DISTRIBUTION", "a-distribution-that-is-not-there")
    with pytest.raises(BuildError, match=re.escape('pip install "tlaot[report]"')):
        find_library(tmp_path)
    monkeypatch.setattr(library, "_DISTRIBUTION", "pytest")
    (tmp_path / "report").mkdir()
    (tmp_path / "report" / f"vega-{pytest.__version__}.js").write_text("kept")
    assert find_library(tmp_path) == "kept"
