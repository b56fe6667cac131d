"""Operations of training against torch's own counter, and against formulas by hand."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.utils.flop_counter import FlopCounterMode

import tiny
from composed import Composed
from rondo.algorithm import Client, Round
from rondo.config import ClientsConfig, TrainConfig
from rondo.engine.client.flops import Flops
from rondo.engine.client.trainer import CohortTrainer
from rondo.models.networks.adapted_layer import Site
from rondo.models.networks.adapted_network import AdaptedNetwork
from rondo.models.networks.network import Network
from rondo.models.networks.whole_network import WholeNetwork
from rondo.params import Select, add_client_axis, body, down, everything, head, up
from rondo.tasks.language.sequences import SequenceClassification
from rondo.tasks.language.text import TextExample
from tiny_federation import POISON, SIZES, config, make, population


def sentences(count: int, tokens: int, seed: int = 0) -> tuple[TextExample, ...]:
    g = torch.Generator().manual_seed(seed)
    ids = torch.randint(4, POISON, (count, tokens), generator=g).tolist()
    return tuple(TextExample(tuple(row), row[0] % 3, (0,) * tokens) for row in ids)


TASK = SequenceClassification(tiny.tokenizer(), ["text"], "label", ("a", "b", "c"), 48)


def adapted(module: nn.Module, *layers: str) -> AdaptedNetwork:
    sites = tiny.sites(module, layers)
    return AdaptedNetwork(module, sites, tiny.head_names(module), tiny.factors(sites, 1, dtype=torch.float32))


MODELS = {
    "bert": lambda: adapted(tiny.bert(attn_implementation="eager"), "query", "value"),
    "bert, feed-forward": lambda: adapted(tiny.bert(attn_implementation="eager"), "intermediate.dense"),
    "gpt2": lambda: adapted(tiny.gpt2(), "c_attn"),
    "distilbert": lambda: adapted(tiny.distilbert(), "q_lin", "lin2"),
}


def trained(network: Network, task: Any, rows: Sequence[Any], select: Select, **options: Any) -> tuple[int, int | None]:
    """Operations of an epoch by torch's counter, and by ours."""
    inputs, _ = task.collate(rows[:1])
    network(add_client_axis(network.initial), {}, inputs)  # as a run tries its network first
    flops = Flops.of(network, network.initial, task, rows[:3])
    train = TrainConfig(**{"batch_size": 4, "local_epochs": 1, "optimizer": "sgd", **options})
    client = Client("ann", len(rows))
    trainer = CohortTrainer(
        network, task, (client,), (rows,), Round(0, 1, 0, 1), train, ClientsConfig(), {}, flops=flops
    )
    with FlopCounterMode(display=False) as counter:
        trainer.fit(add_client_axis(network.initial), train=select)
    return counter.get_total_flops(), trainer.operations(0)


@pytest.mark.parametrize("select", [everything, up | head, down, up, head], ids=["all", "up+head", "A", "B", "head"])
@pytest.mark.parametrize("name", MODELS)
@pytest.mark.parametrize("tokens", [9, 40])
@pytest.mark.sweep(5)
def test_training_of_factors_equals_torchs_counter(name: str, select: Select, tokens: int) -> None:
    """9 tokens are among the lengths that are tried, 40 are beyond them; batches of 4, 4 and 2 rows."""
    network = MODELS[name]()
    with torch.nn.attention.sdpa_kernel(torch.nn.attention.SDPBackend.MATH):
        theirs, ours = trained(network, TASK, sentences(10, tokens), select)
    assert ours == theirs > 0


@pytest.mark.parametrize("options", [{"micro_batch": 3}, {"local_epochs": 2}, {"local_epochs": None, "local_steps": 5}])
def test_parts_epochs_and_steps_count(options: dict[str, Any]) -> None:
    theirs, ours = trained(MODELS["bert"](), TASK, sentences(10, 9), everything, **options)
    assert ours == theirs > 0


