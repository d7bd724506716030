"""The report in a real headless Chromium: it draws, sorts and filters, in dark and light, wide and narrow, without a word on the console.

Skipped where there is no Chromium, or no vl-convert. ``TLAOT_SCREENSHOTS`` names a folder for pictures of it.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from pathlib import Path

import locks
import pytest
from chromium import BROWSER, Browser, Tab, open_browser
from conftest import ROOT
from test_report import dynamic_entry, lock, package

from tlaot.cli import main
from tlaot.tune.locks.lock_file import dump_lock

__all__ = ["lock", "package"]  # fixtures

pytestmark = pytest.mark.skipif(BROWSER is None, reason="there is no Chromium (apt-get install chromium)")

Open = Callable[..., Tab]

TOOLS = """
  const $ = (selector) => document.querySelector(selector), $$ = (selector) => [...document.querySelectorAll(selector)];
  const seen = {};
  const until = async (what, holds) => {
    for (let n = 0; n < 1000; n++) { if (holds()) return; await new Promise((go) => setTimeout(go, 10)); }
    throw new Error("waited in vain for " + what);
  };
  const visible = () => $$("#table tbody tr").filter((row) => !row.hidden);
"""


@pytest.fixture(scope="module")
def browser(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Browser]:
    with open_browser(tmp_path_factory.mktemp("profile")) as found:
        yield found


@pytest.fixture
def look(browser: Browser) -> Iterator[Open]:
    """Open a page; at the end nothing must have been complained of, and nothing asked for."""
    tabs: list[Tab] = []

    def open_page(path: Path, width: int = 1280, dark: bool = False) -> Tab:
        tabs.append(Tab(browser, width, 900, dark))
        tabs[-1].open(path)
        return tabs[-1]

    yield open_page
    for tab in tabs:
        tab.run("1")  # events that are on their way
        assert tab.complaints == []


@pytest.fixture(scope="session")
def library_cache(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Where the script that draws is kept: bundling it takes seconds."""
    pytest.importorskip("vl_convert")
    return tmp_path_factory.mktemp("cache")


