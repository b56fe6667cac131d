"""Hidden states kept from below the lowest adapted layer: they save time and change nothing, or are refused."""

from __future__ import annotations

import copy
import math
import tempfile
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
import transformers
from torch import Tensor, nn

import tiny
from composed import Composed
from rondo import algorithms
from rondo.algorithm import Client, Round
from rondo.config import load
from rondo.data.members import Member
from rondo.data.population import Population
from rondo.models.networks.adapted_network import AdaptedNetwork
from rondo.models.networks.network import rounding
from rondo.models.shortcuts.choose import first_token_only
from rondo.models.shortcuts.prefix import Prefix, ShortcutRefused
from rondo.params import Params, add_client_axis
from rondo.runs.assembling.assemble import assemble
from rondo.tasks.language.causal_lm import CausalLM
from rondo.tasks.language.sequences import SequenceClassification
from rondo.tasks.language.text import TextExample
from rondo.tasks.task import Task
from small_runs import reviews, save_tokenizer, settings, write_rows

LOTS = 2**30
SIZES = {"ann": 5, "bob": 9, "cid": 2}
MODELS: dict[str, tuple[Callable[[], Any], tuple[str, ...]]] = {
    "bert": (tiny.bert, ("query", "intermediate.dense")),
    "roberta": (tiny.roberta, ("value",)),
    "distilbert": (tiny.distilbert, ("q_lin", "lin2")),
    "gpt2": (tiny.gpt2, ("c_attn",)),
    "gpt2-lm": (tiny.gpt2_lm, ("c_attn", "c_fc")),
    "llama-lm": (tiny.llama_lm, ("q_proj", "down_proj")),
}
DEPTH = ("num_hidden_layers", "n_layers", "n_layer")


def deeper(make: Callable[[], Any], layers: int = 3) -> Any:
    """A model of :mod:`tiny` with more layers."""
    config = copy.deepcopy(make().config)
    setattr(config, next(n for n in DEPTH if n in config.to_dict()), layers)
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(3)
        return type(make())(config).eval().double()


def task_of(module: Any) -> Task:
    if "LM" in type(module).__name__ or "CausalLM" in type(module).__name__:
        return CausalLM(tiny.tokenizer("gpt"), "text", (), None, 32)
    return SequenceClassification(tiny.tokenizer("bert"), ["text"], "label", ("a", "b", "c"), 32)


def examples(client: str, count: int, *, segments: bool, language: bool) -> tuple[TextExample, ...]:
    """Rows of 3 to 14 tokens."""
    g = Round(0, 1, 0, 0).generator(client)
    rows = []
    for _ in range(count):
        size = int(torch.randint(3, 15, (1,), generator=g))
        ids = tuple(torch.randint(4, tiny.VOCABULARY, (size,), generator=g).tolist())
        rows.append(TextExample(ids, ids if language else ids[0] % 3, (0,) * size if segments else None))
    return tuple(rows)


def population(module: Any) -> Population:
    language = isinstance(task_of(module), CausalLM)
    segments = type(module).__name__.startswith("Bert")
    members = {
        n: Member(Client(n, s), examples(n, s, segments=segments, language=language), ()) for n, s in SIZES.items()
    }
    return Population(members, (), {})


def layer_list(module: Any) -> tuple[str, nn.ModuleList]:
    return next((n, m) for n, m in module.named_modules() if isinstance(m, nn.ModuleList))


def upper_sites(module: Any, endings: Sequence[str], start: int, dropout: float = 0.0) -> Any:
    path, _ = layer_list(module)
    chosen = tiny.sites(module, endings, dropout=dropout)
    return tuple(s for s in chosen if int(s.path.removeprefix(path + ".").split(".")[0]) >= start)


def simulation(kind: str, start: int, *, dropout: float = 0.0, cohort: Any = "auto") -> Composed:
    make, endings = MODELS[kind]
    module = deeper(make)
    sites = upper_sites(module, endings, start, dropout)
    network = AdaptedNetwork(module, sites, () if kind.endswith("lm") else tiny.head_names(module))
    initial = tiny.factors(sites, 1) | network.initial_head
    train = {"lr": 5e-3, "batch_size": 4, "local_epochs": 2}
    config = load({"seed": 5, "rounds": 4, "train": train, "simulation": {"cohort": cohort}})
    return Composed(algorithms.get("fedit"), network, task_of(module), population(module), config, initial)


