"""The rows and seeds behind the uploads of a site, over all runs: rows leave in blocks, and a seed is for one work.

The difference of two uploads shows what is behind one of them alone. So a row belongs to a block of
``training.least_rows`` rows at least, for good. Blocks are trained on, held back and left out whole, and a pass over a
part of the rows is one over whole blocks. The rows behind two uploads, of whatever run, are then equal or differ by
``least_rows`` rows at least, and so do unions and differences of them. New rows wait until they make a block. A block
of which a row is gone or changed is left out.

A plan says how rows are read: their columns, their length. If it reads a few rows otherwise than an earlier one, the
difference of two uploads, or of two scores, is of these rows alone. Their blocks are left out. Test rows are in blocks
too.

The blocks are drawn by a secret of the site. It is in the record, ``behind.rows``, with a keyed digest of each row.
"""

from __future__ import annotations

import hashlib
import hmac
import json
import os
from bisect import bisect_right
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import accumulate
from pathlib import Path

from rondo.config.schema import RunConfig
from rondo.data.files.tables import Rows
from rondo.data.units import Parts
from rondo.errors import ConfigError
from rondo.federation.plan import Plan
from rondo.federation.site.contract.document import Term
from rondo.records import private_file
from rondo.records.durable import Damaged

FILE = "behind.rows"
_KEY, _MARK = 32, 8
"""Bytes of the secret, and of a row's digest."""


def is_free(config: RunConfig) -> bool:
    """Whether noise of the site protects each row of a run, and blocks would undo it: one row more can make a block."""
    return "example-dp" in config.guarantee.protections


def of_plan(config: RunConfig) -> Iterator[Term]:
    """The terms of a plan under a contract without ``training.repeats``."""
    if config.guarantee.of_rows and not is_free(config):
        allowed = "noise that counts in each, as long as training.repeats is not set"
        yield Term("private steps", "draws of single rows without noise", allowed, False)
    if config.train.trainer is not None:  # nor does a last batch of one row, or a row dealt to two processes, show here
        allowed = "blocks of rows, as long as training.repeats is not set"
        yield Term("train.trainer", "its own draws of rows", allowed, False)


def work_of(plan: Plan, config: RunConfig) -> str:
    """The digest of what a client does in the rounds of ``plan``. More rounds are the same work if the learning rate
    does not go by their number."""
    constant = config.train.schedule == "constant"
    content = {key: value for key, value in plan.config.items() if not (constant and key == "rounds")}
    return hashlib.sha256(json.dumps([content, plan.labels, plan.model], sort_keys=True).encode()).hexdigest()[:32]


@dataclass(frozen=True)
class _Record:
    """``key``: the secret. ``columns``: those that rows are known by. ``work``: by seed. ``blocks``: the digests of
    each block's rows. ``readings``: of each way in which rows were read, the digests of their examples."""

    key: bytes
    columns: Sequence[str]
    work: Mapping[str, str] = field(default_factory=dict)
    blocks: Sequence[Sequence[bytes]] = ()
    readings: Sequence[Mapping[bytes, bytes]] = ()