class Numbers:
    """Rows (x, y) of numbers or pictures, and the squared error."""

    precision = torch.float32
    least_squares = None
    augments = False

    def lengths(self, example: Any) -> tuple[int, ...]:
        return ()

    def sequences(self, example: Any) -> tuple[Any, ...]:
        return (example,)

    def trained(self, examples: Sequence[Any]) -> Sequence[Any]:
        return examples

    def opening(self, example: Any, size: int) -> Any:
        return example

    def collate(self, rows: Sequence[Any]) -> tuple[dict[str, Tensor], dict[str, Tensor]]:
        return {"input": torch.stack([r.x for r in rows])}, {"y": torch.stack([r.y for r in rows])}

    def augment(self, inputs: Any, counts: Any, generators: Any) -> Any:
        return inputs

    def loss(self, output: Tensor, targets: Any) -> tuple[Tensor, Tensor]:
        return (output - targets["y"]).square().sum(-1), torch.ones(len(output))


class Row:
    cost = 1

    def __init__(self, *shape: int) -> None:
        self.x, self.y = torch.ones(shape), torch.zeros(3)


def mlp() -> nn.Sequential:
    return nn.Sequential(nn.Linear(5, 7), nn.Tanh(), nn.Linear(7, 3))


@pytest.mark.parametrize(
    ("select", "backward"),
    [
        (up, 3 * 7 + 7 * 2),  # through the upper layer, to B
        (down, 3 * 7 + 7 * 2 + 2 * 5),  # and through B to A
        (down | up, 3 * 7 + 2 * 7 * 2 + 2 * 5),
    ],
    ids=["B", "A", "both"],
)
def test_adapted_layer_by_hand(select: Select, backward: int) -> None:
    """W (7, 5) is frozen with nothing below, so its backward pass costs nothing; the upper layer (3, 7) is frozen."""
    site = Site("0", "linear", (7, 5), 2, 1.0, 0.0)
    network = AdaptedNetwork(mlp(), [site], [], {"0.A": torch.ones(2, 5), "0.B": torch.ones(7, 2)})
    forward = 7 * 5 + 7 * 2 + 2 * 5 + 3 * 7
    theirs, ours = trained(network, Numbers(), [Row(5) for _ in range(6)], select)
    assert ours == theirs == 6 * 2 * (forward + backward)


@pytest.mark.parametrize(
    ("select", "backward"),
    [
        (everything, 7 * 5 + 2 * 3 * 7),  # nothing is below the first layer
        (head, 3 * 7),
        (body, 7 * 5 + 3 * 7),
    ],
    ids=["all", "head", "body"],
)
def test_whole_layers_by_hand(select: Select, backward: int) -> None:
    network = WholeNetwork(mlp(), ["0.weight", "0.bias", "2.weight", "2.bias"], ["2.weight", "2.bias"])
    theirs, ours = trained(network, Numbers(), [Row(5) for _ in range(6)], select)
    assert ours == theirs == 6 * 2 * (7 * 5 + 3 * 7 + backward)


def cnn() -> nn.Sequential:
    return nn.Sequential(
        nn.Conv2d(3, 4, 3, padding=1),
        nn.ReLU(),
        nn.Conv2d(4, 6, 3, stride=2),
        nn.ReLU(),
        nn.ConvTranspose2d(6, 2, 2, stride=2),
        nn.Flatten(),
        nn.Linear(72, 3),
    )


@pytest.mark.parametrize("first", [0, 2, 4, 6])
def test_convolutions_equal_torchs_counter(first: int) -> None:
    """``first``: the lowest layer that is trained."""
    module = cnn()
    names = [n for n, _ in module.named_parameters() if int(n[0]) >= first]
    theirs, ours = trained(WholeNetwork(module, names), Numbers(), [Row(3, 8, 8) for _ in range(6)], everything)
    assert ours == theirs > 0


