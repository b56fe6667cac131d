"""The image and the compose file of a federation, as far as they can be checked without a builder."""

from __future__ import annotations

import re
import shlex
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

yaml = pytest.importorskip("yaml")

ROOT = Path(__file__).parents[1]
DOCKERFILE = (ROOT / "docker" / "Dockerfile").read_text(encoding="utf-8")
SERVICES: dict[str, Any] = yaml.safe_load((ROOT / "docker" / "compose.yaml").read_text(encoding="utf-8"))["services"]

Invoke = Callable[..., tuple[int, str]]


def commands() -> list[list[str]]:
    """Every command line of ``rondo`` in the compose file."""
    lines = [["rondo", *s["command"]] for s in SERVICES.values() if "entrypoint" not in s]
    (script,) = (s["command"][0] for s in SERVICES.values() if "entrypoint" in s)
    return [*lines, *(shlex.split(line) for line in re.findall(r"exec (.+)", script))]


def test_compose_file_has_a_server_and_three_sites() -> None:
    assert SERVICES.keys() == {"server", "north", "middle", "south"}
    assert [name for name, service in SERVICES.items() if "ports" in service] == ["server"]


@pytest.mark.parametrize("command", commands(), ids=" ".join)
def test_commands_have_options_that_there_are(command: list[str], invoke: Invoke) -> None:
    """``--help`` is printed only where every option before it is known."""
    code, output = invoke(*command[1:], "--help")
    assert code == 0, output


def test_image_runs_without_root() -> None:
    assert re.findall(r"^USER (.+)$", DOCKERFILE, re.M) == ["10001"]
    assert {n: (s["read_only"], s["cap_drop"]) for n, s in SERVICES.items()} == dict.fromkeys(SERVICES, (True, ["ALL"]))


def test_image_is_built_of_the_source_alone() -> None:
    """Files that the build can see, and so can copy: no keys, rows or runs in the checkout."""
    copied = re.findall(r"^COPY (?!--from)(.+) \S+$", DOCKERFILE, re.M)
    ignored = (ROOT / "docker" / "Dockerfile.dockerignore").read_text(encoding="utf-8").splitlines()
    seen = {line[1:] for line in ignored if line.startswith("!")}
    assert {path for line in copied for path in line.split()} == seen
    assert "*" in ignored
    assert [path for path in seen if not (ROOT / path).exists()] == []


def test_image_has_the_tested_torch() -> None:
    (pin,) = re.findall(r"torch==\S+", DOCKERFILE)
    assert pin in (ROOT / "constraints.txt").read_text(encoding="utf-8").splitlines()
