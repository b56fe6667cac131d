"""Behaviour on an accelerator that can be shown without one.

Torch's meta device stands in for it. It computes shapes but no numbers, so an operation that needs a number, for which
the host would have to wait, raises.
"""

from __future__ import annotations

import copy
import sys
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pytest
import torch

import tiny
from composed import Composed
from rondo import algorithms
from rondo.algorithm import Client, Round
from rondo.config import ClientsConfig, TrainConfig, load
from rondo.data.members import Member
from rondo.data.population import Population
from rondo.engine.client.cohorts import cohort_threads, divided, one_cohort
from rondo.engine.client.memory import Budget, budget
from rondo.engine.client.trainer import CohortTrainer
from rondo.models.kernels.precision import Kernels, apply, choose
from rondo.models.networks.adapted_network import AdaptedNetwork
from rondo.models.networks.rows import Rows, to_device
from rondo.models.shortcuts.choose import first_token_only, split_off
from rondo.models.shortcuts.prefix import Prefix
from rondo.params import Params, add_client_axis
from rondo.tasks.language.causal_lm import CausalLM
from rondo.tasks.language.sequences import SequenceClassification
from rondo.tasks.language.text import TextExample
from rondo.tasks.task import Task

CUDA = torch.device("cuda")
META = torch.device("meta")
SIZES = (9, 4, 6)
BATCH, EPOCHS = 4, 2
STEPS = EPOCHS * 3  # of the largest client; the others end earlier


def rows(count: int, seed: int, language: bool, even: bool) -> tuple[TextExample, ...]:
    g = torch.Generator().manual_seed(seed)
    examples = []
    for _ in range(count):
        size = 6 if even else int(torch.randint(3, 12, (1,), generator=g))
        ids = tuple(torch.randint(4, tiny.VOCABULARY, (size,), generator=g).tolist())
        examples.append(TextExample(ids, ids if language else ids[0] % 3, None if language else (0,) * size))
    return tuple(examples)


def ready(kind: str, dropout: float) -> tuple[AdaptedNetwork, Task, Params, Prefix]:
    """A model as a run prepares it, except for precision: with all shortcuts and an accelerator's attention."""
    make = tiny.bert if kind == "bert" else tiny.llama_lm
    config = copy.deepcopy(make().config)
    config.num_hidden_layers = 2
    module = type(make())(config)
    apply(module, Kernels(torch.float32, "torch", "torch, mask unread"))
    sites = tiny.sites(module, ("1.attention.self.query", "1.mlp.down_proj", "1.output.dense"), dropout=dropout)
    language = kind == "llama"
    network = AdaptedNetwork(module, sites, () if language else tiny.head_names(module))
    task: Task = CausalLM(tiny.tokenizer("gpt"), "text", (), None, 32)
    if not language:
        task = SequenceClassification(tiny.tokenizer(), ["text"], "label", ("a", "b", "c"), 32)
    seen = {n: t.float() for n, t in tiny.factors(sites, 1).items()} | network.initial_head
    inputs, _ = task.collate(rows(3, 0, language, even=False))
    if language:
        task = task.with_output(split_off(network, seen, inputs))
    else:
        first_token_only(network, seen, inputs)
    prefix = Prefix(network, task, memory=2**20, disk=0)
    prefix.check(seen, rows(3, 0, language, even=False))
    return network, task, seen, prefix


@pytest.mark.parametrize("even", [True, False])
@pytest.mark.parametrize("dropout", [0.0, 0.3])
@pytest.mark.parametrize("optimizer", ["adamw", "sgd"])
@pytest.mark.parametrize("kind", ["bert", "llama"])
@pytest.mark.sweep(4)
def test_training_steps_do_not_wait_for_the_device(kind: str, optimizer: Any, dropout: float, even: bool) -> None:
    network, task, seen, prefix = ready(kind, dropout)
    clients = tuple(Client(f"c{n}", n) for n in SIZES)
    examples = tuple(rows(n, n, kind == "llama", even) for n in SIZES)
    states = prefix.states("c0", examples[0])
    for client, client_rows in zip(clients[1:], examples[1:], strict=True):
        states = states | prefix.states(client.id, client_rows)
    network.module.to(META)
    steps = 0

    config = TrainConfig(batch_size=BATCH, local_epochs=EPOCHS, optimizer=optimizer, max_grad_norm=1.0)
    trainer = CohortTrainer(
        network, task, clients, examples, Round(0, 1, 0, 3), config, ClientsConfig(), {}, prefix, states
    )
    collate = task.collate

    def counted(batch: Any) -> Any:
        nonlocal steps
        steps += 1
        return collate(batch)

    task.collate = counted  # type: ignore[method-assign]
    params = {n: t.to(META) for n, t in add_client_axis(seen).items()}
    params = {n: t.expand(len(clients), *t.shape[1:]).contiguous() for n, t in params.items()}
    with pytest.raises(NotImplementedError, match="meta tensor"):  # reading the losses, once all steps are queued
        trainer.fit(params)
    assert steps == STEPS