@dataclass(frozen=True)
class Behind:
    """The record in a site's ``folder``.

    ``past``: a file that is there once the site's owner has consented to a plan.
    ``rows``, ``tests``: the rows, and the test rows, of each client, by its id.
    ``columns``: those that runs may read or predict.
    ``least``: fewest rows of a block.
    """

    folder: Path
    past: Path
    rows: Mapping[str, Rows]
    tests: Mapping[str, Rows]
    columns: Sequence[str]
    least: int
    told: Callable[[str], None]
    _made: dict[str, list[list[bytes]]] = field(default_factory=dict)
    """New blocks of each client."""
    _read_as: dict[str, dict[bytes, bytes]] = field(default_factory=dict)
    """The digests of the examples of each client's rows, as :meth:`parts` was last given them."""

    def begin(self) -> None:
        """Make the record of a new site. Raises :class:`ConfigError` where that of an older one is missing, damaged or
        of other columns, and OSError."""
        record = self._read()
        if not (self.folder / FILE).exists():
            self._write(record)

    def parts(self, client: str, rows: Rows, contents: Sequence[str], share: float | None) -> Parts:
        """The blocks of ``rows``, which are those of ``client`` that a run can use. ``contents``: digests of their
        examples. At most ``share`` of the rows are held back; None for test rows, whose blocks all are. New blocks are
        written by :meth:`keep`. Raises :class:`ConfigError`."""
        record, whose = self._read(), client if share is not None else f"test rows of {client}"
        marks = self._marks(record.key, client, rows, tested=share is None)
        places = {mark: place for place, mark in enumerate(marks)}
        known = [block for block in record.blocks if not places.keys().isdisjoint(block)]
        whole = [block for block in known if places.keys() >= set(block)]
        new = sorted(places.keys() - {mark for block in known for mark in block})
        self._made[whose] = made = _joined([[mark] for mark in new], self.least)
        blocks = _joined([*whole, *made], self.least)  # again, for a contract that asks for more rows than before
        read = {mark: _keyed(record.key, contents[place].encode()) for mark, place in places.items()}
        sides = _divided(blocks, 1.0 if share is None else share)
        train, held_back = (_alike(side, read, record.readings, self.least) for side in sides)
        self._read_as[whose] = {mark: read[mark] for block in (*train, *held_back) for mark in block}
        lost = len(places) - len(new) - sum(map(len, whole))
        left, back = sum(map(len, (*train, *held_back))), [places[mark] for block in held_back for mark in block]
        self._tell(
            whose, 0 if made else len(new), lost, sum(map(len, blocks)) - left, 0 if share is None else len(back)
        )
        return Parts([[places[mark] for mark in block] for block in train], back)

    def keep(self) -> None:
        """Write new blocks down, before a row of them is trained on. Raises OSError."""
        record = self._read()
        if made := [block for blocks in self._made.values() for block in blocks]:
            self._write(replace(record, blocks=[*record.blocks, *made]))
            self._made.clear()

    def refused(self, seed: int, work: str) -> str | None:
        """The reason why no upload of ``work`` may leave with this ``seed``; None if one may."""
        if self._read().work.get(str(seed), work) == work:
            return None
        return (
            f"seed: {seed} was that of another configuration, and the difference of two uploads of one seed can be a "
            "single row: take another seed, or its owner accepts that by training.repeats = true"
        )

    def note(self, seed: int, work: str) -> str | None:
        """Write down that ``work`` leaves with this ``seed``, and how its rows are read. Returns as :meth:`refused`.
        Raises OSError."""
        record = self._read()
        read = {mark: content for of_client in self._read_as.values() for mark, content in of_client.items()}
        noted = replace(record, work={str(seed): work, **record.work}, readings=_added(record.readings, read))
        if noted != record:
            self._write(noted)
        return self.refused(seed, work)

    @property
    def _again(self) -> str:
        files = f"{FILE} and {self.past.name} in {str(self.folder)!r}"
        return f"or remove {files} to begin again without what has left so far, or set training.repeats = true"

    def _tell(self, client: str, new: int, lost: int, other: int, held_back: int) -> None:
        blocks = f"blocks of {self.least} rows at least (training.least_rows)"
        if new:
            self.told(f"{client}: {new} new rows wait until there are {self.least}: uploads go by {blocks}")
        if lost:
            self.told(f"{client}: of {blocks}, some lack rows that are gone or changed: {lost} rows are left out")
        if other:
            self.told(f"{client}: of {blocks}, some have rows that an earlier run read otherwise: {other} are left out")
        if held_back:
            self.told(f"{client}: {held_back} rows are held back, in {blocks}")

    def _marks(self, key: bytes, client: str, rows: Rows, *, tested: bool) -> list[bytes]:
        """The digests of ``rows``. Some tasks open their cells, such as pictures, so those of the file are taken where
        no row is left out."""
        whose = ("test", client) if tested else (client,)
        own = self._digests(key, whose, (self.tests if tested else self.rows)[client])
        if len(own) == len(rows):
            return own
        marks = self._digests(key, whose, rows)
        if not set(marks) <= set(own):
            message = f"some rows of {client} cannot be used, and it does not show which: mend or remove them"
            raise ConfigError.at("data.bad_rows", message)
        return marks

    def _digests(self, key: bytes, whose: Sequence[str], rows: Rows) -> list[bytes]:
        """A digest of each row; equal rows are told apart by their number."""
        equal = Counter[bytes]()
        marks = []
        for row in rows:
            cells = [*whose, *((name, _cell(row[name])) for name in sorted(self.columns) if name in row)]
            content = hmac.digest(key, repr(cells).encode("utf-8", "surrogatepass"), "sha256")
            marks.append(_keyed(key, content + equal[content].to_bytes(8)))
            equal[content] += 1
        return marks

    def _read(self) -> _Record:
        """The record; one with a new secret, which is not written yet, of a site without a past."""
        path, columns = self.folder / FILE, sorted(self.columns)
        try:
            content, reason = private_file.read(path), "is missing"
        except Damaged:
            content, reason = None, "is damaged"
        if content is None:
            if not path.exists() and not self.past.exists():
                return _Record(os.urandom(_KEY), columns)
            message = f"{str(path)!r} {reason}, and without it nobody knows which rows are behind earlier uploads"
            raise ConfigError.at("--state", f"{message}: take a copy of it, {self._again}")
        header, body = content
        if header["columns"] != columns:
            known = ", ".join(header["columns"])
            message = f"rows.inputs and rows.labels name other columns than {known}, by which rows are known"
            raise ConfigError.at("--contract", f"{message}: name the same, {self._again}")
        marks = (body[start : start + _MARK] for start in range(0, len(body), _MARK))
        blocks = [[next(marks) for _ in range(size)] for size in header["sizes"]]
        readings = [{next(marks): next(marks) for _ in range(size)} for size in header.get("readings", ())]
        return _Record(bytes.fromhex(header["key"]), columns, header["work"], blocks, readings)

    def _write(self, record: _Record) -> None:
        header = {"key": record.key.hex(), "columns": list(record.columns), "work": dict(record.work)}
        sizes = {"sizes": list(map(len, record.blocks)), "readings": list(map(len, record.readings))}
        body = [mark for block in record.blocks for mark in block]
        body += [mark for reading in record.readings for pair in reading.items() for mark in pair]
        private_file.write(self.folder / FILE, {**header, **sizes}, b"".join(body))


