"""README and the pages under docs agree with the code: the algorithm, the configuration, tables, commands and links."""

from __future__ import annotations

import importlib.util
import json
import re
import shlex
import tomllib
from collections import Counter
from collections.abc import Sequence
from functools import cache
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
from typer.main import get_command

from pages import fences
from rondo import algorithms, config
from rondo.algorithms.table import RULES
from rondo.algorithms.wrappers.robust import MEANS
from rondo.cli.app import app
from rondo.params import everything
from rondo.testing import check_algorithm

ROOT = Path(__file__).parents[1]
README = (ROOT / "README.md").read_text(encoding="utf-8")
METHODS = (ROOT / "docs" / "methods.md").read_text(encoding="utf-8")


def block(language: str, containing: str) -> str:
    """The only block in ``language`` of README and the page of methods that contains these words."""
    blocks = [b for b in re.findall(rf"```{language}\n(.*?)```", README + METHODS, re.S) if containing in b]
    assert len(blocks) == 1
    return str(blocks[0])


def section(page: str, title: str) -> str:
    """The text under the heading ``title``, up to the next one of the same level."""
    (text,) = re.findall(rf"^## {re.escape(title)}\n(.*?)(?=^## |\Z)", page, re.M | re.S)
    return str(text)


def names_in(text: str) -> set[str]:
    return set(re.findall(r"`([a-z0-9-]+)`", text)) & set(algorithms.names())


@pytest.fixture
def prox(tmp_path: Path) -> ModuleType:
    path = tmp_path / "prox.py"
    path.write_text(block("python", "class FedProx"))
    spec = importlib.util.spec_from_file_location("prox", path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.mark.slow
def test_fedprox_passes_the_laws(prox: ModuleType) -> None:
    assert [r for r in check_algorithm(prox.FedProx(), seeds=(0,)) if r.outcome == "failed"] == []


def test_readme_configuration_lacks_only_its_files() -> None:
    raw = tomllib.loads(block("toml", "algorithm.name"))
    with pytest.raises(config.ConfigError) as caught:
        config.load(raw)
    assert {p.path for p in caught.value.problems} == {"data.source", "data.test_source"}


def test_methods_with_rank_budgets() -> None:
    listed = names_in(section(METHODS, "Clients with different rank budgets"))
    assert listed == {n for n in algorithms.names() if algorithms.entry(n).traits.client_ranks}


def test_methods_with_server_optimizers() -> None:
    methods = {name: algorithms.get(name) for name in algorithms.names()}
    stepped = {n: m for n, m in methods.items() if m.linear and m.traits.server in ("mean", "restart")}
    accepted = {n for n, m in stepped.items() if m.traits.keeps != everything}
    assert names_in(section(METHODS, "Server optimizers")) == accepted


def test_robust_rules() -> None:
    rows = re.findall(r'^\| `"(.+?)"` \| .* \| (all|linear) \|$', section(METHODS, "Robust rules"), re.M)
    assert dict(rows) == {rule: "linear" if rule in MEANS else "all" for rule in RULES}


PAGES = [
    "README.md",
    "CONTRIBUTING.md",
    "examples/README.md",
    *sorted(str(p.relative_to(ROOT)) for p in ROOT.glob("docs/**/*.md")),
]
GUIDES = [page for page in PAGES if not page.startswith(("docs/dev/log/", "docs/dev/adr/"))]
"""Pages about Rondo as it is, without those of a day."""
FILES_OF_READERS = {fence.title for page in GUIDES for fence in fences(page)}
"""Files that a page has a reader write."""


def slug(heading: str) -> str:
    """The anchor of a heading."""
    return re.sub(r"[^\w -]", "", heading.lower()).replace(" ", "-")


@pytest.mark.parametrize("page", PAGES)
def test_links_lead_somewhere(page: str) -> None:
    """To a file that is there, and to one of its headings if the link names one."""
    broken = []
    for target, anchor in re.findall(r"\]\((?!https?://)([^)#]*)(?:#([^)]*))?\)", (ROOT / page).read_text("utf-8")):
        path = (ROOT / page).parent / target if target else ROOT / page
        headings = re.findall(r"^#+ (.+)$", path.read_text("utf-8"), re.M) if anchor and path.exists() else []
        if not path.exists() or (anchor and anchor not in map(slug, headings)):
            broken.append(f"{target}#{anchor}")
    assert broken == []


def shell_lines(page: str) -> list[list[str]]:
    """The commands in a page's blocks, as words without comments."""
    blocks = re.findall(r"^```(\w*)[^\n]*\n(.*?)^```$", (ROOT / page).read_text("utf-8"), re.M | re.S)
    text = "\n".join(block for language, block in blocks if language in ("", "text", "sh"))
    lines = text.replace("\\\n", " ").splitlines()
    return [shlex.split(line, comments=True) for line in lines if re.match(r"(rondo|make|pip|python) ", line)]


the_program = cache(lambda: get_command(app))


def fault(words: Sequence[str]) -> str:
    """The fault of a command that a page gives in full; empty if it can be run."""
    program, *arguments = words
    if program == "make":
        targets = re.findall(r"^(\w[\w-]*):", (ROOT / "Makefile").read_text("utf-8"), re.M)
        return "" if {a for a in arguments if "=" not in a} <= {*targets} else "no such target"
    if program == "pip":
        extras = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))["project"]["optional-dependencies"]
        named = {extra for a in arguments for group in re.findall(r"\[(.+)\]", a) for extra in group.split(",")}
        return "" if named <= extras.keys() else "no such extra"
    if program == "python":
        there = arguments[0] in FILES_OF_READERS or (ROOT / arguments[0]).is_file()
        return "" if arguments[0].startswith("-") or there else "no such file"
    command: Any = the_program()
    context = command.make_context("rondo", ["list"])  # any command: only its arguments are looked at below
    try:
        while hasattr(command, "commands"):
            name = arguments.pop(0)
            command = command.commands[name]
        command.make_context(name, arguments, parent=context)
    except (KeyError, IndexError):
        return "no such command"
    except Exception as error:
        return str(error)
    return ""


