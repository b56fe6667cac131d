"""The trial before the first round sees rows that mix in any way, refuses what does not run, and leaves no trace."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Sequence
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import tiny
from outcomes import told
from rondo.errors import ConfigError
from rondo.models.forms.trial import try_out
from rondo.models.loading.pretrained import fingerprint
from rondo.models.networks.adapted_network import AdaptedNetwork
from rondo.models.networks.call import RowsUnknown
from rondo.models.networks.rows import Rows
from rondo.params import add_client_axis, client_row
from rondo.tasks.language.causal_lm import CausalLM
from rondo.tasks.language.text import TextExample
from tiny_federation import Task

LAYER = ("layer",)


class Reader(nn.Module):
    """Embeds tokens, applies one layer in the way of ``reads``, and classifies the mean token."""

    base_model_prefix = "body"

    def __init__(self, reads: str) -> None:
        super().__init__()
        self.reads = reads
        self.embedding = nn.Embedding(40, 6)
        self.places = nn.Embedding(8, 6)
        self.layer = nn.Linear(6, 6)
        self.classifier = nn.Linear(6, 3)

    def forward(self, input_ids: Tensor, attention_mask: Tensor, **_: Any) -> SimpleNamespace:
        x = self.embedding(input_ids)
        seen = attention_mask.unsqueeze(-1).to(x.dtype)
        if self.reads == "places":  # as DeBERTa does: the same layer, without an axis of rows
            x = self.layer(x) + self.layer(self.places.weight[None]).mean(1, keepdim=True)
        elif self.reads == "tokens in one axis":  # as OPT does
            x = self.layer(x.flatten(0, 1)).view(x.shape)
        elif self.reads == "gathered tokens":  # as an expert gets them
            x = self.layer(x[input_ids % 2 == 0]).sum() + x
        elif self.reads == "tokens first":  # as XLNet does
            x = self.layer(x.transpose(0, 1)).transpose(0, 1)
        else:
            x = self.layer(x)
        mean = (x * seen).sum(1) / seen.sum(1)
        if self.reads == "padding":
            mean = x.mean(1)
        elif self.reads == "other rows":
            mean = mean + mean.mean(0)
        elif self.reads == "few rows" and len(mean) > 3:
            raise IndexError("too many rows")
        elif self.reads == "more than there is":
            torch.empty(2**50)
        elif self.reads == "no rows":
            raise IndexError("no rows at all")
        return SimpleNamespace(logits=self.classifier(torch.tanh(mean)))


def reader(reads: str, dropout: float = 0.0) -> AdaptedNetwork:
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        module = Reader(reads)
    return AdaptedNetwork(module, tiny.sites(module, LAYER, dropout=dropout), ("classifier.weight", "classifier.bias"))


def network(module: Any, endings: Sequence[str], dropout: float = 0.0) -> AdaptedNetwork:
    sites = tiny.sites(module, endings, dropout=dropout)
    return AdaptedNetwork(module, sites, tiny.head_names(module), tiny.factors(sites, 1, dtype=torch.float32))


def texts(count: int = 12) -> list[TextExample]:
    return [TextExample((2, *((5 + 7 * i + j) % 30 + 4 for j in range(i + 1)), 3), i % 3) for i in range(count)]


def reason(chosen: AdaptedNetwork, task: Any = None, examples: Sequence[TextExample] | None = None) -> str | None:
    chosen._factors = tiny.factors(list(chosen.sites.values()), 1, dtype=torch.float32)
    try_out("a model", chosen, task or Task(), texts() if examples is None else examples)
    return chosen.one_at_a_time


@pytest.mark.parametrize("dropout", [0.0, 0.3], ids=["plain", "dropout"])
@pytest.mark.parametrize("reads", ["rows", "tokens in one axis"])
def test_network_of_separate_rows_is_shared(reads: str, dropout: float) -> None:
    assert reason(reader(reads, dropout)) is None


@pytest.mark.parametrize(
    ("reads", "words"),
    [
        ("places", "the clients' rows cannot be told apart in layer (its input is not one row per example)"),
        ("gathered tokens", "the clients' rows cannot be told apart in layer (its input is not one row per example)"),
        ("tokens first", "the clients' rows cannot be told apart in layer (its input is not one row per example)"),
        ("padding", "a row's loss is not what it is when its client is alone in a call"),
        ("other rows", "a row's loss is not what it is when its client is alone in a call"),
        ("few rows", "a call of several clients fails: IndexError: too many rows"),
    ],
)
def test_rows_that_mix_train_one_at_a_time(reads: str, words: str) -> None:
    assert reason(reader(reads)) == words


@pytest.mark.parametrize(("reads", "minds"), [("rows", False), ("padding", True), ("few rows", False)])
def test_network_that_reads_padding_is_told(reads: str, minds: bool) -> None:
    chosen = reader(reads)
    with warnings.catch_warnings(record=True) as told:
        warnings.simplefilter("always")
        reason(chosen)
    assert chosen.minds_padding is minds
    assert ("scores depend on the batch size" in "\n".join(str(w.message) for w in told)) is minds
    same = [TextExample((2, 5 + i, 3), i % 3) for i in range(6)]
    even = reader(reads)
    reason(even, examples=same)
    assert not even.minds_padding  # no row is padded


@pytest.mark.parametrize(
    ("mixed", "rows"), [(lambda grad: grad.flip(0), 1), (lambda grad: grad + 0.01 * grad.roll(1, 0), 3)]
)
def test_gradients_that_mix_train_one_at_a_time(mixed: Callable[[Tensor], Tensor], rows: int) -> None:
    """Each row's output is its own, and its gradient reaches another row's factors: a hundredth is more than rounding.
    In calls of at least so many ``rows``."""
    chosen = reader("rows")

    class Mixed(torch.autograd.Function):
        @staticmethod
        def forward(_: Any, x: Tensor) -> Tensor:
            return x.clone()

        @staticmethod
        def backward(_: Any, grad: Tensor) -> Tensor:  # type: ignore[override]
            return mixed(grad)

    chosen.module.layer.register_forward_hook(lambda _, __, out: Mixed.apply(out) if len(out) >= rows else out)
    assert reason(chosen) == "the gradient of layer.A is not what it is when its client is alone in a call"


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
@pytest.mark.parametrize("swapped", [False, True], ids=["right", "dealt wrongly"])
def test_trial_sees_a_wrong_deal_in_any_precision(dtype: torch.dtype, swapped: bool) -> None:
    chosen = network(tiny.bert().to(dtype), tiny.BERT_LAYERS)
    if swapped:  # rows go to the client before theirs
        begin = chosen._call.begin

        def begun(params: Any, base: Any, rows: Rows, *others: Any) -> None:
            object.__setattr__(rows, "index", rows.index.roll(1))
            begin(params, base, rows, *others)

        chosen._call.begin = begun  # type: ignore[method-assign]
    assert (reason(chosen) is not None) == swapped


def test_head_keeps_its_own_reason() -> None:
    chosen = reader("padding")
    chosen.one_at_a_time = "the head has trained tensors in LayerNorm"
    assert reason(chosen) == "the head has trained tensors in LayerNorm"


def test_model_that_does_not_run_is_refused() -> None:
    message = "'a model' does not train on rows of the data: IndexError: no rows at all; name other layers in "
    message += "adapter.target_modules, or another model"
    assert told(lambda: reason(reader("no rows"))) == [("model.name", message)]


def test_tensor_of_the_base_that_is_not_finite_is_named() -> None:
    """It would be taken for a model that minds padding: no loss of it equals another."""
    broken = reader("rows")
    broken.module.places.weight.data[0, 0] = torch.inf  # it has no part in the losses
    assert reason(broken) is None
    broken.module.layer.weight.data[1, 2:4] = torch.nan
    message = (
        r"model\.name: numbers that are NaN or infinite are in places\.weight of 'a model', and 1 more of its tensors"
    )
    with pytest.raises(ConfigError, match=message):
        reason(broken)


def test_shortage_of_memory_is_told_as_one() -> None:
    """The layers are not to blame, so no others are asked for."""
    ((path, message),) = told(lambda: reason(reader("more than there is")))
    assert (path, message.partition(": ")[0]) == ("model.name", "'a model' does not fit into the memory")
    assert message.endswith("; give it more memory, or name a smaller model")


def test_prompt_longer_than_the_trials_rows_is_tried() -> None:
    """Its targets lie behind the part that is tried; without targets of its own the trial would see nothing."""
    chosen = network(tiny.llama_lm(), ("q_proj",))
    chosen.module.model.norm.register_forward_hook(lambda _, __, out: out + out.mean(0))
    long = [TextExample((2, *range(4, 24)) * 4, (-100,) * 80 + (3,) * 4) for _ in range(3)]
    task = CausalLM(tiny.tokenizer("llama"), "text", (), None, 128)
    chosen.module.config.max_position_embeddings = 128
    assert reason(chosen, task, long) is not None


def test_trial_leaves_no_trace() -> None:
    chosen = network(tiny.bert(), ("query", "value"), dropout=0.3)
    hooks = [len(m._forward_hooks) for m in chosen.module.modules()]
    before, drawn = fingerprint(chosen.module), torch.get_rng_state()
    batch = tiny.text_batch()
    params = add_client_axis({**tiny.factors(list(chosen.sites.values()), 1, dtype=torch.float32)})
    output = chosen(params, {}, batch)
    assert reason(chosen) is None
    assert fingerprint(chosen.module) == before
    assert torch.get_rng_state().equal(drawn)
    assert [len(m._forward_hooks) for m in chosen.module.modules()] == hooks
    assert [n for n, p in chosen.module.named_parameters() if p.grad is not None] == []
    assert chosen(params, {}, batch).equal(output)


# The layers' own part


@torch.no_grad()
def test_factors_of_one_client_act_on_inputs_without_rows() -> None:
    chosen = reader("places")
    params = tiny.factors(list(chosen.sites.values()), 1, dtype=torch.float32)
    batch = tiny.text_batch()
    found = chosen(add_client_axis(params), {}, batch, rows=Rows((4,)))
    plain = Reader("places")
    state = {**chosen.module.state_dict(), **{n.removeprefix("head:"): t for n, t in chosen.initial_head.items()}}
    change = chosen.sites["layer"].scale * params["layer.B"] @ params["layer.A"]
    plain.load_state_dict({**state, "layer.weight": state["layer.weight"] + change})
    torch.testing.assert_close(found, plain(**batch).logits, rtol=0, atol=1e-5)


@pytest.mark.parametrize("counts", [(2, 2), (3, 1)], ids=["even", "uneven"])
def test_clients_never_share_an_input_without_rows(counts: tuple[int, ...]) -> None:
    """Its eight positions could be divided between two clients."""
    chosen = reader("places")
    params = tiny.factors(list(chosen.sites.values()), 1, clients=2, dtype=torch.float32)
    with pytest.raises(RowsUnknown, match="cannot be told apart in layer"):
        chosen(params, {}, tiny.text_batch(), rows=Rows(counts))


@torch.no_grad()
@pytest.mark.parametrize("counts", [(2, 2), (3, 1)], ids=["even", "uneven"])
def test_tokens_in_one_axis_are_dealt_by_their_rows(counts: tuple[int, ...]) -> None:
    chosen = reader("tokens in one axis")
    params = tiny.factors(list(chosen.sites.values()), 1, clients=2, dtype=torch.float32)
    batch = tiny.text_batch()
    together = chosen(params, {}, batch, rows=Rows(counts)).split(list(counts))
    for k, part in enumerate(torch.arange(4).split(list(counts))):
        alone = chosen(add_client_axis(client_row(params, k)), {}, {n: t[part] for n, t in batch.items()})
        torch.testing.assert_close(together[k], alone, rtol=0, atol=1e-6)


@torch.no_grad()
def test_dropout_of_one_client_covers_inputs_without_rows() -> None:
    """Seen by the share of the positions' inputs that are dropped, beyond the batch's nine tokens too."""
    chosen = reader("places", dropout=0.5)
    params = tiny.factors(list(chosen.sites.values()), 1, clients=1, dtype=torch.float32)
    rows = Rows((4,), longest=(5,))
    chosen(params, {}, tiny.text_batch(), [torch.Generator().manual_seed(0)], rows)
    masks = chosen._call.masks["layer"]
    assert [m.shape[:2] for m in masks] == [(4, 9), (1, 8)]
    dropped = [float((m == 0).double().mean()) for m in masks]
    assert [share for share in dropped if not 0.2 < share < 0.8] == []
    assert bool((masks[1][:, 5:] == 0).any())
