"""The checkpoints of a run: all that it takes to go on after any round as if nothing had happened.

::

    round-000012/          a generation; there are the last two
      state.safetensors    the server's state (see :mod:`rondo.engine.serialization`)
      ledger.json          which versions of which tensors each client has
      manifest.json        rounds, scores, lengths and SHA-256 of all that belongs to the generation; written last
    round-000011/
    clients/               what each client keeps; a file a client and round in which that changed

A generation counts from the moment its manifest is in place. Whatever else is found later (an unfinished generation,
clients' files of rounds that were never committed) is of a process that stopped, and is removed when the run goes on.
Every byte is covered by a digest: a client's file by the one in its name, all their names by one in the manifest. The
manifest has its own. Random streams are functions of seed, round and client, so no generator needs to be kept.
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

from rondo.engine import serialization
from rondo.engine.server.ledger import Ledger
from rondo.runs.storage import durable
from rondo.runs.storage.client_store import Kept
from rondo.runs.storage.durable import Damaged, Journal, Position

GENERATIONS = 2
FORMAT = 1
"""Of the manifest. One that a later version of Rondo has written is refused, not guessed at."""

_MANIFEST, _STATE, _LEDGER = "manifest.json", "state.safetensors", "ledger.json"


@dataclass(frozen=True)
class Checkpoint:
    """A run after ``rounds`` rounds: the server's state, what clients keep, what they hold, and the end of the journal.

    ``scores``: what was scored before the first round, and the best round so far, as JSON.
    """

    rounds: int
    state: Any
    locals: Kept
    ledger: Ledger
    journal: Position
    scores: Mapping[str, Any]


def save(folder: Path, checkpoint: Checkpoint) -> None:
    """Commit ``checkpoint``, which must be later than all in ``folder``, its parent being there. Of what clients keep
    only what was set since the last call is written. Raises OSError; what was committed before that stays.
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
        "files": {n: asdict(Position(len(c), hashlib.sha256(c).hexdigest())) for n, c in contents.items()},
        "clients": {"count": len(checkpoint.locals), "digest": checkpoint.locals.digest},
        "journal": asdict(checkpoint.journal),
        "scores": checkpoint.scores,
    }
    durable.write(place / _MANIFEST, _sealed(content))
    for old in _generations(folder)[GENERATIONS:]:
        (old / _MANIFEST).unlink(missing_ok=True)  # first, so that half of a generation is not taken for one
        shutil.rmtree(old)
    checkpoint.locals.forget(checkpoint.rounds - GENERATIONS + 1)


def load(folder: Path, like: Any, journal: Journal | None = None) -> tuple[Checkpoint, list[str]]:
    """The newest checkpoint that is as it was written, and what is wrong with newer ones. ``like`` is a state of the
    same algorithm. With ``journal`` that and every client's file must be whole, too.

    Raises FileNotFoundError where there is none, and :class:`~rondo.runs.storage.durable.Damaged` where none is whole.
    """
    reasons: list[str] = []
    for place in _generations(folder):
        try:
            return _load(place, like, journal), reasons
        except (OSError, ValueError, KeyError, TypeError) as error:
            reasons.append(f"{place.name}: {error}")
    if not reasons:
        raise FileNotFoundError(f"no checkpoint in {folder}")
    raise Damaged("; ".join(reasons))


def clean(folder: Path, checkpoint: Checkpoint) -> None:
    """Remove what is no part of ``checkpoint`` or of the generation before it: left by a process that stopped, or
    damaged."""
    for path in folder.iterdir():
        found = re.fullmatch(r"round-(\d+)", path.name)
        if found is not None and not checkpoint.rounds - GENERATIONS < int(found[1]) <= checkpoint.rounds:
            with contextlib.suppress(FileNotFoundError):
                (path / _MANIFEST).unlink()
            shutil.rmtree(path)
        elif found is not None:
            for temporary in path.glob(f"*{durable.TEMPORARY}"):
                temporary.unlink()
    checkpoint.locals.clean(checkpoint.rounds - GENERATIONS + 1)


def _generations(folder: Path) -> list[Path]:
    """Those that were committed, the newest first."""
    found = [p for p in folder.glob("round-*") if re.fullmatch(r"round-\d+", p.name) and (p / _MANIFEST).is_file()]
    return sorted(found, key=lambda p: int(p.name.removeprefix("round-")), reverse=True)


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
    return Checkpoint(content["rounds"], state, kept, ledger, position, content["scores"])


def _sealed(content: Mapping[str, Any]) -> bytes:
    """JSON with the digest of its own text at the end, written in one way only."""
    body = json.dumps(content, indent=1, sort_keys=True)
    return f'{{"content": {body},\n "sha256": "{hashlib.sha256(body.encode()).hexdigest()}"}}\n'.encode()


def _unsealed(text: bytes) -> dict[str, Any]:
    """What :func:`_sealed` was given. Raises :class:`~rondo.runs.storage.durable.Damaged`."""
    try:
        content: dict[str, Any] = json.loads(text)["content"]
        whole = _sealed(content) == text
    except (ValueError, KeyError, TypeError, RecursionError):
        whole = False
    if not whole:
        raise Damaged(f"{_MANIFEST} is not as it was written (SHA-256)")
    return content
