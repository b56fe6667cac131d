"""What a monitor learns of a server and of a site, and what their owners are told of keys that end."""

from __future__ import annotations

import json
import socket
import urllib.request
from dataclasses import asdict
from datetime import UTC, date, datetime, timedelta
from pathlib import Path
from typing import Any
from urllib.error import HTTPError

import pytest

from small_runs import Watch

pytest.importorskip("prometheus_client")

from parties import OPEN, SITES, Parties
from test_federation import config

from made_up_runs import PRIVATE
from records import line, summary
from rondo.config.schema import RunConfig
from rondo.errors import ConfigError, PlanRefused
from rondo.federation.identity import keys
from rondo.federation.monitor import Health, days_left, ending, monitored
from rondo.federation.notify import notify
from rondo.federation.server.standing import FILE, Standing
from rondo.federation.server.status import Gauges, status
from rondo.records.directory import RunDirectory


def free() -> str:
    with socket.create_server(("127.0.0.1", 0)) as listening:
        return f"127.0.0.1:{listening.getsockname()[1]}"


def asked(address: str, path: str) -> tuple[int, str]:
    try:
        with urllib.request.urlopen(f"http://{address}/{path}", timeout=10) as answer:
            return answer.status, answer.read().decode()
    except HTTPError as error:
        return error.code, error.read().decode()


def numbers(text: str) -> dict[str, float]:
    """The samples of a page of metrics."""
    lines = (line.split() for line in text.splitlines() if not line.startswith("#"))
    return {name: float(value) for name, value in lines}


def test_server_tells_its_monitor_of_the_run(folder: Path, tmp_path: Path) -> None:
    address, seen = free(), dict[str, Any]()

    def look(done: int) -> None:
        if done == 2:
            seen["healthz"], seen["metrics"] = asked(address, "healthz"), asked(address, "metrics")

    result = Parties(folder).run(config(folder, rounds=2), tmp_path / "run", observer=Watch(done=look), monitor=address)
    code, text = seen["healthz"]
    told = json.loads(text)
    up = sum(record["bytes_up"] for record in result.history)
    assert (code, told["healthy"], told["round"], told["rounds"], told["bytes_up"]) == (200, True, 2, 2, up)
    of_prometheus = numbers(seen["metrics"][1])
    assert {name.removeprefix("rondo_"): value for name, value in of_prometheus.items()} == {
        name: value for name, value in told.items() if name != "fault"
    }
    assert (told["sites"], told["sites_taking_part"], told["refused_uploads"]) == (2, 2, 0)
    assert told["days_to_first_expiry"] in (9, 10)


@pytest.mark.usefixtures("refusals_at_once")
def test_site_tells_its_monitor_what_left_and_what_it_refuses(folder: Path, tmp_path: Path) -> None:
    """A site that refuses a plan and stays is not healthy; one that does not stay has gone, with the reason."""
    address, seen, parties = free(), dict[str, Any](), Parties(folder)
    starting = parties.start
    picky = OPEN.model_copy(update={"training": OPEN.training.model_copy(update={"methods": ["rolora"]})})

    def start(site: str) -> None:
        options = {"contract": picky, "stay": True} if site == "north" else {}
        starting(site, monitor=address, **options) if site == "north" else starting(site)

    def look(done: int) -> None:
        seen["healthz"] = asked(address, "healthz")
        parties.stop("north")

    parties.start = start  # type: ignore[method-assign]
    run = config(folder, rounds=1, clients={"min_clients": 2}, task={"labels": ["neg", "pos"]})
    parties.run(run, tmp_path / "run", observer=Watch(done=look), answered=("north", "south"))
    code, text = seen["healthz"]
    told = json.loads(text)
    reason = "method: fedit, and its owner allows rolora"
    assert (code, told["fault"], told["letters_today"]) == (503, f"it takes no part: {reason}", 1)
    assert told["bytes_in_today"] > told["bytes_out_today"] > 0

    again = Parties(folder, {"north": SITES["north"]}, state=tmp_path, options={"contract": picky})
    with pytest.raises(ConfigError):
        again.run(run, tmp_path / "again", answered=("north",))
    error = again.errors["north"]
    assert isinstance(error, PlanRefused)
    assert str(error).startswith(
        f"rondo federate client: 1 problem\n  the plan: is refused: {reason}; change the contract"
    )


class Nobody:
    """Stands for a server's view of its sites."""

    def states(self) -> dict[str, tuple[str, str]]:
        return {}


def of_turnout(*, secret: bool) -> RunConfig:
    settings = RunConfig.model_validate(PRIVATE if secret else {})
    assert settings.guarantee.secret_turnout is secret
    return settings


@pytest.mark.parametrize("secret", [False, True])
def test_site_withholds_the_letters_of_a_secret_turnout(secret: bool, folder: Path, tmp_path: Path) -> None:
    """The letters of all sites together count who was drawn."""
    address, seen, parties = free(), dict[str, Any](), Parties(folder)
    starting = parties.start
    parties.start = lambda site: starting(site, **({"monitor": address} if site == "north" else {}))  # type: ignore
    more = {**PRIVATE, "evaluation": {"clients_every": 0}} if secret else {}
    run = config(folder, rounds=1, task={"labels": ["neg", "pos"]}, **more)
    watch = Watch(done=lambda done: seen.update(json.loads(asked(address, "healthz")[1])))
    parties.run(run, tmp_path / "run", observer=watch)
    following = {"letters_today", "bytes_out_today", "bytes_in_today"}
    assert following & seen.keys() == (set() if secret else following)
    assert seen["healthy"]


