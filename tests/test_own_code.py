"""A user's own code: where it is looked for, what runs when, and its digest."""

from __future__ import annotations

import hashlib
import random
import sys
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from rondo import own_code
from rondo.algorithms.factors.fedit import FedIT


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The working folder, which is not on the path, as for a console script."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", [p for p in sys.path if p not in ("", ".", str(tmp_path))])
    return tmp_path


def test_working_folder_is_last_on_the_path(folder: Path) -> None:
    """It stays there for modules that the code imports later."""
    (folder / "own_last.py").write_text("import sys\nPATH = list(sys.path)\ndef later(): import own_later\n")
    (folder / "own_later.py").write_text("")
    before = list(sys.path)
    assert own_code.load("rondo.algorithms.factors.fedit:FedIT") is FedIT
    assert sys.path == before
    assert own_code.load("own_last:PATH") == [*before, str(folder)]
    own_code.load("own_last:later")()
    assert sys.path == [*before, str(folder)]


def test_file_in_the_working_folder_hides_no_library(folder: Path) -> None:
    (folder / "random.py").write_text("raise SystemExit('run')\n")
    (folder / "colorsys.py").write_text("raise SystemExit('run')\n")
    assert own_code.load("random:Random") is random.Random
    sys.modules.pop("colorsys", None)
    assert callable(own_code.load("colorsys:rgb_to_hsv"))


def test_place_is_found_without_import(folder: Path) -> None:
    (folder / "own_package").mkdir()
    for name in ("__init__", "inner"):
        (folder / "own_package" / f"{name}.py").write_text("raise SystemExit('run')\n")
    assert own_code.place("own_package.inner:Class") == str(folder / "own_package")
    assert own_code.place("own_nowhere:Class") == "found nowhere"
    assert own_code.place(":Class") == "found nowhere"
    assert "own_package" not in sys.modules


def test_sources_are_those_of_the_class_and_its_bases(folder: Path) -> None:
    (folder / "own_base.py").write_text("class Base: pass\n")
    (folder / "own_class.py").write_text("import own_base\nclass Own(own_base.Base): pass\ndef make(): pass\n")
    cls: Any = own_code.load("own_class:Own")
    digests = {f.stem: hashlib.sha256(f.read_bytes()).hexdigest() for f in folder.glob("*.py")}
    assert own_code.sources(cls) == own_code.sources(cls()) == digests
    assert own_code.sources(own_code.load("own_class:make")) == {"own_class": digests["own_class"]}
    assert own_code.sources(FedIT) == {}


def test_module_without_file_has_no_digest(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "own_typed", ModuleType("own_typed"))
    assert own_code.sources(type("Typed", (), {"__module__": "own_typed"})) == {"own_typed": None}


@pytest.mark.parametrize(
    ("text", "is_own"),
    [
        ("package.module:Name", True),
        ("module:Name", True),
        ("_m1:_N1", True),
        ("builtin:minilm", False),
        ("builtin2:Name", True),
        ("module", False),
        ("module:", False),
        (":Name", False),
        ("module:Name.inner", False),
        ("owner/model", False),
        ("1module:Name", False),
        ("module:Name ", False),
    ],
)
def test_name_of_own_code(text: str, is_own: bool) -> None:
    assert own_code.is_name(text) == is_own


def test_reason_says_where_modules_are_looked_for() -> None:
    """Where a module is missing, and only there."""
    missing = own_code.reason(ModuleNotFoundError("No module named 'x'"))
    assert missing.startswith("ModuleNotFoundError: No module named 'x' (modules are looked for in the folder you")
    assert own_code.reason(ValueError("no")) == "ValueError: no"


def test_place_of_a_module_is_its_file_and_leaves_the_path(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (folder / "own_single.py").write_text("raise SystemExit('run')\n")
    for path in (list(sys.path), [*sys.path, ""], [str(folder), *sys.path]):
        monkeypatch.setattr(sys, "path", list(path))
        assert own_code.place("own_single:Class") == str(folder / "own_single.py")
        assert sys.path == path