def counted(sim: Composed, start: int) -> Counter[int]:
    """The number of rows that each layer below ``start`` computes; call it before a prefix is made."""
    rows: Counter[int] = Counter()
    for number, layer in enumerate(list(layer_list(sim.network.module)[1])[:start]):
        original = layer.forward

        def forward(*args: Any, number: int = number, original: Callable[..., Any] = original, **kwargs: Any) -> Any:
            hidden = args[0] if args else kwargs["hidden_states"]
            rows[number] += hidden.shape[0]
            return original(*args, **kwargs)

        layer.forward = forward  # type: ignore[method-assign]
    return rows


def with_prefix(sim: Composed, memory: int = LOTS, disk: int = 0) -> Prefix:
    sim.prefix = Prefix(sim.network, sim.task, memory=memory, disk=disk)
    sim.prefix.check({**sim.network.initial_head, **sim.initial}, sim.population.sample(2))
    return sim.prefix


def assert_same(found: Params, expected: Params, allowed: float = 1e-12) -> None:
    assert found.keys() == expected.keys()
    for name, tensor in found.items():
        torch.testing.assert_close(tensor, expected[name], rtol=0, atol=allowed)


@pytest.mark.sweep(3)
@pytest.mark.parametrize("start", [1, 2])
@pytest.mark.parametrize("kind", MODELS)
def test_run_with_prefix_equals_run_without(kind: str, start: int) -> None:
    plain, short = simulation(kind, start), simulation(kind, start)
    prefix = with_prefix(short)
    assert prefix.layers == start
    for t in range(2):
        for sim in (plain, short):
            assert sim.run_round(t)["failed"] == []
        assert_same(short.state.params, plain.state.params)
    assert [n for n, t in plain.state.params.items() if not t.equal(plain.initial[n])], "nothing was trained"


@pytest.mark.parametrize("cohort", [1, 2])
def test_prefix_keeps_every_clients_upload(cohort: int) -> None:
    plain, short = (simulation("bert", 1, dropout=0.3, cohort=cohort) for _ in range(2))
    with_prefix(short)
    clients = tuple(plain.population.clients)
    uploads = []
    for sim in (plain, short):
        shared = tuple(sim.algorithm.broadcast(sim.state, c, sim.round(0)) for c in clients)
        uploads.append(sim.train(clients, sim.round(0), shared))
    for one, other in zip(*uploads, strict=True):
        assert one.upload is not None
        assert other.upload is not None
        assert_same(one.upload.params, other.upload.params)


