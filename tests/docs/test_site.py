"""The site in a browser, served on loopback: no page asks another host or fails, the search finds a key, and axe-core
finds nothing serious."""

from __future__ import annotations

import contextlib
import functools
import http.server
import os
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from browser import Browser, browser, needs_chromium

pytest.importorskip("mkdocs", reason="make docs installs it")

pytestmark = [pytest.mark.slow, needs_chromium]

ROOT = Path(__file__).parents[2]
AXE = os.environ.get("RONDO_AXE", "")
"""A copy of axe.min.js (npm, axe-core 4.14.1), which judges whether everybody can use a page."""
SOME = ["index", "tutorial", "configuration", "reference/algorithm", "explanation/contract", "results/index"]


class Quiet(http.server.SimpleHTTPRequestHandler):
    def log_message(self, format: str, *args: object) -> None:
        """Say nothing."""


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """The address of the built site."""
    folder = tmp_path_factory.mktemp("site")
    command = [sys.executable, "-m", "mkdocs", "build", "--strict", "--site-dir", str(folder)]
    environment = {**os.environ, "NO_MKDOCS_2_WARNING": "1"}
    done = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True, timeout=280)
    assert done.returncode == 0, done.stdout + done.stderr
    handler = functools.partial(Quiet, directory=str(folder))
    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), handler) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        yield f"http://127.0.0.1:{server.server_port}"
        server.shutdown()


@contextlib.contextmanager
def visitor() -> Iterator[Browser]:
    """A browser whose every visit is the first one: the theme would keep the scheme of the visit before."""
    with browser() as page:
        page.call("Page.addScriptToEvaluateOnNewDocument", source="localStorage.clear()")
        yield page


def opened(page: Browser, address: str, *, width: int, dark: bool) -> None:
    """Open a page in its scheme: again, if the browser was late to tell the page which one the visitor prefers."""
    scheme, end = "slate" if dark else "default", time.monotonic() + 60
    page.open(address, width=width, dark=dark, offline=False)
    while page.value("document.body.dataset.mdColorScheme") != scheme:
        assert time.monotonic() < end, f"{address} is not {scheme}"
        page.open(address, width=width, dark=dark, offline=False)


def test_pages_ask_no_other_host(site: str) -> None:
    asked: set[str] = set()
    fits = "document.documentElement.scrollWidth <= innerWidth"
    with visitor() as page:
        for name in SOME:
            for width, dark in ((1400, False), (400, True)):
                opened(page, f"{site}/{name}.html", width=width, dark=dark)
                assert page.messages == [], name
                assert page.value(fits), (name, width)
                asked |= set(page.value("performance.getEntriesByType('resource').map(e => e.name)"))
    assert [address for address in asked if not address.startswith((site, "data:", "blob:"))] == []


@pytest.mark.skipif(not AXE, reason="RONDO_AXE names no axe.min.js")
@pytest.mark.parametrize("dark", [False, True], ids=["light", "dark"])
@pytest.mark.parametrize("width", [400, 1400])
def test_axe_finds_nothing_serious(site: str, width: int, dark: bool) -> None:
    found = "v.impact, v.nodes.map((node) => node.html.slice(0, 200)).slice(0, 3)"
    serious = "result.violations.filter((v) => ['serious', 'critical'].includes(v.impact))"
    with visitor() as page:
        for name in SOME:
            opened(page, f"{site}/{name}.html", width=width, dark=dark)
            page.value(Path(AXE).read_text(encoding="utf-8"))
            assert page.value(f"axe.run().then((result) => {serious}.map((v) => [v.id, {found}]))") == [], name


def test_search_finds_a_key(site: str) -> None:
    with browser() as page:
        page.open(f"{site}/index.html", offline=False)
        page.value("document.querySelector('[data-md-component=search-query]').focus()")
        page.call("Input.insertText", text="over_select")
        found = "[...document.querySelectorAll('.md-search-result__link')].map(a => a.getAttribute('href'))"
        end = time.monotonic() + 60
        while not (links := page.value(found)):
            assert time.monotonic() < end, page.messages
            time.sleep(0.2)
    assert [link for link in links if "configuration.html" in link] != []
