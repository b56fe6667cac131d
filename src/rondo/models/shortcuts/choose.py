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
from rondo.tasks.language.causal_lm import CausalLM
from rondo.tasks.language.language_model import LanguageModel
from rondo.tasks.language.seq2seq_lm import Seq2SeqLM
from rondo.tasks.language.token_store import TextExample
from rondo.tasks.task import Task

SAMPLE = 256
"""Rows to choose from: a shortened model is tried on two of them."""
_TRIED_TOKENS = 64
"""Their largest length if every token has logits: longer rows would take more memory than the rest of the run. A
classifier's rows stay whole, because it may read their ends."""
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
    trial = telling(examples, cut=isinstance(task, LanguageModel))
    if not trial:
        return Shortened()
    device = network.device
    seen = {n: t.to(device) for n, t in network.initial.items()}
    inputs = {n: t.to(device) for n, t in task.collate(trial)[0].items()}
    all_tokens = all_logits = apart = prefix = no_prefix = None
    try:
        first_token_only(network, seen, inputs)
    except AllTokensMatter as reason:
        all_tokens = str(reason)
    try:
        if not config.reuse_prefix:
            raise PrefixRefused("simulation.reuse_prefix is off")
        if isinstance(task, Seq2SeqLM):
            raise PrefixRefused("an encoder's states and a decoder's would have to be kept for every row")
        memory, disk = config.prefix_memory_mb * 2**20, config.prefix_disk_mb * 2**20
        prefix = Prefix(network, task, memory=memory, disk=disk)
        prefix.check(seen, trial)
    except PrefixRefused as reason:
        prefix, no_prefix = None, str(reason)
    try:
        if not packing:
            raise RowsApart("train.packing is off")
        if isinstance(task, Seq2SeqLM):
            raise RowsApart("a decoder attends from one sequence to another, which are not laid out together")
        if not isinstance(task, CausalLM):
            raise RowsApart("only a language model's rows are tried")
        lay_end_to_end(network, task, seen, trial)
    except RowsApart as reason:
        apart = str(reason)
    try:
        if not isinstance(task, LanguageModel):
            raise LogitsNeeded("only a language model has logits of a vocabulary")
        task.output = split_off(network, seen, inputs)
    except LogitsNeeded as reason:
        all_logits = str(reason)
    return Shortened(prefix, no_prefix, all_tokens, all_logits, apart)


def telling(examples: Sequence[TextExample], *, cut: bool) -> tuple[TextExample, ...]:
    """The longest and the shortest example, so that the first token is not the last and some rows are padded. ``cut``
    limits them to ``_TRIED_TOKENS`` tokens and to half as many."""
    if not examples:
        return ()
    by_length = sorted(examples, key=lambda e: e.cost)
    longest, shortest = by_length[-1], by_length[0]
    if cut:
        longest, shortest = longest.opening(_TRIED_TOKENS), shortest.opening(_TRIED_TOKENS // 2)
    return (longest,) if longest == shortest else (longest, shortest)
