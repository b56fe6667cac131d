"""Every block of TOML on a page is what its reader takes: a configuration, a part of one, a contract, a search."""

from __future__ import annotations

import re
import tomllib
from pathlib import Path
from typing import Any

import pydantic
import pytest

from pages import ROOT, fences
from rondo import config
from rondo.errors import ConfigError
from rondo.federation.site.contract.document import Contract
from rondo.study.tune.tuning import Tuning

PAGES = [
    "README.md",
    "CONTRIBUTING.md",
    "examples/README.md",
    *sorted(str(p.relative_to(ROOT)) for p in ROOT.glob("docs/**/*.md") if "dev" not in p.parts),
]
BLOCKS = [(page, number, f.text) for page in PAGES for number, f in enumerate(fences(page)) if f.language == "toml"]
AROUND: dict[str, Any] = {
    "task": {"text": "text", "label": "label"},
    "data": {"source": "rows.csv"},
    "partition": {"kind": "iid", "clients": 200},
}
"""The rest of a run, for blocks that are a part of one."""
CHATS = {**AROUND, "task": {"kind": "causal-lm", "messages": "messages"}}


def faults(text: str) -> list[str]:
    """The faults of a block by its reader. Files and packages that this machine lacks are none."""
    raw = tomllib.loads(text)
    if "tuning" in raw:
        return _refused(lambda: Tuning.model_validate(raw["tuning"]))
    whole = "rounds" in raw
    generates = "generate" in raw.get("evaluation", {}) and "task" not in raw
    around = {} if whole else CHATS if generates else AROUND
    try:
        config.load(laid_over(around, raw), check_paths=False)
    except ConfigError as error:
        return [str(p) for p in error.problems if "is not installed" not in p.message]
    return []


def laid_over(around: dict[str, Any], part: dict[str, Any]) -> dict[str, Any]:
    """A configuration with a part laid over it. A table that names its kind, or other data, stands alone."""
    alone = {"kind", "source", "clients_from"}
    tables = {name: {**around[name], **part[name]} for name in around.keys() & part if not alone & part[name].keys()}
    return {**around, **part, **tables}


def _refused(read: Any) -> list[str]:
    try:
        read()
    except pydantic.ValidationError as error:
        return [str(e["loc"]) for e in error.errors()]
    return []


def is_contract(text: str) -> bool:
    return "require" in tomllib.loads(text).get("privacy", {})


@pytest.mark.parametrize(("page", "number", "text"), [b for b in BLOCKS if not is_contract(b[2])])
def test_block_is_taken_by_its_reader(page: str, number: int, text: str) -> None:
    assert faults(text) == []


def test_contracts_are_taken_by_the_site(tmp_path: Path) -> None:
    """In place of the tables that ``rondo federate site init`` writes beside them."""
    contracts = [text for _, _, text in BLOCKS if is_contract(text)]
    assert contracts != []
    for text in contracts:
        path = tmp_path / "site.toml"
        path.write_text('[rows]\ninputs = ["text"]\n' + text, encoding="utf-8")
        Contract.read(path)


# Keys and values in sentences and tables: `[data] separator = ";"`, `[admission] max_norm`.
IN_WORDS = re.compile(r"`\[(?P<table>[a-z]+)\] (?P<line>[a-z_]+(?: = [^`]+)?)`")


@pytest.mark.parametrize("page", PAGES)
def test_keys_in_sentences_are_known(page: str) -> None:
    text = re.sub(r"^```.*?^```$", "", (ROOT / page).read_text(encoding="utf-8"), flags=re.M | re.S)
    unknown = []
    for found in IN_WORDS.finditer(text):
        key, _, value = found["line"].partition(" = ")
        section = config.RunConfig.model_fields.get(found["table"])
        if section is None:
            unknown.append(found[0])
            continue
        raw = tomllib.loads(f"[{found['table']}]\n{key} = {value or 0}")
        try:
            config.load(laid_over(CHATS, raw), check_paths=False)
        except ConfigError as error:
            unknown += [str(p) for p in error.problems if "unknown key" in p.message]
    assert unknown == []


def test_a_wrong_block_is_seen() -> None:
    assert faults("[train]\nlr = 0.1\n") == []
    assert faults("[train]\nlearning_rate = 0.1\n") != []
    assert faults("rounds = 3\n[task]\nkind = 'chat'\n") != []
    assert faults("[tuning]\ngrid = {}\nseeds = []\n") != []
