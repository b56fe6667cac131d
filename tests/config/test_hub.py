"""Names on a hub that is out of reach: asked once, briefly, then the cache, then a message that helps."""

from __future__ import annotations

import logging
import socket
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from huggingface_hub import constants

import rondo
from outcomes import told
from rondo.config import hub
from small_runs import reviews, settings


@pytest.fixture
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", False)
    monkeypatch.setattr(constants, "HF_HUB_CACHE", str(tmp_path / "cache"))
    monkeypatch.setattr(hub, "_SECONDS", 0.5)
    return tmp_path / "cache"


@pytest.fixture
def silent(cache: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[list[socket.socket]]:
    """A hub that takes calls and answers none; the calls that came."""
    calls: list[socket.socket] = []
    with socket.create_server(("127.0.0.1", 0)) as server:
        monkeypatch.setattr(constants, "ENDPOINT", f"http://127.0.0.1:{server.getsockname()[1]}")

        def take() -> None:
            while True:
                try:
                    calls.append(server.accept()[0])
                except OSError:
                    return

        threading.Thread(target=take, daemon=True).start()
        yield calls
    for call in calls:
        call.close()


def refused(run: Any) -> str:
    ((path, message),) = told(run)
    return f"{path}: {message}"


def test_silent_hub_is_asked_once(silent: list[socket.socket], cache: Path, tmp_path: Path) -> None:
    config = settings(tmp_path, model={"name": "org/absent"})
    message = refused(lambda: rondo.run(config, train=reviews(24), run_dir=tmp_path / "run", device="cpu"))
    assert len(silent) == 1
    assert message.startswith("model.name: 'org/absent' is no file or folder here, the hub http://127.0.0.1:")
    assert f"and the cache {cache} does not have it: name a folder" in message
    assert "set HF_HUB_OFFLINE=1" in message


def test_data_of_a_silent_hub(silent: list[socket.socket], tmp_path: Path) -> None:
    config = settings(tmp_path, data={"source": "org/rows"})
    message = refused(lambda: rondo.run(config, run_dir=tmp_path / "run", device="cpu"))
    assert message.startswith("data.source: 'org/rows' is no file or folder here, the hub http://127.0.0.1:")
    assert len(silent) == 1


def test_cache_is_taken_where_the_hub_is_silent(
    silent: list[socket.socket], cache: Path, caplog: pytest.LogCaptureFixture
) -> None:
    (cache / "models--org--there").mkdir(parents=True)
    with caplog.at_level(logging.WARNING, "rondo"), hub.asked("model.name", "org/there", "models"):
        assert constants.HF_HUB_OFFLINE
    assert not constants.HF_HUB_OFFLINE
    assert "'org/there' is taken from the cache" in caplog.text


def test_refused_connection_is_named(cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]
    monkeypatch.setattr(constants, "ENDPOINT", f"http://127.0.0.1:{port}")

    def load() -> None:
        with hub.asked("model.name", "absent", "models"):
            raise rondo.ConfigError.at("model.name", "cannot be loaded")

    assert "does not answer ([Errno 111] Connection refused)" in refused(load)


def test_errors_of_a_hub_that_answers_are_left(cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(hub, "_unreachable", lambda endpoint: None)

    def load() -> None:
        with hub.asked("model.name", "absent", "models"):
            raise rondo.ConfigError.at("model.name", "no such model")

    assert refused(load) == "model.name: no such model"
