"""A result on a hub: a server on this machine in the hub's place."""

from __future__ import annotations

import base64
import json
import threading
from collections.abc import Callable, Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest
from huggingface_hub import constants

import rondo
from rondo.results.push import check_token, parcel, send
from small_runs import reviews, save_tiny_bert, settings

Invoke = Callable[..., tuple[int, str]]


class Hub(ThreadingHTTPServer):
    """The part of a hub that takes a commit of small files."""

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), Handler)
        self.asked: list[str] = []
        self.tokens: set[str | None] = set()
        self.made: list[dict[str, Any]] = []
        self.files: dict[str, bytes] = {}
        self.refuses = False

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.server_port}"


class Handler(BaseHTTPRequestHandler):
    server: Hub

    def do_POST(self) -> None:
        body = self.rfile.read(int(self.headers.get("Content-Length", 0)))
        self.server.asked.append(self.path)
        self.server.tokens.add(self.headers.get("Authorization"))
        if self.path == "/api/repos/create":
            self.server.made.append(json.loads(body))
            if self.server.refuses:
                self._answer(403, {"error": "You have no right to this name"})
            else:
                self._answer(200, {"url": f"{self.server.url}/me/mine"})
        elif self.path.endswith("/preupload/main"):
            paths = [file["path"] for file in json.loads(body)["files"]]
            self._answer(200, {"files": [{"path": p, "uploadMode": "regular", "shouldIgnore": False} for p in paths]})
        elif self.path.endswith("/commit/main"):
            for line in body.splitlines():
                item = json.loads(line)
                if item["key"] == "file":
                    self.server.files[item["value"]["path"]] = base64.b64decode(item["value"]["content"])
            answer = {"commitUrl": f"{self.server.url}/me/mine/commit/1", "commitOid": "1" * 40}
            self._answer(200, answer)
        else:
            self._answer(200, {"errors": [], "warnings": []})

    def do_GET(self) -> None:
        self.server.asked.append(self.path)
        self._answer(404, {"error": "not found"})

    def _answer(self, status: int, content: Any) -> None:
        text = json.dumps(content).encode()
        self.send_response(status)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(text)))
        self.end_headers()
        self.wfile.write(text)

    def log_message(self, format: str, *args: Any) -> None:
        pass


@pytest.fixture
def hub(monkeypatch: pytest.MonkeyPatch) -> Iterator[Hub]:
    server = Hub()
    threading.Thread(target=server.serve_forever, daemon=True).start()
    monkeypatch.setattr(constants, "ENDPOINT", server.url)
    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", False)
    monkeypatch.setenv("HF_TOKEN", "hf_secret")
    yield server
    server.shutdown()
    server.server_close()


@pytest.fixture(scope="module")
def run_dir(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("pushed")
    config = settings(save_tiny_bert(folder / "bert"), rounds=1)
    return rondo.run(config, train=reviews(24), run_dir=folder / "run", device="cpu").run_dir


def test_files_are_sent_as_they_are(hub: Hub, run_dir: Path, tmp_path: Path) -> None:
    rondo.export(run_dir, tmp_path / "out")
    sent = parcel(tmp_path / "out", "me/mine")
    assert send(sent, lambda: True) == f"{hub.url}/me/mine"
    there = {path.name: path.read_bytes() for path in (tmp_path / "out").iterdir() if path.name != "rondo.toml"}
    assert hub.files == there
    made = hub.made[0]
    assert (made["name"], made["organization"]) == ("mine", "me")
    assert made.get("private") is True or made.get("visibility") == "private"  # by the library's version
    assert hub.tokens == {"Bearer hf_secret"}
    assert str(run_dir.parent).encode() not in b"".join(hub.files.values())


def test_nothing_is_sent_without_agreement(hub: Hub, run_dir: Path, tmp_path: Path) -> None:
    rondo.export(run_dir, tmp_path / "out")
    assert send(parcel(tmp_path / "out", "me/mine"), lambda: False) is None
    assert hub.asked == []


def test_refusal_of_the_hub_is_told(hub: Hub, run_dir: Path, tmp_path: Path) -> None:
    hub.refuses = True
    rondo.export(run_dir, tmp_path / "out")
    with pytest.raises(rondo.ConfigError, match=r"has not taken 'me/mine': .*You have no right to this name"):
        send(parcel(tmp_path / "out", "me/mine"), lambda: True)


def test_dry_run_shows_card_files_and_bytes_and_sends_nothing(hub: Hub, run_dir: Path, invoke: Invoke) -> None:
    code, output = invoke("export", str(run_dir), "--to", "out", "--push", "me/mine", "--dry-run")
    assert code == 0
    assert "# LoRA adapter of a simulated federated run" in output
    size = Path("out/adapter_model.safetensors").stat().st_size
    assert f"{size / 1000:.1f} kB  adapter_model.safetensors" in output
    assert output.endswith("nothing was sent\n")
    assert hub.asked == []


def test_push_without_a_question_is_said_to(hub: Hub, run_dir: Path, invoke: Invoke) -> None:
    code, output = invoke("export", str(run_dir), "--to", "out", "--push", "me/mine")
    assert (code, Path("out").exists()) == (2, False)
    assert "nobody can be asked without a terminal: look at --dry-run, then add --yes" in output
    code, output = invoke("export", str(run_dir), "--to", "out", "--push", "me/mine", "--yes")
    assert code == 0, output
    assert output.endswith(f"sent: {hub.url}/me/mine\n")
    assert "adapter_model.safetensors" in hub.files


def test_push_needs_a_token(hub: Hub, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.delenv("HF_TOKEN")
    monkeypatch.setattr(constants, "HF_TOKEN_PATH", str(tmp_path / "none"))
    monkeypatch.setattr(constants, "HF_STORED_TOKENS_PATH", str(tmp_path / "none"))
    with pytest.raises(rondo.ConfigError, match="--push: there is no token for the hub: log in by hf auth login"):
        check_token()


@pytest.mark.parametrize(
    ("arguments", "fragment"),
    [
        (("--dry-run",), "--dry-run: only --push uses it"),
        (("--push", "a/b/c", "--dry-run"), "'a/b/c' cannot name a repository"),
    ],
)
def test_bad_pushes_are_refused(run_dir: Path, invoke: Invoke, arguments: tuple[str, ...], fragment: str) -> None:
    code, output = invoke("export", str(run_dir), "--to", "out", *arguments)
    assert (code, Path("out").exists()) == (2, False)
    assert fragment in output
