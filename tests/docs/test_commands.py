"""Every block of commands on a page is run by a test, or has a mark with the reason why none runs it."""

from __future__ import annotations

import csv
import importlib
import re
import shlex
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
import tomli_w

import rondo
from pages import ROOT, Fence, fences
from rondo.study.claims import entry as entries
from small_runs import reviews, settings

PAGES = [
    "README.md",
    "CONTRIBUTING.md",
    "examples/README.md",
    *sorted(str(p.relative_to(ROOT)) for p in ROOT.glob("docs/**/*.md") if "dev" not in p.parts),
]
ELSEWHERE = {
    "docs/how-to/chats.md": "tests/test_package.py",
    "docs/how-to/preferences.md": "tests/docs/test_preferences_page.py",
    "docs/how-to/several-labels.md": "tests/docs/test_labels_page.py",
    "docs/tutorial.md": "tests/docs/test_tutorial.py",
    "docs/how-to/token-classification.md": "tests/docs/test_token_page.py",
    "docs/how-to/embeddings.md": "tests/docs/test_embedding_page.py",
    "docs/how-to/your-trainer.md": "tests/runs/test_own_trainer.py",
    "docs/how-to/federate-server.md": "tests/federation/test_how_to.py",
    "docs/how-to/federate-site.md": "tests/federation/test_how_to.py",
}
"""Pages whose blocks another test runs."""
HERE = [
    "README.md",
    "docs/compare.md",
    "docs/configuration.md",
    "docs/how-to/report.md",
    "docs/methods.md",
    "docs/reproduce.md",
    "docs/run-directory.md",
    "docs/tune.md",
]
"""Pages whose blocks run below, with a small model and a few rows under the names that the page uses."""

Invoke = Callable[..., tuple[int, str]]


def commands(page: str) -> list[Fence]:
    """The blocks that a reader would run."""
    return [f for f in fences(page) if f.language in ("", "sh", "bash", "text", "python") and not f.title]


def unmarked(page: str) -> list[str]:
    """The blocks of a page without a mark."""
    return [f.text for f in commands(page) if not f.reason]


def test_every_block_is_run_or_marked() -> None:
    left = {page: unmarked(page) for page in PAGES if page not in (*ELSEWHERE, *HERE)}
    assert {page: blocks for page, blocks in left.items() if blocks} == {}


def test_pages_in_the_lists_have_blocks() -> None:
    assert [page for page in (*ELSEWHERE, *HERE) if not unmarked(page)] == []
    assert [name for name in ELSEWHERE.values() if not (ROOT / name).is_file()] == []


@pytest.mark.parametrize("page", PAGES)
def test_reasons_name_what_is_there(page: str) -> None:
    """A mark stands above a block, and a test that it names exists."""
    text = (ROOT / page).read_text(encoding="utf-8")
    reasons = [fence.reason for fence in fences(page) if fence.reason]
    assert len(re.findall(r"^<!-- not run:", text, re.M)) == len(reasons)
    named = [name for reason in reasons for name in re.findall(r"\btests/[\w./]*\w", reason)]
    assert [name for name in named if not (ROOT / name).exists()] == []
    targets = [name for reason in reasons for name in re.findall(r"\bmake ([\w-]+)", reason)]
    assert [t for t in targets if f"\n{t}:" not in (ROOT / "Makefile").read_text(encoding="utf-8")] == []


ENTRY = re.compile(r"(?<![\w/-])(?:rolora|florg|fedrep|fedloru)-(?:figure|table|theorem|lemma|proposition)[\w-]*")


@pytest.mark.parametrize("page", ["README.md", *sorted(str(p.relative_to(ROOT)) for p in ROOT.glob("docs/**/*.md"))])
def test_entries_that_a_page_names_are_there(page: str) -> None:
    text = (ROOT / page).read_text(encoding="utf-8")
    named = {*ENTRY.findall(text), *re.findall(r"rondo reproduce ([a-z][\w-]*)(?![\w.-])", text)}
    assert named - {*entries.names(), "list", "all"} == set()


@pytest.fixture
def folder(invoke: Invoke, bert: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The working folder of a reader: config.toml, its rows, and files under the names that pages use."""
    here = Path.cwd()
    for name, seed in (("train.csv", 0), ("test.csv", 1), ("other.csv", 2), ("new.csv", 3)):
        rows = [{"text": r["text"], "sentence": r["text"], "label": r["label"]} for r in reviews(24, seed)]
        with (here / name).open("w", newline="", encoding="utf-8") as file:
            writer = csv.DictWriter(file, rows[0])
            writer.writeheader()
            writer.writerows(rows)
    config = settings(
        bert,
        data={"source": "train.csv", "test_source": "test.csv"},
        partition={"kind": "dirichlet", "alpha": 1.0},
        train={"local_epochs": 1},
    )
    config["methods"] = {"fedit": {}, "fedloru": {}}
    (here / "config.toml").write_text(tomli_w.dumps(config), encoding="utf-8")
    (here / "prox.py").write_text(next(f.text for f in fences("docs/methods.md") if "class FedProx" in f.text))
    monkeypatch.syspath_prepend(str(here))
    monkeypatch.delitem(sys.modules, "prox", raising=False)
    importlib.invalidate_caches()
    return here


def lines(block: str) -> list[list[str]]:
    """The commands of a block, without comments and with a file in place of its name for any."""
    text = block.replace("\\\n", " ").replace("FILE", "config.toml")
    return [words for line in text.splitlines() if (words := shlex.split(line, comments=True))]


@pytest.mark.slow
@pytest.mark.parametrize("page", HERE)
def test_blocks_of_a_page(page: str, folder: Path, invoke: Invoke) -> None:
    """Each in its own run directory and folders, as a page's blocks are alternatives."""
    for number, fence in enumerate(commands(page)):
        if fence.reason:
            continue
        for name in ("runs", "my-adapter"):  # of the block before
            if (folder / name).exists():
                (folder / name).rename(folder / f"{name}-{number}")
        if "runs/first" in fence.text and "run-dir" not in fence.text and "run_dir" not in fence.text:
            rondo.run("config.toml", run_dir="runs/first")
        if fence.language == "python":
            exec(compile(fence.text, page, "exec", dont_inherit=True), {"__name__": "__main__"})
            continue
        for program, *arguments in lines(fence.text):
            assert program == "rondo", "a command that no test runs: mark the block"
            code, output = invoke(*_elsewhere(folder, arguments))
            assert code == 0, f"rondo {shlex.join(arguments)}\n{output}"


def _elsewhere(folder: Path, arguments: list[str]) -> list[str]:
    """The arguments with a fresh target where a line before has filled it: a reader takes one line of such a block."""
    if "--to" in arguments:
        target = folder / arguments[arguments.index("--to") + 1]
        if target.is_dir():
            target.rename(target.with_name(f"{target.name}-{len(list(folder.iterdir()))}"))
    return arguments