def test_grouped_convolution_by_hand() -> None:
    """Torch's counter takes the backward pass of groups for that of a full convolution. The output is 6 x 6, a kernel
    meets half of the 4 channels, and nothing is below."""
    module = nn.Sequential(nn.Conv2d(4, 6, 3, groups=2), nn.Flatten(), nn.Linear(216, 3))
    network = WholeNetwork(module, [n for n, _ in module.named_parameters()])
    _, ours = trained(network, Numbers(), [Row(4, 8, 8) for _ in range(6)], everything)
    assert ours == 6 * 2 * (2 * 6 * 36 * 2 * 9 + 3 * 216 * 3)


def test_factors_merged_into_a_whole_network_count_per_step() -> None:
    """B A is made once per pass, whatever the number of rows."""
    site = Site("0", "linear", (7, 5), 2, 1.0, 0.0)
    factors = {"0.A": torch.ones(2, 5), "0.B": torch.ones(7, 2)}
    network = WholeNetwork(mlp(), ["2.weight"], sites=[site], factors=factors)
    theirs, ours = trained(network, Numbers(), [Row(5) for _ in range(6)], everything)
    assert ours == theirs > 0


def test_recurrent_layers_have_no_count() -> None:
    class Recurrent(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.layer, self.out = nn.LSTM(5, 4, batch_first=True), nn.Linear(4, 3)

        def forward(self, input: Tensor) -> Tensor:
            return self.out(self.layer(input)[0][:, -1])

    module = Recurrent()
    network = WholeNetwork(module, [n for n, _ in module.named_parameters()])
    assert Flops.of(network, network.initial, Numbers(), [Row(2, 5)]) is None  # type: ignore[arg-type]


def test_without_rows_there_is_no_count() -> None:
    network = MODELS["bert"]()
    assert Flops.of(network, network.initial, TASK, []) is None


# --- methods, and cohorts ------------------------------------------------------------------------------------------


def counted(name: str, cohort: int, **fields: Any) -> Composed:
    run = config(simulation={"cohort": cohort})
    sim = make(name, run=run, **fields)
    sim.flops = Flops.of(sim.network, sim.initial, sim.task, sim.population.sample(50))
    return sim


@pytest.mark.parametrize("name", ["fedit", "rolora", "fedrep", "per-fedavg", "scaffold", "apfl", "lora-a2"])
def test_cohort_counts_as_one_at_a_time(name: str) -> None:
    """Rows differ in length, so those of a cohort are padded further."""
    alone, together = counted(name, 1), counted(name, 3)
    for index in range(2):
        one, other = (sim.run_round(index)["client_flops"] for sim in (alone, together))
        assert one == other > 0


@pytest.mark.parametrize("name", ["fedit", "rolora", "ffa-lora", "fedrep", "per-fedavg", "scaffold", "ditto", "apfl"])
@pytest.mark.sweep(2)
def test_round_of_a_method_equals_torchs_counter(name: str) -> None:
    """Rows of one length, so that none is padded. Per-FedAvg's other variant goes through a graph a second time."""
    sim = counted(name, 1, **({"variant": "fo"} if name == "per-fedavg" else {}))
    rows = {"ann": sentences(6, 8), "bob": sentences(3, 8, 1), "cid": sentences(5, 8, 2)}
    people = population(SIZES)
    for client, some in rows.items():
        people.members[client] = type(people.members[client])(Client(client, len(some)), some, ())  # type: ignore[index]
    sim.population = people
    sim.measure()
    for index in range(2):
        with (
            FlopCounterMode(display=False) as counter,
            torch.nn.attention.sdpa_kernel(torch.nn.attention.SDPBackend.MATH),
        ):
            record = sim.run_round(index)
        assert record["client_flops"] == counter.get_total_flops() > 0


def test_taking_turns_saves_operations() -> None:
    """RoLoRA's rounds with frozen A do not compute its gradient (FLoRG's Table 8 has FFA-LoRA below FedIT)."""
    both, first = (counted(name, 3).run_round(0)["client_flops"] for name in ("fedit", "rolora"))
    assert first < both
    frozen = counted("ffa-lora", 3).run_round(0)["client_flops"]
    assert frozen == first


def test_client_without_a_count_leaves_the_round_without_one() -> None:
    sim = counted("fedit", 3)
    sim.flops = None
    assert sim.run_round(0)["client_flops"] is None
