"""A look at the machine: what is found if things are in order, and if they are not."""

from __future__ import annotations

import importlib.metadata
import os
import re
import shutil
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
import torch
from huggingface_hub import constants

from rondo.doctor import Finding, hub, look, machine, packages

Invoke = Callable[..., tuple[int, str]]
CORES = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def marks(found: Iterator[Finding]) -> dict[str, tuple[str, str]]:
    return {finding.name: (finding.mark, f"{finding.text}: {finding.remedy}".rstrip(": ")) for finding in found}


def test_here_nothing_is_at_fault(invoke: Invoke) -> None:
    code, output = invoke("doctor")
    assert code == 0, output
    assert [finding.text for finding in look() if "could not be looked at" in finding.text] == []
    assert {line.split()[0] for line in output.splitlines()[1:-1]} <= {"ok", "note"}
    assert re.search(r"^ok +torch +\d", output, re.M)
    assert output.splitlines()[-1].startswith("0 faults, ")


def system(folder: Path, **content: str) -> Path:
    """A system in ``folder`` with 16 GiB of memory, half of it free, and these limits of a container."""
    for name, text in content.items():
        write(folder / "sys/fs/cgroup" / name.replace("_", "."), text)
    write(folder / "proc/meminfo", "MemTotal: 16777216 kB\nMemAvailable: 8388608 kB\n")
    return folder


def write(file: Path, text: str) -> None:
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_text(text)


def test_page_has_no_path_and_no_name(invoke: Invoke, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """If things are at fault, too."""
    home = tmp_path / "secret-home"
    (home / "cache" / "models--secret-org--secret-model").mkdir(parents=True)
    monkeypatch.setenv("HOME", str(home))
    monkeypatch.setattr(constants, "HF_HUB_CACHE", str(home / "cache"))
    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", False)
    monkeypatch.setattr(constants, "ENDPOINT", "http://secret-host.invalid")
    monkeypatch.setattr(socket, "gethostname", lambda: "secret-machine")
    monkeypatch.setattr(os, "access", lambda *_: False)
    monkeypatch.setattr(torch.backends.cpu, "get_cpu_capability", lambda: open("/secret/file"))  # noqa: SIM115
    code, output = invoke("doctor")
    assert code == 1
    faults = [line.split(maxsplit=2)[1:] for line in output.splitlines() if line.startswith("fault")]
    assert faults == [["accelerator", "could not be looked at (FileNotFoundError)"]]
    assert "the hub that HF_ENDPOINT names does not answer (" in output
    assert re.search(r"1 fault, [34] notes", output)  # the fourth is of a machine with little memory
    for word in ("secret", str(Path.cwd()), str(tmp_path), os.uname().nodename, sys.prefix):
        assert word not in output


def test_package_that_a_check_lacks_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "packaging.requirements", None)
    monkeypatch.delitem(sys.modules, "rondo.doctor.packages")
    found = marks(look())
    assert found["required"] == ("fault", "could not be looked at (ModuleNotFoundError): pip install packaging")


@pytest.mark.slow
def test_look_writes_nothing(tmp_path: Path) -> None:
    environment = {**os.environ, "HOME": str(tmp_path)}
    command = [sys.executable, "-c", "from rondo.cli import main; main()", "doctor"]
    subprocess.run(command, env=environment, cwd=tmp_path, capture_output=True, check=True, timeout=120)
    assert [*tmp_path.iterdir()] == []


@pytest.fixture
def installed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[..., None]:
    """Put packages before the installed ones: their names with versions and requirements."""
    monkeypatch.syspath_prepend(tmp_path)

    def put(name: str, version: str, *requires: str) -> None:
        folder = tmp_path / f"{name.replace('-', '_')}-{version}.dist-info"
        folder.mkdir()
        lines = [f"Name: {name}", f"Version: {version}", *(f"Requires-Dist: {r}" for r in requires)]
        (folder / "METADATA").write_text("\n".join(["Metadata-Version: 2.1", *lines, ""]))

    return put


def test_package_that_is_too_old_or_too_new(installed: Callable[..., None]) -> None:
    installed("peft", "0.17.0")
    installed("flwr", "1.50.0")
    assert marks(packages.required())["peft"] == ("fault", "0.17.0; allowed: >=0.18: pip install 'peft>=0.18'")
    mark, text = marks(packages.extras())["extra federation"]
    assert mark == "fault"
    assert text.startswith("flwr 1.50.0; allowed: ")


def test_package_that_is_missing(installed: Callable[..., None]) -> None:
    installed("rondo-fl", "0.1.0", "nowhere>=2", "elsewhere>=3; extra == 'more'")
    assert marks(packages.required())["nowhere"] == ("fault", "not installed: pip install 'nowhere>=2'")
    assert packages.asked("rondo-fl", "more")[0].name == "elsewhere"