@pytest.mark.parametrize("native", [True, False])
def test_kernels_chosen_for_an_accelerator(
    native: bool, bf16: Callable[[bool], None], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(torch.cuda, "is_bf16_supported", lambda including_emulation: native or including_emulation)
    bf16(not native)  # concerns the processor only
    exact = choose("exact", CUDA)
    assert exact == Kernels(torch.float32, "torch", "torch, mask unread")
    fast = choose("fast", CUDA)
    assert (fast.dtype, fast.linear) == (torch.bfloat16 if native else torch.float32, "torch")
    assert fast.attention == exact.attention
    assert (fast.reason is None) == native
    assert choose("fast", CUDA, quantized=True).dtype is torch.float32


def fake(total_memory: int, monkeypatch: pytest.MonkeyPatch) -> Any:
    """A stand-in for a network on an accelerator with this much memory."""
    monkeypatch.setattr(torch.cuda, "get_device_properties", lambda _: SimpleNamespace(total_memory=total_memory))
    return SimpleNamespace(device=CUDA, one_at_a_time=None)


def test_accelerator_trains_one_cohort_in_half_its_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    """One cohort at a time, as large as half of the accelerator's memory allows."""
    network = fake(80 * 2**30, monkeypatch)
    assert budget(network, CausalLM(tiny.tokenizer(), "text", (), None, 8), "auto") == Budget(
        40 * 2**30, 40 * 2**30, sys.maxsize
    )
    assert budget(network, CausalLM(tiny.tokenizer(), "text", (), None, 8), 100).total == 100 * 2**20
    assert cohort_threads(network) == 1
    clients = [Client(f"c{i}", 4) for i in range(64)]
    (cohort,) = divided(clients, "auto", workers=1, cost=10**6, cost_per_client=1024)
    assert cohort == tuple(clients)
    threads = torch.get_num_threads()
    with one_cohort(network):
        assert torch.get_num_threads() == threads  # the one cohort has all threads


def test_cohort_of_64_is_one_network_call(monkeypatch: pytest.MonkeyPatch) -> None:
    """A whole round on the accelerator's path, computed on the processor."""
    network, task, seen, _ = ready("bert", 0.0)
    members = {f"c{i}": Member(Client(f"c{i}", 4), rows(4, i, language=False, even=True), ()) for i in range(64)}
    run = load({"rounds": 1, "train": {"batch_size": 4, "local_steps": 2}})
    sim = Composed(algorithms.get("fedit"), network, task, Population(members, (), {}), run, seen)
    monkeypatch.setattr("rondo.engine.client.cohorts.budget", lambda *_: Budget(2**35, 2**35, sys.maxsize))
    sizes = []
    network.module.register_forward_pre_hook(
        lambda _, args, kwargs: sizes.append(len(kwargs["input_ids"])), with_kwargs=True
    )
    sim.measure()
    sizes.clear()
    assert sim.run_round(0)["clients"] == 64
    assert sizes == [256, 256]


def test_transfers_use_pinned_memory_and_do_not_block() -> None:
    """Without pinning the copy would block, whatever ``non_blocking`` says."""
    calls: list[Any] = []

    class Watched:
        def pin_memory(self) -> Watched:
            calls.append("pinned")
            return self

        def to(self, device: torch.device, *, non_blocking: bool = False) -> Watched:
            calls.append((device, non_blocking))
            return self

    to_device(Watched(), CUDA)  # type: ignore[arg-type]
    assert calls == ["pinned", (CUDA, True)]
    tensor = torch.ones(2)
    assert to_device(tensor, torch.device("cpu")) is tensor
    assert Rows((2, 1)).to(META).index.device == META