@pytest.mark.parametrize(("secret", "ended"), [(False, False), (True, False), (True, True)])
def test_status_for_programs_withholds_what_a_secret_turnout_does(secret: bool, ended: bool, tmp_path: Path) -> None:
    """The round too: a program that asks every second sees how long each one takes."""
    directory, record = RunDirectory(tmp_path), line(0, bytes_up=3, bytes_down=4, seconds=2.0)
    directory.write_config(of_turnout(secret=secret))
    for name, content in {"manifest.json": {}, "federation.json": {}, "metrics.jsonl": record}.items():
        (tmp_path / name).write_text(json.dumps(content) + "\n")
    seen = Standing("takes part", "2026-01-01T00:00:00+00:00", "", True, 1, 1, 1, "2026-01-02T00:00:00+00:00")
    (tmp_path / FILE).write_text(json.dumps({"north": asdict(seen)}))
    if ended:
        (tmp_path / "summary.json").write_text(json.dumps(summary(1)))
    told = status(tmp_path)
    assert told["round"] == (None if secret and not ended else 1)
    assert told["state"] == ("finished" if ended else "not running")
    hides = {"rounds": None, "counted": None, "last": None, "answered": None} if secret else {}
    assert told["sites"] == {"north": {**asdict(seen), **hides}}
    hidden = (told["bytes_up"], told["bytes_down"], told["last"])
    assert hidden == ((None, None, None) if secret else (3, 4, record))


@pytest.mark.parametrize("secret", [False, True])
def test_monitor_withholds_what_a_secret_turnout_does(secret: bool) -> None:
    settings = of_turnout(secret=secret)
    gauges = Gauges(settings, Nobody(), dict)  # type: ignore[arg-type]
    record = {"round": 0, "seconds": 2.0, "skipped": None, "bytes_up": 3, "bytes_down": 4, "failed": [], "rejected": {}}
    gauges.round_done(record)
    gauges.resumed(2, ())
    following = {"round_seconds", "bytes_up", "bytes_down", "failed_uploads", "refused_uploads"}
    following |= {"round", "skipped_rounds"}  # the time at which a round ends tells how many trained in it
    assert following & gauges.health().numbers.keys() == (set() if secret else following)


def test_program_that_does_nothing_useful_is_not_healthy() -> None:
    address = free()
    with monitored(address, lambda: Health("it refuses the plan", {"round": 3})):
        assert asked(address, "healthz") == (503, '{"healthy": false, "fault": "it refuses the plan", "round": 3}\n')
        assert numbers(asked(address, "metrics")[1]) == {"rondo_healthy": 0, "rondo_round": 3}
        assert asked(address, "else")[0] == 404


@pytest.mark.parametrize("address", ["9464", "127.0.0.1:", "127.0.0.1:99999", "no.such.host.invalid:9464"])
def test_address_that_is_none_is_refused(address: str) -> None:
    with (
        pytest.raises(ConfigError, match=r"give HOST:PORT, for instance 127\.0\.0\.1:9464"),
        monitored(address, Health),
    ):
        pass


@pytest.mark.parametrize("abstract", [False, True])
def test_service_manager_is_told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, abstract: bool) -> None:
    name = f"@{tmp_path}" if abstract else str(tmp_path / "manager")
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as manager:
        manager.bind(name.replace("@", "\0", 1))
        monkeypatch.setenv("NOTIFY_SOCKET", name)
        notify("READY=1")
        assert manager.recv(100) == b"READY=1"
    notify("STATUS=nobody listens any more")


def test_end_of_a_key_is_told_from_thirty_days_on() -> None:
    ends = {"a": date(2026, 3, 31), "b": date(2026, 4, 1), "c": date(2026, 3, 1), "d": date(2026, 2, 28)}
    assert list(ending(ends, date(2026, 3, 1))) == [
        "a ends in 30 days, on 2026-03-31: renew it",
        "c ends in 0 days, on 2026-03-01: renew it",
        "d ended on 2026-02-28: renew it",
    ]
    assert days_left(ends.values(), date(2026, 2, 27)) == 1


@pytest.mark.slow
def test_renewed_certificate_is_taken_while_the_server_runs(folder: Path, tmp_path: Path) -> None:
    address, seen, parties = free(), dict[str, Any](), Parties(folder)

    def renew(done: int) -> None:
        if done == 1:
            seen["before"] = certificate_at(parties.port, folder)
            keys.renew([], folder / "keys", days=400)
            parties.until("the server's certificate was renewed, and is in use")
            seen["after"] = certificate_at(parties.port, folder)

    parties.run(config(folder, rounds=2), tmp_path / "run", observer=Watch(done=renew), monitor=address)
    later = datetime.now(UTC) + timedelta(days=300)
    assert seen["before"] < later < seen["after"]
    assert [line for line in parties.told if line.startswith("the server's certificate ends in ")]


def certificate_at(port: int, folder: Path) -> datetime:
    """When the certificate that a server shows ends."""
    import ssl

    context = ssl.create_default_context(cafile=str(folder / "keys" / "server" / "ca.crt"))
    with (
        socket.create_connection(("127.0.0.1", port), 10) as plain,
        context.wrap_socket(plain, server_hostname="localhost") as line,
    ):
        end = line.getpeercert()["notAfter"]  # type: ignore[index]
    return datetime.fromtimestamp(ssl.cert_time_to_seconds(str(end)), UTC)