@pytest.mark.parametrize(("memory", "disk"), [(0, 0), (0, LOTS), (LOTS, 0), (1400 * 8, 0), (1400 * 8, 1400 * 8)])
def test_prefix_budgets_change_no_bit(memory: int, disk: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """And leave no file, not even when the process is killed."""
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    reference, sim = simulation("bert", 2), simulation("bert", 2)
    with_prefix(reference)
    prefix = with_prefix(sim, memory, disk)
    for t in range(2):
        reference.run_round(t)
        sim.run_round(t)
    assert_same(sim.state.params, reference.state.params, 0)
    kept = sum(t.numel() * t.element_size() for t in prefix._kept.values())
    assert kept <= memory + disk
    if max(memory, disk) == LOTS:
        assert set(prefix._kept) == set(SIZES)
    elif memory == disk == 0:
        assert not prefix._kept
    else:
        assert 0 < len(prefix._kept) < len(SIZES) or (memory and disk)
    assert (prefix._spill._mapped is not None) == (disk > 0)
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("kind", ["bert", "gpt2", "llama-lm"])
def test_lower_layers_are_computed_once_per_example(kind: str) -> None:
    sim = simulation(kind, 2)
    rows = counted(sim, 2)
    with_prefix(sim)
    sim.cohorts.plan(sim.population.clients)  # measures memory, with the whole model
    rows.clear()
    for t in range(3):
        sim.run_round(t)
    assert rows == {0: sum(SIZES.values()), 1: sum(SIZES.values())}
    without = simulation(kind, 2)
    rows = counted(without, 2)
    without.cohorts.plan(without.population.clients)
    rows.clear()
    without.run_round(0)
    assert rows == {0: 2 * sum(SIZES.values()), 1: 2 * sum(SIZES.values())}


def test_lower_layers_without_budget_run_once_per_round() -> None:
    sim = simulation("bert", 2)
    rows = counted(sim, 2)
    with_prefix(sim, 0, 0)
    sim.cohorts.plan(sim.population.clients)
    rows.clear()
    for t in range(3):
        sim.run_round(t)
    assert rows[0] == rows[1] == 3 * sum(SIZES.values())


def scored_simulation(memory: int, tests: Sequence[int] = (7, 4)) -> tuple[Composed, Counter[int]]:
    """A run with two test sets of so many rows, and the rows that its lower layers have computed since."""
    sim = simulation("bert", 2)
    rows = counted(sim, 2)
    first, more = (examples(f"test {n}", n, segments=True, language=False) for n in tests)
    sim.population = replace(sim.population, test=first, more_tests={"more": more})
    prefix = with_prefix(sim, memory)
    prefix.reserve(sim.population.tests)
    sim.cohorts.plan(sim.population.clients)
    rows.clear()
    return sim, rows


def test_lower_layers_are_computed_once_per_test_row() -> None:
    sim, rows = scored_simulation(LOTS)
    plain = replace(sim, prefix=None)
    plain.network = simulation("bert", 2).network
    for t in range(3):
        sim.run_round(t)
        rows.clear()
        found = sim.score_newcomer(t + 1)
        assert rows[0] == (7 + 4 if t == 0 else 0)
        plain.state = sim.state
        expected = plain.score_newcomer(t + 1)
        assert found["global"] == pytest.approx(expected["global"], abs=1e-6)
        assert found["more_tests"]["more"] == pytest.approx(expected["more_tests"]["more"], abs=1e-6)


def test_memory_for_test_rows_hangs_on_nothing_that_was_computed_before() -> None:
    """A resumed run trains before it scores, and a server never trains: the same sets are kept, with the same bits."""
    bytes_per_token = 32 * 8
    tokens = [sum(e.cost for e in examples(f"test {n}", n, segments=True, language=False)) for n in (7, 4)]
    room = 2 * tokens[1] * bytes_per_token  # for the second alone
    early, rows = scored_simulation(room)
    late, _ = scored_simulation(room)
    for sim in (early, late):
        assert sim.prefix is not None
        assert set(sim.prefix._tests) == {"more"}
        assert sim.prefix._memory == room - tokens[1] * bytes_per_token
    early.score_newcomer(0)
    assert rows[0] == 7 + 4
    for sim in (early, late):
        sim.run_round(0)
    rows.clear()
    assert early.score_newcomer(1) == late.score_newcomer(1)
    assert rows[0] == 7


def test_rows_of_one_length_do_not_hide_that_lower_layers_read_padding(tmp_path: Path) -> None:
    """Test rows may be padded where training rows are not. FNet mixes tokens without a mask."""
    size = save_tokenizer(tmp_path / "fnet", pairs=True)
    layers = {"hidden_size": 32, "num_hidden_layers": 4, "intermediate_size": 64, "max_position_embeddings": 64}
    config = transformers.FNetConfig(vocab_size=size, pad_token_id=0, **layers)
    transformers.FNetForSequenceClassification(config).save_pretrained(tmp_path / "fnet")
    run = settings(
        tmp_path / "fnet",
        data={"source": str(write_rows(tmp_path / "rows.csv", reviews(24, 1)))},
        adapter={"target_modules": ["intermediate.dense"], "layers_to_transform": [2, 3]},
        train={"precision": "exact"},  # its Fourier transform has no bfloat16
    )
    run["data"]["test_source"] = str(
        write_rows(tmp_path / "test.csv", [{**reviews(1)[0], "text": "good"}, *reviews(2)])
    )
    ready = assemble(load(run), "cpu")
    ready.keep_tests()
    assert len({e.cost for member in ready.population.members.values() for e in member.train}) == 1
    assert ready.prefix is not None
    assert ready.prefix.of_test("test", ready.population.test) is None
    assert ready.prefix._memory == 2**30


def test_scores_of_other_rows_use_the_whole_model() -> None:
    plain, short = simulation("bert", 2), simulation("bert", 2)
    with_prefix(short)
    rows = plain.population.members["bob"].train
    for sim in (plain, short):
        sim.run_round(0)
    scores = [sim.scores(*sim.newcomer(1), rows) for sim in (plain, short)]
    assert scores[0] == pytest.approx(scores[1], abs=1e-6)


# Refusals


def refusal(module: Any, sites: Any, task: Any = None) -> str:
    network = AdaptedNetwork(module, sites, ())
    with pytest.raises(ShortcutRefused) as caught:
        Prefix(network, task or task_of(module), memory=LOTS, disk=0)
    return str(caught.value)


def test_adapted_lowest_layer_leaves_no_prefix() -> None:
    module = deeper(tiny.bert)
    assert "lowest layer is adapted" in refusal(module, tiny.sites(module, ("query",)))


def test_adapters_outside_a_layer_list_leave_no_prefix() -> None:
    module = deeper(tiny.bert)
    sites = (*upper_sites(module, ("query",), 2), *tiny.sites(module, ("pooler.dense",)))
    assert "bert.pooler.dense is not in a list of layers" in refusal(module, sites)
    images = tiny.convolutions()
    assert "not in a list" in refusal(images, tiny.sites(images, ("first",)), object())


def test_lower_layer_in_training_mode_leaves_no_prefix() -> None:
    module = deeper(tiny.bert)
    network = AdaptedNetwork(module, upper_sites(module, ("query",), 2), ())
    module.bert.encoder.layer[0].attention.train()
    with pytest.raises(ShortcutRefused, match="training mode"):
        Prefix(network, task_of(module), memory=LOTS, disk=0)


class Layer(nn.Module):
    def __init__(self, width: int) -> None:
        super().__init__()
        self.dense = nn.Linear(width, width)

    def forward(self, hidden_states: Tensor) -> Tensor:
        output: Tensor = hidden_states + torch.tanh(self.dense(hidden_states))
        return output


class Stack(nn.Module):
    """Layers whose outputs are all read, or only the last one's; or the lowest reads padding too (FNet, ConvBERT)."""

    def __init__(self, reads: str) -> None:
        super().__init__()
        self.reads = reads
        self.embed = nn.Embedding(tiny.VOCABULARY, 8)
        self.layers = nn.ModuleList(Layer(8) for _ in range(3))
        self.others = nn.ModuleList(Layer(8) for _ in range(2))
        self.out = nn.Linear(8, 3)

    def forward(self, input_ids: Tensor, **_: Any) -> SimpleNamespace:
        x, outputs = self.embed(input_ids), []
        for layer in self.layers:
            x = layer(x)
            if self.reads == "padding" and not outputs:
                x = x + x.mean(1, keepdim=True)
            outputs.append(x)
        if self.reads == "all":
            x = x + sum(outputs)
        for layer in self.others:
            x = layer(x)
        first = x[:, 0] if self.reads == "padding" else x.mean(1)
        return SimpleNamespace(logits=self.out(first))


def stack(reads: str, endings: Sequence[str], lengths: tuple[int, int] = (3, 3)) -> Prefix:
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        module = Stack(reads).double()
    sites = tiny.sites(module, endings)
    network = AdaptedNetwork(module, sites, ())
    task = SequenceClassification(tiny.tokenizer("gpt"), ["text"], "label", ("a", "b", "c"), 32)
    prefix = Prefix(network, task, memory=LOTS, disk=0)
    examples = [TextExample((5, 6, 7, 4, 9)[:n], label) for label, n in enumerate(lengths)]
    inputs, _ = task.collate(examples)
    params = add_client_axis(tiny.factors(sites, 1))
    before = network(params, {}, inputs)
    try:
        prefix.check(tiny.factors(sites, 1), examples)
    finally:  # accepted or refused, the model is whole outside
        assert network(params, {}, inputs).equal(before)
    return prefix


def test_model_reading_lower_layers_elsewhere_is_refused() -> None:
    assert stack("last", ("layers.2.dense",)).layers == 2
    with pytest.raises(ShortcutRefused, match="in other ways"):
        stack("all", ("layers.2.dense",))


def test_lower_layers_that_read_padding_are_refused() -> None:
    """A row's states are computed beside others than it is trained with."""
    assert stack("padding", ("layers.2.dense",)).layers == 2
    with pytest.raises(ShortcutRefused, match="in other ways"):
        stack("padding", ("layers.2.dense",), (5, 2))


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.bfloat16])
def test_check_allows_rounding_and_nothing_beyond(dtype: torch.dtype, monkeypatch: pytest.MonkeyPatch) -> None:
    """Relative to the logits' norm, and by the type of the body, whatever that of the logits. NaN is no rounding."""
    prefix = stack("last", ("layers.2.dense",))
    prefix.network.module.to(dtype)
    allowed = torch.finfo(dtype).eps ** 0.5

    def accepts(norm: float, together: float, alone: float) -> bool:
        outputs = iter(torch.tensor([[norm, 0.0], [norm, together * norm], [norm, alone * norm]]).double())
        monkeypatch.setattr(AdaptedNetwork, "__call__", lambda *_: next(outputs))
        try:
            prefix.check({}, [TextExample((5, 6), 0)])
        except ShortcutRefused:
            return False
        return True

    for norm in (0.01, 1.0, 50.0):
        assert (accepts(norm, 0.0, 0.9 * allowed), accepts(norm, 0.0, 1.1 * allowed)) == (True, False)
        assert (accepts(norm, 9e-5, 0.0), accepts(norm, 1.1e-4, 0.0)) == (True, False)
    assert not accepts(1.0, math.nan, 0.0)
    assert not accepts(1.0, 0.0, math.nan)


