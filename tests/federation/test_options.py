"""Options of the server and of a site that are wrong: told in one message, before anything listens or connects."""

from __future__ import annotations

import contextlib
import errno
import json
import os
import sys
from contextlib import redirect_stderr
from datetime import datetime
from pathlib import Path
from unittest.mock import Mock

import pytest
from typer.testing import CliRunner

from rondo.cli.app import app
from rondo.cli.federate import _host_and_port
from rondo.config import load
from rondo.data.files.room import Room
from rondo.errors import ConfigError, visible
from rondo.federation import needed
from rondo.federation.notify import Log
from rondo.federation.server.remote_run import plan_of
from rondo.federation.site.run import _rows

CONFIG = """
rounds = 1
[algorithm]
name = "fedit"
[task]
text = "text"
label = "label"
labels = ["a", "b"]
"""


@pytest.fixture
def place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder with keys, a configuration, rows and a file that is not a folder."""
    monkeypatch.chdir(tmp_path)
    made = CliRunner().invoke(app, ["federate", "keys", "make", "--server", "127.0.0.1", "--clients", "north"])
    assert made.exit_code == 0, made.stderr
    (tmp_path / "config.toml").write_text(CONFIG)
    (tmp_path / "rows.csv").write_text("text,label\nyes,a\nno,b\n")
    (tmp_path / "site.toml").write_text('[rows]\ninputs = ["text"]\nlabels = ["label"]\n')
    (tmp_path / "open.toml").write_text("[rows]\n")
    (tmp_path / "file").write_text("x")
    return tmp_path


def refused(place: Path, *arguments: str) -> str:
    before = sorted(place.rglob("*"))
    result = CliRunner().invoke(app, ["federate", *arguments])
    assert result.exit_code == 2, result.output
    assert "Traceback" not in result.stderr
    assert "listening" not in result.stderr
    assert "connected" not in result.stderr
    assert sorted(place.rglob("*")) == before
    return " ".join(result.stderr.split())


def test_server_refuses_a_masked_sum_of_one_site(place: Path) -> None:
    section = '[privacy]\nadversary = "server"\nsecure_aggregation = true\nclip = 1.0\n'
    (place / "config.toml").write_text(CONFIG + section)
    message = "privacy.secure_aggregation: a sum of one site is its own part, and the roster has one"
    assert message in refused(place, "server", "config.toml")


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (("--wait", "nan"), "--wait: should be a number of seconds, 0 or more, got nan"),
        (("--wait", "-1"), "--wait: should be a number of seconds, 0 or more, got -1"),
        (("--patience", "inf"), "--patience: should be a number of seconds, 0 or more, got inf"),
        (("--run-dir", "file"), "--run-dir: 'file' cannot be made: File exists"),
        (("--run-dir", "file/run"), "--run-dir: 'file/run' cannot be made: Not a directory"),
        (("--device", "gpu"), "--device: 'gpu' is unknown; use auto, cpu, cuda, cuda:INDEX or mps"),
        (("--listen", "127.0.0.1:99999"), "--listen: '127.0.0.1:99999' is not an address"),
        (("--insecure",), "--insecure: without TLS only the loopback address is served, not 0.0.0.0"),
        (("--keys", "keys/north"), "keys/north/roster.json"),
        (("--keys", "none"), "--keys: 'none' is not a folder"),
    ],
    ids=lambda value: "-".join(value) if isinstance(value, tuple) else "",
)
def test_server_refuses(place: Path, options: tuple[str, ...], message: str) -> None:
    assert message in refused(place, "server", "config.toml", *options)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (("--wait", "nan"), "--wait: should be a number of seconds, 0 or more, got nan"),
        (("--state", "file"), "--state: 'file' cannot be made: File exists"),
        (("--device", "cuda:x"), "--device: 'cuda:x' is unknown"),
        (("--model", "./none"), "--model: no such file or folder: './none'"),
        (("--contract", "none.toml"), "none.toml: no such file; did you mean 'open.toml'?"),
        (("--contract", "open.toml"), "rows.inputs: names no column"),
        (("--contract", "rows.csv"), "rows.csv: not TOML"),
        (("--keys", "keys/server"), "keys/server/site.json"),
        (("--data", "none.csv"), "--data: no such file or folder: 'none.csv'"),
        (("--server", "127.0.0.1:0"), "--server: '127.0.0.1:0' is not an address"),
    ],
    ids=lambda value: "-".join(value) if isinstance(value, tuple) else "",
)
def test_site_refuses(place: Path, options: tuple[str, ...], message: str) -> None:
    given = ("--server", "127.0.0.1:1", "--keys", "keys/north", "--data", "rows.csv", *options)
    assert message in refused(place, "client", *given)


def test_all_faults_of_a_site_are_told_at_once(place: Path) -> None:
    given = ("--server", "127.0.0.1:1", "--keys", "keys/north", "--data", "rows.csv", "--device", "gpu")
    assert "2 problems" in refused(place, "client", *given, "--wait", "-3")


def test_one_file_has_the_rows_of_one_client(place: Path) -> None:
    assert set(_rows(place / "rows.csv", ["north"], "--data", Room())) == {"north"}
    with pytest.raises(ConfigError, match="the keys are for 2 clients: name a folder with a file for each"):
        _rows(place / "rows.csv", ["ann", "bob"], "--data", Room())


def test_program_goes_on_where_its_lines_cannot_be_written() -> None:
    """Its log lies on a full disk, or its terminal is gone."""
    full = Mock(write=Mock(side_effect=OSError(errno.ENOSPC, "No space left on device")))
    with contextlib.redirect_stderr(full):
        Log()("a line")
    full.write.assert_called()


def test_lines_have_their_time_where_no_terminal_shows_them(capsys: pytest.CaptureFixture[str]) -> None:
    for as_json in (False, True):
        Log(as_json)("round 1: \u0441\u0442 \x1b[2J")
    plain, packed = capsys.readouterr().err.splitlines()
    time, _, line = plain.partition(" ")
    assert abs(datetime.fromisoformat(time).timestamp() - datetime.now().timestamp()) < 60
    assert json.loads(packed).keys() == {"time", "message"}
    assert json.loads(packed)["message"] == line == visible("round 1: \u0441\u0442 \x1b[2J")


def test_lines_of_the_journal_stay_as_they_are(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    with (tmp_path / "journal").open("w") as journal:
        there = os.fstat(journal.fileno())
        monkeypatch.setenv("JOURNAL_STREAM", f"{there.st_dev}:{there.st_ino}")
        with redirect_stderr(journal):
            Log()("a line")
    assert (tmp_path / "journal").read_text() == "a line\n"


@pytest.mark.parametrize(
    ("text", "address"),
    [("[::1]:9000", ("::1", 9000)), ("localhost:0", ("localhost", 0)), ("127.0.0.1:65535", ("127.0.0.1", 65535))],
)
def test_address_to_listen_on(text: str, address: tuple[str, int]) -> None:
    assert _host_and_port(text) == address


@pytest.mark.parametrize("package", ["flwr", "cryptography"])
def test_missing_package_of_the_extra_is_named(package: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, package, None)
    with pytest.raises(ConfigError, match=f"needs the package.*{package}"):
        needed("flwr", "cryptography")


def test_sites_are_told_of_no_tracker() -> None:
    """A site's owner never heard of the server's trackers."""
    config = load({"track": {"to": ["wandb"], "project": "secret"}}, check_paths=False)
    plan = plan_of(config, "run", ("a", "b"), "0" * 64)
    assert "track" not in plan.config
    assert "secret" not in str(plan.config)
