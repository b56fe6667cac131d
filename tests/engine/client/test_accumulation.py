"""A step whose rows are in several forward passes equals one with all rows in one, for every method, in less memory."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from test_cohorts import ADAMW, EXACT, assert_law, config, make, trained

import rondo
import tiny
from rondo import algorithms
from rondo.engine.client.plain_step import mean_loss, split
from rondo.errors import ConfigError
from rondo.models.networks.adapted_network import AdaptedNetwork
from rondo.models.networks.rows import Rows
from rondo.models.shortcuts.choose import split_off
from rondo.params import Params
from rondo.tasks.language.causal_lm import CausalLM
from rondo.tasks.language.text import TextExample

FAST = ("fedit", "florg")
SLOW = pytest.mark.slow


@pytest.mark.parametrize("micro", [1, 3])
@pytest.mark.parametrize("name", [n if n in FAST else pytest.param(n, marks=SLOW) for n in algorithms.names()])
def test_micro_batches_give_the_same_step(name: str, micro: int) -> None:
    """Batches of 4, and a last one of 1, 2 or 3: in parts of one row, or of three rows and one."""
    whole, parts = (make(name, run=config(**ADAMW, **extra)) for extra in ({}, {"micro_batch": micro}))
    assert_law(trained(parts, alone=False), trained(whole, alone=False), EXACT)


MODULE = tiny.gpt2_lm().double()
SITES = tiny.sites(MODULE, ("c_attn", "c_fc"))
NETWORK = AdaptedNetwork(MODULE, SITES, ())
ROW = st.lists(st.integers(4, tiny.VOCABULARY - 1), min_size=2, max_size=9)


@st.composite
def examples(draw: Any) -> TextExample:
    ids = draw(ROW)
    start = draw(st.integers(1, len(ids) - 1))
    return TextExample(tuple(ids), (-100,) * start + tuple(ids[start:]))


@pytest.mark.parametrize("own_output", [False, True], ids=["whole logits", "targets only"])
@settings(max_examples=25)
@given(batch=st.lists(st.lists(examples(), max_size=4), min_size=1, max_size=3).filter(any), size=st.integers(1, 4))
def test_loss_and_gradients_are_those_of_the_whole_batch(
    own_output: bool, batch: list[list[TextExample]], size: int
) -> None:
    task = CausalLM(tiny.tokenizer("llama"), "text", (), None, 32)
    layer, forward = MODULE.lm_head, MODULE.lm_head.forward
    if own_output:
        tensors = {n: t[0] for n, t in tiny.factors(SITES, 1, clients=1).items()}
        tried = task.collate([TextExample((4, 5), (4, 5))])[0]
        task = task.with_output(split_off(NETWORK, tensors, tried))

    def passed(groups: Any) -> Any:
        rows = Rows.of(groups, task)
        inputs, targets = task.collate([e for group in groups for e in group])

        def sums(seen: Params) -> Any:
            losses, counts = task.loss(NETWORK(seen, {}, inputs, None, rows), targets)
            return rows.sum(losses), rows.sum(counts.to(losses.dtype))

        return sums

    found = []
    try:
        for micro in (size, None):
            leaves = {n: t.requires_grad_() for n, t in tiny.factors(SITES, 1, clients=len(batch)).items()}
            loss = mean_loss([passed(part) for part in split(batch, micro)], leaves)
            (loss * torch.arange(1, 1 + len(batch))).sum().backward()
            found.append([loss.detach(), *(t.grad for t in leaves.values())])
    finally:
        layer.forward = forward
    for one, other in zip(*found, strict=True):
        torch.testing.assert_close(one, other, rtol=0, atol=1e-12)


@pytest.mark.parametrize(("micro", "most"), [(None, 4 * 4), (2, 2 * 4), (1, 4)])
def test_forward_pass_has_at_most_so_many_rows(micro: int | None, most: int) -> None:
    sim = make("fedit", run=config(**({} if micro is None else {"micro_batch": micro})))
    sim.measure()
    rows: list[int] = []
    sim.task.before = lambda examples: rows.append(len(examples))
    trained(sim, alone=False)
    assert max(rows) <= most
    assert sum(rows) == 2 * (3 + 9 + 6 + 1)


def test_cohorts_grow_as_passes_shrink() -> None:
    """As many clients train together as their passes, not their steps, have room for."""
    sim = make("fedit", run=config())
    cohorts = [sim.cohorts, replace(sim.cohorts, config=config(micro_batch=1))]
    clients = [m.client for m in sim.population.members.values()]
    assert [c._step(clients) for c in cohorts] == [4 * 14, 14]


@pytest.mark.parametrize("norm", ["batch", *(pytest.param(n, marks=SLOW) for n in ("batch-no-statistics", "group"))])
def test_network_that_normalises_by_the_batch_is_refused(norm: str, tmp_path: Any) -> None:
    run = {
        "rounds": 1,
        "algorithm": {"name": "fedavg"},
        "model": {"name": "builtin:resnet10", "norm": norm},
        "task": {"kind": "image-classification"},
        "data": {"max_train_rows": 20, "max_test_rows": 4},
        "partition": {"kind": "iid", "clients": 2},
        "train": {"micro_batch": 2, "batch_size": 4, "local_steps": 1},
        "evaluation": {"diagnostics_every": 0},
    }
    if norm == "group":
        assert rondo.run(run, run_dir=tmp_path / "run", device="cpu").summary["rounds"] == 1
    else:
        with pytest.raises(ConfigError, match=r"train\.micro_batch: the network normalises by the batch"):
            rondo.run(run, run_dir=tmp_path / "run", device="cpu")
