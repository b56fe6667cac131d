"""The conditions of every test: no network, one thread, no deadline."""

from __future__ import annotations

import os

# Set before any import: libraries read them when they are imported.
os.environ.update(
    HF_HUB_OFFLINE="1",
    TRANSFORMERS_OFFLINE="1",
    HF_DATASETS_OFFLINE="1",
    FLWR_TELEMETRY_ENABLED="0",
    OMP_NUM_THREADS="1",  # for processes that tests start: threads are part of a run
    TERM="xterm-256color",  # output does not depend on the terminal that runs the tests
)
for switch in ("NO_COLOR", "FORCE_COLOR", "COLUMNS", "TTY_COMPATIBLE", "TTY_INTERACTIVE"):
    os.environ.pop(switch, None)

import errno
import ipaddress
import itertools
import socket
import sys
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import settings

torch.set_num_threads(1)

settings.register_profile("rondo", deadline=None, print_blob=True)
settings.load_profile("rondo")


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--share", default="0/1", help="K/N: the cases whose turn K is, of N turns")


@pytest.hookimpl(wrapper=True)
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> Iterator[None]:
    """Before -m and -k, the cases of a sweep beyond each n-th become slow ones. After, leave out the other shares: N
    runs with K from 0 to N - 1 try every case once, and each test's cases are spread over them."""
    for group in _cases([item for item in items if item.get_closest_marker("slow") is None]):
        for place, item in enumerate(group):
            sweep = item.get_closest_marker("sweep")
            if sweep is not None and place % sweep.args[0]:
                item.add_marker(pytest.mark.slow)
    yield
    number, shares = map(int, config.getoption("--share").split("/"))
    kept = set[pytest.Item]()
    for place, group in enumerate(_cases(items)):
        turns = (n * shares // len(group) if len(group) < shares else n % shares for n in range(len(group)))
        kept |= {item for item, turn in zip(group, turns, strict=True) if turn == (number + place) % shares}
    config.hook.pytest_deselected(items=[item for item in items if item not in kept])
    items[:] = [item for item in items if item in kept]


def _cases(items: list[pytest.Item]) -> list[list[pytest.Item]]:
    """The cases of each test."""
    cases: dict[str, list[pytest.Item]] = {}
    for item in items:
        cases.setdefault(item.nodeid.partition("[")[0], []).append(item)
    return list(cases.values())


def _is_local(family: int, address: Any) -> bool:
    if family not in (socket.AF_INET, socket.AF_INET6):
        return True
    host = address[0]
    if host in ("", "localhost"):
        return True
    try:
        return ipaddress.ip_address(host.partition("%")[0]).is_loopback
    except ValueError:
        return False


def _guarded(method: Callable[..., Any]) -> Callable[..., Any]:
    def call(self: socket.socket, *args: Any) -> Any:
        address = args[-1]
        if not _is_local(self.family, address):
            raise RuntimeError(f"a test may not reach the network: {method.__name__} to {address!r}")
        return method(self, *args)

    return call


@pytest.fixture(autouse=True)
def one_thread() -> Iterator[None]:
    """Whatever a test did to torch's threads, the next one has one."""
    yield
    torch.set_num_threads(1)


@pytest.fixture(scope="session", autouse=True)
def no_network() -> Iterator[None]:
    """Refuse every connection except to this machine, in fixtures of any scope and in tests."""
    with pytest.MonkeyPatch.context() as patch:
        for name in ("connect", "connect_ex", "sendto"):
            patch.setattr(socket.socket, name, _guarded(getattr(socket.socket, name)))
        yield


@pytest.fixture(scope="session", autouse=True)
def no_waiting_for_the_disk() -> Iterator[None]:
    """A small run flushes some 50 times, which takes longer than its training, and no test turns the power off. A call
    with a closed file still fails."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(os, "fsync", os.fstat)
        yield


@pytest.fixture(scope="session", autouse=True)
def draw_picture() -> Iterator[Callable[[Any], bytes]]:
    """Runs compose every picture, but the first drawing stands for all: drawing takes a third of a small run's time."""
    from rondo.report import drawing

    draw, drawings = drawing.png, []

    def first_drawing(figure: Any) -> bytes:
        if not drawings:
            drawings.append(draw(figure))
        return drawings[0]

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(drawing, "png", first_drawing)
        yield draw


@pytest.fixture
def drawn_pictures(draw_picture: Callable[[Any], bytes], monkeypatch: pytest.MonkeyPatch) -> None:
    """Draw every picture."""
    from rondo.report import drawing

    monkeypatch.setattr(drawing, "png", draw_picture)


@pytest.fixture
def no_pictures(monkeypatch: pytest.MonkeyPatch) -> None:
    """Compose no pictures of a run: they take much of the time of so small a run."""
    from rondo.report import drawing, pictures

    monkeypatch.setattr(drawing, "png", lambda figure: b"a picture")
    for name in ("partition", "curve", "contact_sheet"):
        monkeypatch.setattr(pictures, name, lambda *_: None)


@pytest.fixture(scope="session")
def bert(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of a small BERT and its tokenizer; do not write into it."""
    from small_runs import save_tiny_bert

    return save_tiny_bert(tmp_path_factory.mktemp("bert") / "bert")


@pytest.fixture(scope="module")
def sources(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with a model and rows for the runs of :mod:`kinds_of_runs`."""
    from kinds_of_runs import make_sources

    return make_sources(tmp_path_factory.mktemp("sources"))


@pytest.fixture
def logits_of(monkeypatch: pytest.MonkeyPatch) -> Callable[[int, int], None]:
    """Sets how many tokens have their logits at once, over a vocabulary of so many words."""
    from rondo.tasks.language import output_layer

    return lambda tokens, words: monkeypatch.setattr(output_layer, "_CPU_BYTES", 4 * words * tokens)


@pytest.fixture
def bf16(monkeypatch: pytest.MonkeyPatch) -> Callable[[bool], None]:
    """Sets whether the processor multiplies bfloat16 faster than float32."""
    from rondo.models.kernels import precision

    return lambda has: monkeypatch.setattr(precision, "faster_bf16", lambda: has)


@pytest.fixture
def private_sums(monkeypatch: pytest.MonkeyPatch) -> list[torch.Tensor]:
    """The sum of clipped gradients of every private step, (numbers,), in float64. The steps move nothing, so that each
    begins at the start."""
    from rondo.privacy import steps as private_step

    seen: list[torch.Tensor] = []

    def noted(sums: dict[str, torch.Tensor], *_: object) -> dict[str, torch.Tensor]:
        seen.append(torch.cat([t.flatten() for t in sums.values()]))
        return {n: torch.zeros_like(t) for n, t in sums.items()}

    monkeypatch.setattr(private_step, "add_noise", noted)
    return seen


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Callable[[int], None]:
    """Sets the clock by which keys and certificates end, not that of TLS, by so many days from today."""
    from rondo.federation.identity import certificates

    def to(days: int) -> None:
        moment = datetime.now(UTC).replace(microsecond=0) + timedelta(days=days)
        monkeypatch.setattr(certificates, "now", lambda: moment)

    return to


@pytest.fixture
def fails_at(monkeypatch: pytest.MonkeyPatch) -> Callable[..., AbstractContextManager[None]]:
    """A context in which a function of ``os`` raises ``error`` at its ``at``-th call and from then on."""

    @contextmanager
    def failing(name: str, at: int = 0, error: BaseException | None = None) -> Iterator[None]:
        real, calls = getattr(os, name), itertools.count()

        def call(*arguments: Any, **options: Any) -> Any:
            if next(calls) >= at:
                raise error or OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
            return real(*arguments, **options)

        with monkeypatch.context() as patch:
            patch.setattr(os, name, call)
            yield

    return failing


@pytest.fixture
def full_at(monkeypatch: pytest.MonkeyPatch) -> Callable[..., AbstractContextManager[None]]:
    """A context in which the disk is full at the ``at``-th time that a file whose path ends so is replaced or grows,
    and has room again afterwards."""

    @contextmanager
    def failing(name: str, at: int = 0) -> Iterator[None]:
        replace, opened, calls = os.replace, os.open, itertools.count()

        def strike(path: Any) -> None:
            if Path(path).match(name) and next(calls) == at:
                raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), str(path))

        def replaced(source: Any, target: Any) -> None:
            strike(target)
            replace(source, target)

        def grown(path: Any, flags: int, *more: Any, **given: Any) -> int:
            if flags & os.O_WRONLY:
                strike(path)
            return opened(path, flags, *more, **given)

        with monkeypatch.context() as patch:
            patch.setattr(os, "replace", replaced)
            patch.setattr(os, "open", grown)
            yield

    return failing