def _joined(parts: Iterable[Sequence[bytes]], least: int) -> list[list[bytes]]:
    """``parts``, joined with the next until each has ``least`` digests; none where all together have fewer."""
    blocks: list[list[bytes]] = []
    for part in parts:
        if blocks and len(blocks[-1]) < least:
            blocks[-1] += part
        else:
            blocks.append([*part])
    if len(blocks) > 1 and len(blocks[-1]) < least:
        rest = blocks.pop()
        blocks[-1] += rest
    return [block for block in blocks if len(block) >= least]


def _alike(
    blocks: Sequence[Sequence[bytes]],
    read: Mapping[bytes, bytes],
    readings: Sequence[Mapping[bytes, bytes]],
    least: int,
) -> Sequence[Sequence[bytes]]:
    """``blocks`` without those of rows that are ``read`` otherwise than in one of ``readings``, where such rows are
    fewer than ``least``."""
    for earlier in readings:
        other = {mark for block in blocks for mark in block if earlier.get(mark, read[mark]) != read[mark]}
        if 0 < len(other) < least:  # without their blocks fewer may be left that another reading has otherwise
            return _alike([block for block in blocks if other.isdisjoint(block)], read, readings, least)
    return blocks


def _added(readings: Sequence[Mapping[bytes, bytes]], read: Mapping[bytes, bytes]) -> list[Mapping[bytes, bytes]]:
    """``readings`` with another one, which is put to the first that it agrees with."""
    for place, earlier in enumerate(readings):
        if all(earlier.get(mark, content) == content for mark, content in read.items()):
            return [*readings[:place], {**earlier, **read}, *readings[place + 1 :]]
    return [*readings, read] if read else [*readings]


def _divided(blocks: Sequence[Sequence[bytes]], share: float) -> tuple[Sequence[Sequence[bytes]], ...]:
    """The blocks to train on, and the others: the first blocks, up to ``share`` of all rows."""
    sizes = [*accumulate(map(len, blocks), initial=0)]
    count = bisect_right(sizes, share * sizes[-1]) - 1
    return blocks[count:], blocks[:count]


def _keyed(key: bytes, content: bytes) -> bytes:
    return hmac.digest(key, content, "sha256")[:_MARK]


def _cell(value: object) -> str:
    """A text for a cell that is the same in every process."""
    data = value.tobytes() if hasattr(value, "tobytes") else value
    return hashlib.sha256(data).hexdigest() if isinstance(data, bytes) else repr(value)
