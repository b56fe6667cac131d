"""Choice of the shortcuts that a model allows: each is tried on real rows before the first round."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from rondo.config.schema import SimulationConfig
from rondo.models.networks.adapted_network import AdaptedNetwork
from rondo.models.shortcuts.end_to_end import RowsApart, lay_end_to_end
from rondo.models.shortcuts.first_token import AllTokensMatter, first_token_only
from rondo.models.shortcuts.prefix import Prefix, PrefixRefused
from rondo.models.shortcuts.target_logits import LogitsNeeded, split_off
from rondo.tasks.language.output_layer import OutputLayer
from rondo.tasks.task import Example, Shortcut, Task

SAMPLE = 256
"""Rows to choose from: a shortened model is tried on two of them."""
_TRIED_TOKENS = 64
"""Their largest length if every token has logits: longer rows would take more memory than the rest of the run."""
_NOTHING = "there is nothing to train on"
_ONLY_TEXT = "it is made for rows of tokens"


@dataclass(frozen=True)
class Shortened:
    """The layers computed once per example, and the reason for each shortcut that is not taken."""

    prefix: Prefix | None = None
    no_prefix: str | None = _NOTHING
    all_tokens: str | None = _NOTHING
    all_logits: str | None = _NOTHING
    apart: str | None = _NOTHING
    output: OutputLayer | None = None
    """The output layer that the network leaves to the task."""

    def record(self) -> dict[str, Any]:
        """The manifest's entry."""
        layers = self.prefix.layers if self.prefix is not None else 0
        return {
            "prefix": {"layers": layers, "reason": self.no_prefix},
            "first_token_only": {"on": self.all_tokens is None, "reason": self.all_tokens},
            "targets_only": {"on": self.all_logits is None, "reason": self.all_logits},
            "packing": {"on": self.apart is None, "reason": self.apart},
        }


def shorten(
    network: AdaptedNetwork, task: Task, examples: Sequence[Any], config: SimulationConfig, *, packing: bool
) -> Shortened:
    """Skip computation that the output does not need: tokens after the first at the end of a model that reads only the
    first, layers below the lowest adapted one, padding, logits of tokens without a target. ``examples`` are some of the
    task's. ``packing``: whether padding may be left out."""
    if not task.padded:
        return Shortened(None, _ONLY_TEXT, _ONLY_TEXT, _ONLY_TEXT, _ONLY_TEXT)
    trial = telling(task, examples)
    if not trial:
        return Shortened()
    device = network.device
    seen = {n: t.to(device) for n, t in network.initial.items()}
    inputs = {n: t.to(device) for n, t in task.collate(trial)[0].items()}
    all_tokens = all_logits = apart = prefix = no_prefix = output = None
    try:
        first_token_only(network, seen, inputs)
    except AllTokensMatter as reason:
        all_tokens = str(reason)
    try:
        if not config.reuse_prefix:
            raise PrefixRefused("simulation.reuse_prefix is off")
        _must_fit(task, "prefix", PrefixRefused)
        memory, disk = config.prefix_memory_mb * 2**20, config.prefix_disk_mb * 2**20
        prefix = Prefix(network, task, memory=memory, disk=disk)
        prefix.check(seen, trial)
    except PrefixRefused as reason:
        prefix, no_prefix = None, str(reason)
    try:
        if not packing:
            raise RowsApart("train.packing is off")
        _must_fit(task, "packing", RowsApart)
        lay_end_to_end(network, task, seen, trial)
    except RowsApart as reason:
        apart = str(reason)
    try:
        _must_fit(task, "targets_only", LogitsNeeded)
        output = split_off(network, seen, inputs)
    except LogitsNeeded as reason:
        all_logits = str(reason)
    return Shortened(prefix, no_prefix, all_tokens, all_logits, apart, output)


def _must_fit(task: Task, shortcut: Shortcut, refused: type[Exception]) -> None:
    """Raise ``refused`` with the reason for which ``shortcut`` does not go with the task's rows, if there is one."""
    if (reason := task.unfit.get(shortcut)) is not None:
        raise refused(reason)


def telling(task: Task, examples: Sequence[Example]) -> tuple[Example, ...]:
    """The longest and the shortest example, so that the first token is not the last and some rows are padded. The task
    may cut them to ``_TRIED_TOKENS`` tokens and to half as many; rows of one length to the whole and a half."""
    if not examples:
        return ()
    by_length = sorted(examples, key=lambda e: e.cost)
    longest = task.opening(by_length[-1], _TRIED_TOKENS)
    shortest = task.opening(by_length[0], _TRIED_TOKENS // 2)
    if shortest.cost == longest.cost:
        shortest = task.opening(by_length[0], max(1, longest.cost // 2))
    return (longest,) if longest == shortest else (longest, shortest)