def test_requirements_of_packages_of_one_another(installed: Callable[..., None]) -> None:
    installed("rondo-fl", "0.1.0", "peft")
    installed("peft", "1.0", "nowhere>=1", "torch>=1; extra == 'x'", "A.b-c>2")
    installed("a-b-c", "1.0", "gone")
    assert marks(packages.required())["requirements"] == (
        "fault",
        "peft needs A.b-c>2, and 1.0 is installed; peft needs nowhere, which is not installed",
    )


def test_requirements_are_those_of_the_metadata() -> None:
    named = {r.name for r in packages.asked("rondo-fl")}
    assert {"torch", "peft", "typer"} <= named
    assert "ray" not in named
    assert [r.name for r in packages.asked("rondo-fl", "ray")] == ["ray"]
    assert importlib.metadata.version("peft") in marks(packages.required())["peft"][1]


def test_python_that_was_not_tested() -> None:
    found = marks(packages.python((3, 10, 0), "darwin"))
    assert found["python"][0] == "note"
    assert found["system"] == ("note", "Rondo is tested on Linux alone")


@pytest.mark.parametrize(
    ("limits", "cores"),
    [
        ({"cpu_max": "50000 100000"}, 0.5),
        ({"cpu_max": "max 100000"}, CORES),
        ({"cpu_max": "900000000 100000\n"}, CORES),
        ({}, CORES),
    ],
)
def test_cores_are_those_of_the_container(tmp_path: Path, limits: dict[str, str], cores: float) -> None:
    assert machine.cores(system(tmp_path, **limits)) == cores


@pytest.mark.parametrize(
    ("limits", "mark", "text"),
    [
        ({"memory_max": "1048576", "memory_current": "1000000"}, "fault", "0.0 GiB free of 0.0 GiB"),
        ({"memory_max": str(4 << 30), "memory_current": str(3 << 30)}, "note", "1.0 GiB free of 4.0 GiB"),
        ({"memory_max": "max", "memory_current": "1000000"}, "ok", "8.0 GiB free of 16.0 GiB"),
        ({}, "ok", "8.0 GiB free of 16.0 GiB"),
    ],
)
def test_memory_is_that_of_the_container(tmp_path: Path, limits: dict[str, str], mark: str, text: str) -> None:
    assert marks(machine.memory(system(tmp_path, **limits)))["memory"] == (mark, text)


def test_system_that_tells_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delattr(os, "sched_getaffinity", raising=False)
    assert machine.cores(tmp_path) == os.cpu_count()
    assert marks(machine.memory(tmp_path)) == {"memory": ("ok", "this system does not tell")}


@pytest.mark.parametrize(
    ("threads", "share", "mark"),
    [(CORES, "max", "ok"), (1, "max", "ok"), (4, "150000", "note"), (CORES + 1, "max", "note"), (1, "50000", "ok")],
)
def test_more_threads_than_cores(tmp_path: Path, threads: int, share: str, mark: str) -> None:
    torch.set_num_threads(threads)
    found, text = marks(machine.threads(system(tmp_path, cpu_max=f"{share} 100000")))["threads"]
    assert found == mark
    assert ("set OMP_NUM_THREADS=" in text) == (mark == "note")
    assert share != "150000" or "set OMP_NUM_THREADS=1: " in text


def test_disk(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(constants, "HF_HUB_CACHE", str(tmp_path / "not" / "made"))
    usage = shutil.disk_usage(tmp_path)
    for free, mark in ((10 << 30, "ok"), (1 << 30, "note"), (1 << 20, "fault")):
        monkeypatch.setattr(shutil, "disk_usage", lambda _, free=free: usage._replace(free=free))
        found = marks(machine.disk())
        assert {name: m for name, (m, _) in found.items()} == {"working folder": mark, "model cache": mark}
    assert not (tmp_path / "not").exists()


def test_silent_hub_is_waited_for_briefly(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", False)
    with socket.create_server(("127.0.0.1", 0)) as silent:
        monkeypatch.setattr(constants, "ENDPOINT", f"http://127.0.0.1:{silent.getsockname()[1]}")
        began = time.monotonic()
        (finding,) = hub.hub()
    assert finding.mark == "note"
    assert "set HF_HUB_OFFLINE=1" in finding.remedy
    assert 1 <= time.monotonic() - began < 15


def test_hub_that_is_not_asked() -> None:
    (finding,) = hub.hub()
    assert finding.text == "HF_HUB_OFFLINE is set, so it is not asked"
