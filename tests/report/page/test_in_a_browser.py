"""The page of runs in Chromium without network: it is drawn, at once, in both schemes and on a phone, and hostile texts
stay texts."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from browser import Browser, browser, needs_chromium
from page_runs import grid, hostile, recorded
from rondo.report.page.document import page

pytestmark = [pytest.mark.slow, needs_chromium]

AXE = os.environ.get("RONDO_AXE", "")
"""A copy of axe.min.js (npm, axe-core 4.14.1), which judges whether everybody can use a page."""


@pytest.fixture(scope="module")
def chromium() -> Iterator[Browser]:
    with browser() as running:
        yield running


def opened(chromium: Browser, folder: Path, text: str, **options: Any) -> None:
    (folder / "page.html").write_text(text, encoding="utf-8")
    chromium.open((folder / "page.html").as_uri(), **options)


def figures(chromium: Browser) -> tuple[int, int]:
    """The number of charts, and of those that are drawn: some pixel of each is not empty."""
    return chromium.value("""(() => {
        const drawn = (figure) => {
          const canvas = figure.querySelector("canvas");
          if (!canvas || !canvas.width) return false;
          const pixels = canvas.getContext("2d").getImageData(0, 0, canvas.width, canvas.height).data;
          return pixels.some((value, i) => i % 4 === 3 && value > 0);
        };
        const all = [...document.querySelectorAll("figure")];
        return [all.length, all.filter(drawn).length];
    })()""")  # type: ignore[no-any-return]


def unfold(chromium: Browser) -> None:
    """Open what is folded, and wait until its charts have a size."""
    chromium.value("document.querySelectorAll('details').forEach((part) => { part.open = true; })")
    chromium.value("new Promise((done) => setTimeout(done, 300))")


@pytest.mark.parametrize("dark", [False, True], ids=["light", "dark"])
@pytest.mark.parametrize("width", [400, 1400])
def test_every_chart_is_drawn(chromium: Browser, tmp_path: Path, width: int, dark: bool) -> None:
    runs = [*grid(4, 2, 12), recorded("p", private=True), recorded("f", failing=True, clients=("ann", "bob"))]
    opened(chromium, tmp_path, page(runs), width=width, dark=dark)
    unfold(chromium)
    there, drawn = figures(chromium)
    assert there == drawn > 10
    assert chromium.messages == []
    assert chromium.value("document.documentElement.scrollWidth") <= width
    back = chromium.value("getComputedStyle(document.body).backgroundColor")
    assert back == ("rgb(20, 24, 29)" if dark else "rgb(255, 255, 255)")


def test_twenty_runs_of_a_hundred_rounds_are_there_within_a_second(chromium: Browser, tmp_path: Path) -> None:
    """The best of three, since other work on the machine counts too."""
    text, times = page(grid(20, 1, 100)), []
    for _ in range(3):
        opened(chromium, tmp_path, text)
        times.append(chromium.value("performance.getEntriesByType('navigation')[0].loadEventEnd"))
    there, drawn = figures(chromium)
    assert there == drawn
    assert min(times) < 1000


def test_hostile_texts_run_nothing(chromium: Browser, tmp_path: Path) -> None:
    opened(chromium, tmp_path, page(hostile()))
    assert chromium.messages == []
    assert chromium.value("document.querySelectorAll('img, main script').length") == 0
    shown = chromium.value("document.querySelector('.legend button').textContent")
    assert shown.startswith("</script><img src=x onerror=alert(1)>")
    chromium.value("document.querySelectorAll('details').forEach((part) => { part.open = true; })")
    chromium.value("new Promise((done) => setTimeout(done, 100))")
    assert chromium.value("document.querySelectorAll('img').length") == 0
    there, drawn = figures(chromium)
    assert there == drawn


def test_page_may_not_ask_the_network(chromium: Browser, tmp_path: Path) -> None:
    opened(chromium, tmp_path, page([recorded()]), offline=False)
    asked = chromium.value("fetch('https://example.org/').then(() => 'came', () => 'refused')")
    assert asked == "refused"
    assert "Content Security Policy" in "\n".join(chromium.messages)


def test_keyboard_reads_a_chart(chromium: Browser, tmp_path: Path) -> None:
    opened(chromium, tmp_path, page(grid(2, 1, 6)))
    chromium.value("document.querySelector('[data-chart=score-0] .plot').focus()")
    chromium.press("Home")
    chromium.press("ArrowRight")
    chromium.press("ArrowRight")
    said = chromium.value("document.querySelector('[data-chart=score-0] .readout').textContent")
    assert said.startswith("rounds 2: fedit 0.4")


def test_table_under_a_chart_has_its_numbers(chromium: Browser, tmp_path: Path) -> None:
    opened(chromium, tmp_path, page(grid(2, 2, 6)))
    cells = chromium.value("""(async () => {
        const figure = document.querySelector("[data-chart=score-0]");
        figure.querySelector("details").open = true;
        await new Promise((done) => setTimeout(done, 100));
        return [...figure.querySelectorAll("tr")].map((row) => [...row.cells].map((cell) => cell.textContent));
    })()""")
    assert cells[0] == ["rounds", "fedit", "rolora"]
    assert [row[0] for row in cells[1:]] == ["0", "1", "2", "3", "4", "5", "6"]
    assert " ± " in cells[2][1]


def test_another_score_and_a_hidden_line_are_drawn_anew(chromium: Browser, tmp_path: Path) -> None:
    opened(chromium, tmp_path, page(grid(3, 1, 6)))
    label = "document.querySelector('[data-chart=score-1] .plot').getAttribute('aria-label')"
    assert "accuracy. fedit ends" in chromium.value(label)
    chromium.value("""(() => {
        const score = document.getElementById("score");
        score.value = [...score.options].find((option) => option.textContent === "training loss").value;
        score.dispatchEvent(new Event("change"));
        document.querySelector(".legend button").click();
    })()""")
    assert "training loss. rolora ends" in chromium.value(label)
    assert chromium.value("document.querySelector('.legend button').getAttribute('aria-pressed')") == "false"


def test_page_can_be_printed(chromium: Browser, tmp_path: Path) -> None:
    opened(chromium, tmp_path, page(grid(2, 1, 6)), dark=True)
    chromium.call("Emulation.setEmulatedMedia", media="print")
    printed = chromium.call("Page.printToPDF")["data"]
    chromium.call("Emulation.setEmulatedMedia", media="")
    assert len(printed) > 20_000
    assert chromium.messages == []


@pytest.mark.skipif(not AXE, reason="RONDO_AXE names no axe.min.js")
@pytest.mark.parametrize("dark", [False, True], ids=["light", "dark"])
def test_axe_finds_nothing_serious(chromium: Browser, tmp_path: Path, dark: bool) -> None:
    opened(chromium, tmp_path, page([*grid(3, 2, 8), recorded("f", failing=True)]), dark=dark)
    chromium.value("document.querySelectorAll('details').forEach((part) => { part.open = true; })")
    chromium.value(Path(AXE).read_text(encoding="utf-8"))
    places = "v.nodes.map((node) => node.html.slice(0, 200)).slice(0, 3)"
    found = chromium.value(f"axe.run().then((result) => result.violations.map((v) => [v.id, v.impact, {places}]))")
    assert found == []