@pytest.fixture
def page(lock: Path, package: str, library_cache: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The report of a lock and a package, with every kind of plot."""
    monkeypatch.setenv("TLAOT_CACHE_DIR", str(library_cache))
    monkeypatch.chdir(tmp_path)
    spec = '[tlaot]\npackage = "pkg"\ntargets = ["cuda:sm_90a"]\n[[kernel]]\nname = "add"\nfrontend = "tilelang"\n'
    (tmp_path / "tltune.toml").write_text(
        spec + 'factory = "p.k:f"\ncheck = false\nshapes = { N = 64 }\nflops = "3*N"\n'
    )
    assert main(["report", str(lock), package]) == 0
    return tmp_path / "report.html"


SEEN_WHOLE = "const box = document.querySelector('.scroll'); return box.scrollWidth <= box.clientWidth"

DRAW_ALL = """
  $("#all").click();
  const places = $$(".plot");
  for (const place of places) { place.scrollIntoView(); await until("a plot", () => place.dataset.drawn); }
  seen.plots = places.map((place) => place.querySelectorAll("svg path").length);
  seen.width = document.documentElement.scrollWidth;
  seen.theme = document.documentElement.dataset.theme;
  seen.back = getComputedStyle(document.body).backgroundColor;
  seen.over = places.filter((place) => place.querySelector("svg").clientWidth > place.clientWidth + 1).length;
  return seen;
"""


@pytest.mark.parametrize("width", [1280, 390])
@pytest.mark.parametrize("dark", [False, True])
def test_everything_is_drawn(page: Path, look: Open, width: int, dark: bool) -> None:
    """Without an error, a warning or a request; nothing is wider than the screen."""
    tab = look(page, width, dark)
    seen = tab.run(TOOLS + DRAW_ALL)
    assert len(seen["plots"]) == 5, "two landscapes, one over sizes, the roofline and the sizes"
    assert min(seen["plots"]) > 3
    assert seen["theme"] == ("dark" if dark else "light")
    assert seen["back"] == ("rgb(17, 20, 24)" if dark else "rgb(255, 255, 255)")
    assert seen["width"] <= width and not seen["over"]
    folder = os.environ.get("TLAOT_SCREENSHOTS")
    if folder:
        for name in ("body", "#roofline", "#sizes", "#w0", "#w1", "#w2"):
            tab.run(f"document.querySelector({name!r}).scrollIntoView({{behavior: 'instant'}})")
            tab.shoot(Path(folder, f"{'dark' if dark else 'light'}-{width}-{name.strip('#')}.png"))


def test_the_table_of_a_real_lock_is_seen_whole(
    look: Open, library_cache: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The sample's, with configs of five names and notes, on a laptop's screen: no column waits to be found by scrolling."""
    monkeypatch.setenv("TLAOT_CACHE_DIR", str(library_cache))
    assert main(["report", str(ROOT / "tltune.lock"), "-o", str(tmp_path / "report.html")]) == 0
    assert look(tmp_path / "report.html", 1366).run(SEEN_WHOLE)


def test_the_table_with_every_column_is_seen_whole(page: Path, look: Open) -> None:
    """Rates with their shares, sizes, failures and tags, too."""
    tab = look(page, 1366)
    wanted = ["Target", "vs default", "vs reference", "Tried", "Bandwidth", "Rate", "Size", "Note"]
    shown = tab.run("return [...document.querySelectorAll('#table thead th')].map((one) => one.textContent.trim())")
    assert set(wanted) <= set(shown)
    assert tab.run(SEEN_WHOLE)


def test_a_phone_keeps_the_kernel_in_sight(page: Path, look: Open) -> None:
    """The table is wider than the screen: the first column stays while the others pass, and the button shares the title's line."""
    seen = look(page, 390).run(
        TOOLS
        + """
  const box = $(".scroll"), left = () => $("#table tbody th").getBoundingClientRect().left;
  seen.before = left();
  box.scrollLeft = 200;
  await new Promise((go) => requestAnimationFrame(go));
  seen.moved = box.scrollLeft;
  seen.after = left();
  seen.line = $("#theme").getBoundingClientRect().top < $("h1").getBoundingClientRect().bottom;
  return seen;"""
    )
    assert seen["moved"] == 200 and seen["before"] == seen["after"] and seen["line"]


def test_axes_can_be_read(page: Path, look: Open) -> None:
    """At most a dozen ticks, none written as 1e+2; sizes in powers of two; what a legend's values are of is said."""
    texts = "[...place.querySelectorAll('svg .role-axis-label text')].map((one) => one.textContent).filter(Boolean)"
    seen = look(page).run(
        TOOLS
        + DRAW_ALL.replace("return seen;", "")
        + f"""
  seen.labels = places.map((place) => {texts});
  seen.titles = places.map((place) => [...place.querySelectorAll("svg .role-legend-title text")].map((one) => one.textContent));
  return seen;"""
    )
    labels = seen["labels"]
    assert not [label for plot in labels for label in plot if "e" in label.lower() and label[0].isdigit()]
    assert max(map(len, labels)) <= 26, "of both axes"
    over_sizes = next(n for n, titles in enumerate(seen["titles"]) if "block" in titles)
    assert {"64", "256", "1,024"} <= set(labels[over_sizes])


def test_every_line_of_a_phones_grid_has_its_label(page: Path, look: Open) -> None:
    """Of the landscape: no more ticks than there is room for."""
    seen = look(page, 390).run(
        TOOLS
        + DRAW_ALL.replace("return seen;", "")
        + """
  const landscape = $("#w0 .plot"), labels = landscape.querySelectorAll("svg .role-axis-label")[0].querySelectorAll("text");
  const hidden = [...labels].filter((one) => one.style.opacity === "0" || one.getAttribute("opacity") === "0");
  return [labels.length, hidden.length];"""
    )
    assert seen[0] >= 2 and seen[1] == 0, seen


def test_the_references_name_is_below_the_legend(
    look: Open, library_cache: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """And above the frame: it hides no point and is none of the legend's."""
    monkeypatch.setenv("TLAOT_CACHE_DIR", str(library_cache))
    monkeypatch.chdir(tmp_path)
    near = locks.entry(64, reference=locks.timing(0.2))
    (tmp_path / "near.lock").write_text(dump_lock(locks.lock(near)))
    assert main(["report", "near.lock"]) == 0
    seen = look(tmp_path / "report.html").run(
        TOOLS
        + """
  $("#all").click();
  const place = $("#w0 .plot");
  place.scrollIntoView();
  await until("the plot", () => place.dataset.drawn);
  const box = (one) => one.getBoundingClientRect();
  const name = [...place.querySelectorAll("svg text")].find((one) => one.textContent === "reference");
  seen.legend = Math.max(...[...place.querySelectorAll("svg .role-legend-label text, svg .role-legend text")].map((one) => box(one).bottom));
  seen.name = [box(name).top, box(name).bottom];
  seen.points = Math.min(...[...place.querySelectorAll("svg .mark-symbol.role-mark path")].map((one) => box(one).top));
  return seen;"""
    )
    assert seen["legend"] <= seen["name"][0] + 1 and seen["name"][1] <= seen["points"] + 2, seen


def test_sorting(page: Path, look: Open) -> None:
    """One way, then the other; what has no value stays last; the heading says which way it is."""
    seen = look(page).run(
        TOOLS
        + """
  for (const way of ["up", "down"]) {
    const heading = $$("#table thead th").find((one) => one.textContent.trim() === "Time");
    heading.querySelector("button").click();
    seen[way] = [heading.ariaSort, ...$$("#table tbody tr").map((row) => row.cells[heading.cellIndex].dataset.v)];
  }
  const table = $("#w0 table");
  table.tHead.rows[0].cells[1].querySelector("button").click();
  seen.inner = [...table.tBodies[0].rows].map((row) => row.cells[1].textContent);
  return seen;"""
    )
    assert seen["up"] == ["ascending", "0.125", "0.125", ""]
    assert seen["down"] == ["descending", "0.125", "0.125", ""]
    assert seen["inner"] == ["64", "128", "256"]


def test_filtering(page: Path, look: Open) -> None:
    """By words, target and state; the details follow the table."""
    seen = look(page).run(
        TOOLS
        + """
  const set = (id, value) => { $(id).value = value; $(id).dispatchEvent(new Event("input")); return visible().length; };
  seen.words = [set("#words", "DYN m"), $("#shown").textContent, $$("details.work:not([hidden])").length];
  seen.none = set("#words", "nothing like it");
  set("#words", "");
  seen.target = set("#target", "cuda:sm_100a");
  set("#target", "");
  seen.failed = set("#state", "failed");
  seen.dynamic = set("#state", "dynamic");
  return seen;"""
    )
    assert seen == {"words": [1, "1 of 3 shown", 1], "none": 0, "target": 1, "failed": 2, "dynamic": 1}


def test_the_keyboard_is_enough(page: Path, look: Open) -> None:
    """Tab reaches the controls, the headings and the links; Enter sorts, and opens what a link names."""
    tab = look(page)
    tab.press("Tab", 9)
    assert tab.run("document.activeElement.className") == "skip"
    for _ in range(40):
        tab.press("Tab", 9)
        if tab.run("document.activeElement.tagName + document.activeElement.closest('#table')?.id") == "BUTTONtable":
            break
    tab.press("Enter", 13, "\r")
    assert tab.run("document.activeElement.parentElement.ariaSort") == "ascending"
    for _ in range(40):
        tab.press("Tab", 9)
        if tab.run("document.activeElement.tagName") == "A":
            break
    tab.press("Enter", 13, "\r")
    opened = TOOLS + "await until('the details', () => $('details[open]')); return document.activeElement.tagName"
    assert tab.run(opened) == "SUMMARY"


def test_the_button_changes_the_colours(page: Path, look: Open) -> None:
    """Of the plots, too."""
    seen = look(page).run(
        TOOLS
        + """
  const place = $("#sizes .plot");
  place.scrollIntoView();
  const fill = () => place.querySelector("svg text")?.getAttribute("fill");
  await until("the plot", () => place.dataset.drawn);
  seen.before = fill();
  $("#theme").click();
  await until("other colours", () => fill() && fill() !== seen.before);
  seen.theme = document.documentElement.dataset.theme;
  return seen;"""
    )
    assert seen["theme"] == "dark"


def test_a_large_report(look: Open, library_cache: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Of 300 workloads the page is there at once: plots wait until they come into view."""
    monkeypatch.setenv("TLAOT_CACHE_DIR", str(library_cache))
    monkeypatch.chdir(tmp_path)
    path = tmp_path / "many.lock"
    path.write_text(dump_lock(locks.lock(dynamic_entry(), *(locks.entry(n) for n in range(300)))))
    assert main(["report", str(path)]) == 0
    tab = look(tmp_path / "report.html")
    assert tab.run(TOOLS + "return [visible().length, $$('.plot[data-drawn]').length]") == [301, 0]
