"""Checkpoints of a run: everything needed to continue after any round as if the run had never stopped.

::

    round-000012/          a generation; the last two are kept
      state.safetensors    the server's state (see :mod:`rondo.engine.wire.serialization`)
      ledger.json          the versions of the tensors that each client has
      manifest.json        rounds, scores, lengths and SHA-256 of everything in the generation; written last
    round-000011/
    clients/               tensors that clients keep; one file per client and round in which they changed

A generation counts once its manifest is in place. Anything else (an unfinished generation, client files of uncommitted
rounds) was left by a process that stopped, and is removed when the run continues.

Digests cover every byte: the digest in a client file's name covers the file, one in the manifest covers all those
names, and the manifest ends with its own. Random streams are functions of seed, round and client, so no generator
state is stored.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import re
import shutil
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from rondo.engine.server.ledger import Ledger
from rondo.engine.wire import serialization
from rondo.records import durable
from rondo.records.durable import Damaged, Journal, Position
from rondo.runs.storage.client_store import Kept

GENERATIONS = 2
FORMAT = 2
"""Format of the manifest. A manifest of another format, as a later version of Rondo may write it, is refused."""

_MANIFEST, _STATE, _LEDGER = "manifest.json", "state.safetensors", "ledger.json"


@dataclass(frozen=True)
class Checkpoint:
    """A run after ``rounds`` rounds, skipped ones included.

    ``aggregated``: the number of rounds that were aggregated.
    ``state``: the server's state.
    ``locals``: the tensors that clients keep.
    ``ledger``: the versions of the tensors that clients have.
    ``journal``: the end of the journal.
    ``scores``: the scores and generated answers before the first round, and the best round so far, as JSON.
    """

    rounds: int
    aggregated: int
    state: Any
    locals: Kept
    ledger: Ledger
    journal: Position
    scores: Mapping[str, Any]


def save(folder: Path, checkpoint: Checkpoint) -> None:
    """Commit ``checkpoint``, which must be later than all in ``folder``. The parent of ``folder`` must exist.

    Writes only the clients' tensors that were set since the last call. Raises OSError; earlier checkpoints stay.
    """
    durable.make_folder(folder)
    checkpoint.locals.write(checkpoint.rounds)
    place = folder / f"round-{checkpoint.rounds:06}"
    durable.make_folder(place)
    contents = {_STATE: serialization.pack(checkpoint.state), _LEDGER: checkpoint.ledger.to_json()}
    durable.write_all(place, contents)
    content = {
        "format": FORMAT,
        "rounds": checkpoint.rounds,
        "aggregated": checkpoint.aggregated,
        "files": {n: asdict(Position(len(c), hashlib.sha256(c).hexdigest())) for n, c in contents.items()},
        "clients": {"count": len(checkpoint.locals), "digest": checkpoint.locals.digest},
        "journal": asdict(checkpoint.journal),
        "scores": checkpoint.scores,
    }
    durable.write(place / _MANIFEST, _sealed(content))
    for old in _generations(folder)[GENERATIONS:]:
        (old / _MANIFEST).unlink(missing_ok=True)  # first, so that a half-deleted generation does not count
        shutil.rmtree(old)
    checkpoint.locals.forget(checkpoint.rounds - GENERATIONS + 1)


def load(folder: Path, like: Any, journal: Journal | None = None) -> tuple[Checkpoint, list[str]]:
    """The newest intact checkpoint, and what is wrong with newer ones. ``like``: a state of the same algorithm. With
    ``journal``, the journal and every client's file must be intact too.

    Raises FileNotFoundError without a checkpoint, :class:`~rondo.records.durable.Damaged` without an intact one.
    """
    reasons: list[str] = []
    for generation in _generations(folder):
        try:
            return _load(generation, like, journal), reasons
        except (OSError, ValueError, KeyError, TypeError) as error:
            reasons.append(f"{generation.name}: {error}")
    if not reasons:
        raise FileNotFoundError(f"no checkpoint in {folder}")
    raise Damaged("; ".join(reasons))


def clean(folder: Path, checkpoint: Checkpoint) -> None:
    """Remove everything but ``checkpoint`` and the generation before it: leftovers of a stopped process, and damaged
    generations."""
    for path in folder.iterdir():
        generation = re.fullmatch(r"round-(\d+)", path.name)
        if generation is not None and not checkpoint.rounds - GENERATIONS < int(generation[1]) <= checkpoint.rounds:
            with contextlib.suppress(FileNotFoundError):
                (path / _MANIFEST).unlink()
            shutil.rmtree(path)
        elif generation is not None:
            for temporary in path.glob(f"*{durable.TEMPORARY}"):
                temporary.unlink()
    checkpoint.locals.clean(checkpoint.rounds - GENERATIONS + 1)


def _generations(folder: Path) -> list[Path]:
    """Folders of the committed generations, newest first."""
    folders = [p for p in folder.glob("round-*") if re.fullmatch(r"round-\d+", p.name) and (p / _MANIFEST).is_file()]
    return sorted(folders, key=lambda p: int(p.name.removeprefix("round-")), reverse=True)


def _load(place: Path, like: Any, journal: Journal | None) -> Checkpoint:
    content = _unsealed((place / _MANIFEST).read_bytes())
    if content["format"] != FORMAT:
        raise Damaged(f"{_MANIFEST} has format {content['format']}, this version of Rondo knows {FORMAT}")
    parts = {}
    for name in (_STATE, _LEDGER):
        parts[name] = (place / name).read_bytes()
        if asdict(Position(len(parts[name]), hashlib.sha256(parts[name]).hexdigest())) != content["files"][name]:
            raise Damaged(f"{name} is not as it was written (length or SHA-256)")
    kept = Kept(place.parent, content["rounds"])
    if {"count": len(kept), "digest": kept.digest} != content["clients"]:
        raise Damaged("clients/ has other files than were written")
    position = Position(**content["journal"])
    if journal is not None:
        journal.lines(position)
        kept.check()
    state = serialization.unpack(parts[_STATE], like)
    ledger = Ledger.from_json(parts[_LEDGER])
    return Checkpoint(content["rounds"], content["aggregated"], state, kept, ledger, position, content["scores"])


def _sealed(content: Mapping[str, Any]) -> bytes:
    """``content`` as JSON, followed by the SHA-256 of that JSON text. Equal contents give equal bytes."""
    body = json.dumps(content, indent=1, sort_keys=True)
    return f'{{"content": {body},\n "sha256": "{hashlib.sha256(body.encode()).hexdigest()}"}}\n'.encode()


def _unsealed(text: bytes) -> dict[str, Any]:
    """The content that :func:`_sealed` was given. Raises :class:`~rondo.records.durable.Damaged`."""
    try:
        content: dict[str, Any] = json.loads(text)["content"]
        intact = _sealed(content) == text
    except (ValueError, KeyError, TypeError, RecursionError):
        intact = False
    if not intact:
        raise Damaged(f"{_MANIFEST} is not as it was written (SHA-256)")
    return content