@pytest.fixture
def killed_at(monkeypatch: pytest.MonkeyPatch) -> Callable[..., AbstractContextManager[None]]:
    """A context in which the program dies at the ``at``-th time that a file of that name grows: half of what is added
    is on the disk, or with ``whole`` all of it."""

    @contextmanager
    def dying(name: str, at: int, *, whole: bool) -> Iterator[None]:
        from rondo.records import durable

        real, calls = durable._write, itertools.count()

        def write(path: Path, content: bytes, start: int) -> None:
            dies = path.name == name and next(calls) == at
            real(path, content[: len(content) // 2] if dies and not whole else content, start)
            if dies:
                raise KeyboardInterrupt

        with monkeypatch.context() as patch:
            patch.setattr(durable, "_write", write)
            yield

    return dying


@pytest.fixture
def invoke(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[..., tuple[int, str]]:
    """Run a command in an empty working directory; return its exit code and output, which has no traceback."""
    from typer.testing import CliRunner

    from rondo.cli import app

    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", [p for p in sys.path if p not in ("", ".")])
    monkeypatch.setenv("COLUMNS", "200")

    def call(*arguments: object) -> tuple[int, str]:
        result = CliRunner().invoke(app, [str(a) for a in arguments])
        if not isinstance(result.exception, SystemExit | None):
            raise result.exception
        assert "Traceback" not in result.output
        return result.exit_code, result.output

    return call