def test_shortcuts_do_not_hang_on_the_rows_where_the_body_is_of_bfloat16() -> None:
    """A head of float32 hides the type of its body: layers were computed anew for some rows and kept for others."""
    for seed in range(8):
        module = deeper(tiny.bert).to(torch.bfloat16)
        sites = upper_sites(module, ("query",), 2)
        network = AdaptedNetwork(module, sites, tiny.head_names(module))
        seen = {n: t.float() for n, t in {**network.initial_head, **tiny.factors(sites, 1)}.items()}
        task, g = task_of(module), torch.Generator().manual_seed(seed)
        rows = [tuple(torch.randint(4, tiny.VOCABULARY, (n,), generator=g).tolist()) for n in (24, 3)]
        trial = [TextExample(ids, 0, (0,) * len(ids)) for ids in rows]
        inputs, _ = task.collate(trial)
        assert network(add_client_axis(seen), {}, inputs).dtype == torch.float32
        first_token_only(network, seen, inputs)
        Prefix(network, task, memory=LOTS, disk=0).check(seen, trial)


def test_weights_kept_in_a_byte_do_not_tell_how_ways_are_rounded() -> None:
    network = stack("last", ("layers.2.dense",)).network
    before = rounding(network)
    kept = nn.Parameter(torch.zeros(2).to(torch.float8_e4m3fn), requires_grad=False)
    network.module.register_parameter("kept", kept)
    assert rounding(network) == before == torch.finfo(torch.float64).eps


def test_prefix_with_a_second_list_of_layers() -> None:
    """With adapters in the second list alone, the prefix ignores the first list."""
    assert stack("all", ("others.1.dense",)).layers == 1
    with pytest.raises(ShortcutRefused, match="several lists"):
        stack("last", ("layers.1.dense", "others.1.dense"))