@pytest.mark.parametrize("page", [page for page in GUIDES if shell_lines(page)])
def test_commands_in_blocks_can_be_run(page: str) -> None:
    """Each names a command, options and arguments that the program takes; make, pip and python know theirs."""
    faults = {" ".join(words): fault(words) for words in shell_lines(page)}
    assert {line: why for line, why in faults.items() if why} == {}


@pytest.mark.parametrize("page", GUIDES)
def test_commands_in_sentences_exist(page: str) -> None:
    """With their options. A sentence may leave out arguments."""
    unknown = []
    text = re.sub(r"^```.*?^```$", "", (ROOT / page).read_text("utf-8"), flags=re.M | re.S)
    for line in re.findall(r"`rondo ([^`]+)`", text):
        command: Any = the_program()
        words = line.replace("[", " ").replace("]", " ").split()
        while words and hasattr(command, "commands") and command is not None:
            command = command.commands.get(words.pop(0).rstrip(","))
        options = {option for p in getattr(command, "params", ()) for option in p.opts}
        if command is None or not {word.split("=")[0] for word in words if word.startswith("--")} <= options:
            unknown.append(line)
    assert unknown == []


@pytest.mark.parametrize("page", GUIDES)
def test_files_that_a_page_names_are_there(page: str) -> None:
    text = (ROOT / page).read_text("utf-8")
    named = re.findall(r"`((?:docs|examples|benchmarks|tests|src|docker|deploy)/[\w./-]*)", text)
    assert [name for name in named if not (ROOT / name).exists()] == []


def test_promises_name_their_tests() -> None:
    named = set(re.findall(r"\btest_\w+(?!\w*\.py)", (ROOT / "docs/dev/promises.md").read_text("utf-8")))
    code = "\n".join(path.read_text("utf-8") for path in ROOT.glob("tests/**/test_*.py"))
    defined = {*re.findall(r"def (test_\w+)", code), *(path.stem for path in ROOT.glob("tests/**/test_*.py"))}
    assert named - defined == set()


@pytest.mark.parametrize("page", ["README.md", "docs/index.md"])
def test_verdicts_are_counted_as_the_pages_have_them(page: str) -> None:
    facts = [json.loads(p.read_text(encoding="utf-8")) for p in (ROOT / "docs" / "results" / "facts").iterdir()]
    of_papers = [claim for fact in facts if fact["paper"] != "No paper" for claim in fact["claims"]]
    verdicts = Counter(claim.get("verdict", "open") for claim in of_papers)
    text = " ".join((ROOT / page).read_text("utf-8").split())
    numbers = (
        r"Of (\d+) claims of the papers, (\d+) are seen here and (\d+) are seen, smaller\. (\d+) are not seen here, "
        r"(\d+) are not tested as stated, (\d+) has a counterexample and (\d+) are open"
    )
    counts = re.search(numbers, text)
    assert counts is not None
    words = ("seen", "seen, smaller", "not seen here", "not tested as stated", "counterexample", "open")
    assert [int(n) for n in counts.groups()] == [verdicts.total(), *(verdicts[word] for word in words)]
