"""The systemd units of a server and of a site."""

from __future__ import annotations

import re
import shlex
import shutil
import subprocess
from collections.abc import Callable
from configparser import RawConfigParser
from pathlib import Path

import pytest

FOLDER = Path(__file__).parents[1] / "deploy"
UNITS = sorted(FOLDER.glob("*.service"))
RONDO = "/opt/rondo/bin/rondo"

Invoke = Callable[..., tuple[int, str]]


def unit(path: Path) -> RawConfigParser:
    parser = RawConfigParser(strict=False)
    parser.optionxform = str  # type: ignore[assignment, method-assign]
    parser.read(path, encoding="utf-8")
    return parser


def commands(path: Path) -> list[list[str]]:
    """Every command line of ``rondo`` in a unit."""
    start = unit(path)["Service"]["ExecStart"]
    return [shlex.split(line) for line in re.findall(rf"{RONDO} ([^;']+)", start)]


def test_there_is_a_unit_for_each_party() -> None:
    assert [path.name for path in UNITS] == ["rondo-server.service", "rondo-site.service"]
    assert [len(commands(path)) for path in UNITS] == [2, 1]


@pytest.mark.parametrize("path", UNITS, ids=lambda path: path.stem)
def test_commands_have_options_that_there_are(path: Path, invoke: Invoke) -> None:
    """``--help`` is printed only where every option before it is known."""
    for command in commands(path):
        code, output = invoke(*command, "--help")
        assert code == 0, output


@pytest.mark.parametrize("path", UNITS, ids=lambda path: path.stem)
def test_units_are_hardened(path: Path) -> None:
    service = unit(path)["Service"]
    assert service["User"] == "rondo"
    assert service["ProtectSystem"] == "strict"
    assert service["CapabilityBoundingSet"] == ""
    assert service["RestrictAddressFamilies"] == "AF_INET AF_INET6 AF_UNIX"
    switches = ("NoNewPrivileges", "PrivateTmp", "ProtectHome", "RestrictNamespaces")
    assert {key: service[key] for key in switches} == dict.fromkeys(switches, "yes")
    assert "MemoryMax" in service
    assert service["Restart"] == "on-failure"


@pytest.mark.skipif(shutil.which("systemd-analyze") is None, reason="the units were not verified: no systemd-analyze")
@pytest.mark.parametrize("path", UNITS, ids=lambda path: path.stem)
def test_units_are_valid(path: Path, tmp_path: Path) -> None:
    """Of a program that is there: systemd-analyze looks for it."""
    copy = tmp_path / path.name
    copy.write_text(path.read_text(encoding="utf-8").replace(RONDO, "/bin/true"), encoding="utf-8")
    verified = subprocess.run(["systemd-analyze", "verify", "--man=no", str(copy)], capture_output=True, text=True)
    assert (verified.returncode, verified.stderr + verified.stdout) == (0, "")
    copy.write_text(copy.read_text(encoding="utf-8").replace("NoNewPrivileges=yes", "NoNewPrivilege=yes"))
    verified = subprocess.run(["systemd-analyze", "verify", "--man=no", str(copy)], capture_output=True, text=True)
    assert "NoNewPrivilege" in verified.stderr, "a key that there is not would be seen"
