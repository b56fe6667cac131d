"""Faults of clients, rehearsed: who is befallen by what in a round, and who answers in time.

All of it follows from the configuration and the run's seed before anyone trains, so that a client which is lost need
not train, and those who are left train as if it had not been sampled.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Sequence
from dataclasses import replace
from typing import get_args

import torch

from rondo.algorithm import Client, ClientFailed, Round, Upload
from rondo.config.schema import FaultKind, FaultsConfig, RunConfig, TrainConfig
from rondo.engine.transport import Turnout
from rondo.engine.wire import Envelope, encode_upload

KINDS: tuple[FaultKind, ...] = get_args(FaultKind)

_DETAIL = {
    "crash": "it never answered",
    "hang": "it never ended",
    "out_of_memory": "a fault that was rehearsed",
    "nonfinite_loss": "a fault that was rehearsed",
}


def befalls(config: FaultsConfig, client: Client, round: Round) -> FaultKind | None:
    """What befalls ``client`` in ``round``: the first kind that names it, else one drawn by their probabilities."""
    rates = []
    for kind in KINDS:
        value: float | list[str] = getattr(config, kind)
        if isinstance(value, list):
            if client.id in value:
                return kind
            rates.append(0.0)
        else:
            rates.append(value)
    if not any(rates):
        return None
    draw = float(torch.rand((), generator=round.generator("faults", client.id), dtype=torch.float64))
    for kind, rate in zip(KINDS, rates, strict=True):
        draw -= rate
        if draw < 0:
            return kind
    return None


def turnout(config: RunConfig, chosen: Sequence[Client], round: Round, failed: Collection[str] = ()) -> Turnout:
    """Who of ``chosen`` answers in time. ``failed``: clients that are known by now to have come to nothing; others who
    were selected beyond ``per_round`` take their places."""
    clients, faults = config.clients, config.faults
    if faults == FaultsConfig() and clients.deadline is None and not clients.over_select:
        return Turnout(tuple(c for c in chosen if c.id not in failed), {}, {})
    kinds = {c.id: befalls(faults, c, round) for c in chosen}
    wanted = clients.per_round if clients.over_select and clients.per_round else len(chosen)
    lost: dict[str, ClientFailed] = {}
    faulty: dict[str, FaultKind] = {}
    counted: list[str] = []
    for client in sorted(chosen, key=lambda c: (_seconds(config, c, kinds[c.id]), _place(c, round), c.id)):
        kind, seconds = kinds[client.id], _seconds(config, client, kinds[client.id])
        if client.id in failed:
            continue
        if kind in _DETAIL and not (kind == "hang" and clients.deadline is not None):
            lost[client.id] = ClientFailed(client.id, kind, _DETAIL[kind])
        elif clients.deadline is not None and seconds > clients.deadline:
            took = "it never ended" if math.isinf(seconds) else f"{seconds:g} s"
            lost[client.id] = ClientFailed(client.id, "deadline", f"{took}, waited for {clients.deadline:g} s")
        elif kind in ("corrupt_upload", "wrong_round", "late"):
            faulty[client.id] = kind
        elif len(counted) < wanted:
            counted.append(client.id)
            if kind == "duplicate":
                faulty[client.id] = kind
        else:
            lost[client.id] = ClientFailed(client.id, "round_closed", f"{wanted} others came first")
    return Turnout(tuple(c for c in chosen if c.id in counted), lost, faulty)


def _seconds(config: RunConfig, client: Client, kind: FaultKind | None) -> float:
    """Simulated seconds that a client's training takes."""
    if kind == "hang":
        return math.inf
    usual = config.faults.seconds_per_example * _examples(config.train, client)
    return usual * config.faults.slow_factor if kind == "slow" else usual


def _examples(train: TrainConfig, client: Client) -> int:
    """How many examples a client trains on in a round, repetitions counted."""
    if train.local_steps is not None:
        return train.local_steps * min(train.batch_size, client.num_examples)
    return (train.local_epochs or 1) * client.num_examples


def _place(client: Client, round: Round) -> float:
    """Who of those that take equally long comes first."""
    return float(torch.rand((), generator=round.generator("arrival", client.id), dtype=torch.float64))


def sent(kind: FaultKind, upload: Upload, envelope: Envelope, round: Round) -> bytes:
    """What arrives of ``upload`` where ``kind`` befell it."""
    if kind == "wrong_round":
        return encode_upload(upload, replace(envelope, round=envelope.round - 1))
    data = encode_upload(upload, envelope)
    if kind != "corrupt_upload":
        return data
    damaged = bytearray(data)
    generator = round.generator("corruption", upload.client.id)
    for place in torch.randint(0, 8 * len(data), (16,), generator=generator).tolist():
        damaged[place // 8] ^= 1 << place % 8
    return bytes(damaged)
