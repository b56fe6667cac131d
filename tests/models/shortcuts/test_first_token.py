"""The last layer of a classifier cut down to its first token: same logits and gradients, less work; or refused."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from types import SimpleNamespace
from typing import Any

import pytest
import torch
import transformers
from torch import Tensor, nn

import tiny
from rondo.models.kernels import attention
from rondo.models.networks.adapted_network import AdaptedNetwork
from rondo.models.networks.rows import Rows
from rondo.models.shortcuts.choose import first_token_only
from rondo.models.shortcuts.prefix import ShortcutRefused
from rondo.params import Params


def network_of(module: Any, endings: Sequence[str], dropout: float = 0.0) -> tuple[AdaptedNetwork, Params]:
    """A network, and the factors and heads of two clients."""
    module = module.double()
    network = AdaptedNetwork(module, tiny.sites(module, endings, dropout=dropout), tiny.head_names(module))
    seen = tiny.factors(tuple(network.sites.values()), 1, clients=2)
    head = {n: torch.stack([t, t + 0.1]) for n, t in network.initial_head.items()}
    return network, seen | head


def one(seen: Params) -> Params:
    return {n: t[0] for n, t in seen.items()}


def passed(network: AdaptedNetwork, seen: Params, **options: Any) -> tuple[Tensor, dict[str, Tensor]]:
    """Logits of two clients with two rows each, and the gradients of the sum of their squares."""
    leaves = {n: t.clone().requires_grad_() for n, t in seen.items()}
    logits = network(leaves, {}, tiny.text_batch(), **options)
    logits.square().sum().backward()
    return logits.detach(), {n: t.grad for n, t in leaves.items() if t.grad is not None}


CUT: dict[str, Callable[[], Any]] = {"bert": tiny.bert, "roberta": tiny.roberta}
EVERYWHERE = ("query", "value", "attention.output.dense", "intermediate.dense")
"""All but the key."""
KEYS = ("query", "key", "value")


@pytest.mark.parametrize("rows", [None, Rows((3, 1))], ids=["even", "uneven"])
@pytest.mark.parametrize("endings", [EVERYWHERE, KEYS], ids=["everywhere", "keys"])
@pytest.mark.parametrize("kind", CUT)
def test_cut_layer_gives_the_same_logits_and_gradients(kind: str, endings: Sequence[str], rows: Rows | None) -> None:
    network, seen = network_of(CUT[kind](), endings)
    logits, gradients = passed(network, seen, rows=rows)
    first_token_only(network, one(seen), tiny.text_batch())
    again, after = passed(network, seen, rows=rows)
    torch.testing.assert_close(again, logits, rtol=0, atol=1e-12)
    assert after.keys() == gradients.keys()
    for name, gradient in after.items():
        torch.testing.assert_close(gradient, gradients[name], rtol=1e-10, atol=1e-12)


@pytest.mark.parametrize("endings", [("query", "value"), KEYS], ids=["query and value", "keys"])
@pytest.mark.parametrize("kind", CUT)
def test_only_first_token_passes_the_rest_of_last_layer(kind: str, endings: Sequence[str]) -> None:
    network, seen = network_of(CUT[kind](), endings)
    first_token_only(network, one(seen), tiny.text_batch())
    tokens: dict[str, list[int]] = {}
    layers = next(m for m in network.module.modules() if isinstance(m, nn.ModuleList))
    for layer in layers:
        for path in ("attention.self.query", "attention.self.key", "attention.self.value", "intermediate"):
            lengths = tokens.setdefault(path, [])
            layer.get_submodule(path).register_forward_hook(
                lambda _, args, __, lengths=lengths: lengths.append(args[0].shape[1])
            )
    passed(network, seen)
    assert tokens["attention.self.key"] == tokens["attention.self.value"] == [9, 9]
    assert tokens["attention.self.query"] == tokens["intermediate"] == [9, 1]


@pytest.mark.parametrize("endings", [EVERYWHERE, KEYS], ids=["everywhere", "keys"])
@pytest.mark.parametrize("implementation", ["eager", "sdpa", "rondo_written_out"])
def test_every_attention_implementation_can_be_cut(implementation: str, endings: Sequence[str]) -> None:
    module = tiny.bert()
    attention.use(module, "written out")  # registers the written-out attention
    module.set_attn_implementation(implementation)
    network, seen = network_of(module, endings)
    logits, _ = passed(network, seen)
    first_token_only(network, one(seen), tiny.text_batch())
    torch.testing.assert_close(passed(network, seen)[0], logits, rtol=0, atol=1e-12)


def test_unknown_attention_is_cut_after_its_output() -> None:
    network, seen = network_of(tiny.bert(), EVERYWHERE)
    logits, _ = passed(network, seen)
    for layer in next(m for m in network.module.modules() if isinstance(m, nn.ModuleList)):
        del layer.attention.self.attention_head_size
        layer.attention.self.attention_head_size = torch.tensor(16)  # a type that the cut does not know
    first_token_only(network, one(seen), tiny.text_batch())
    torch.testing.assert_close(passed(network, seen)[0], logits, rtol=0, atol=1e-12)


def test_dropout_of_a_cut_layer_follows_its_generators() -> None:
    network, seen = network_of(tiny.bert(), EVERYWHERE, dropout=0.5)
    first_token_only(network, one(seen), tiny.text_batch())
    draws = [[torch.Generator().manual_seed(k) for k in (3, 4)] for _ in range(2)]
    (first, _), (again, _) = (passed(network, seen, dropout=d) for d in draws)
    assert torch.equal(first, again)
    assert not torch.equal(first, passed(network, seen)[0])


class Mean(nn.Module):
    """A classifier of the mean of all states."""

    base_model_prefix = "bert"

    def __init__(self) -> None:
        super().__init__()
        self.bert = tiny.bert().bert
        self.classifier = nn.Linear(32, 3)

    def forward(self, **inputs: Any) -> SimpleNamespace:
        return SimpleNamespace(logits=self.classifier(self.bert(**inputs).last_hidden_state.mean(1)))


class Twice(Mean):
    """A classifier of the first state that also reads another state of the last layer."""

    def forward(self, **inputs: Any) -> SimpleNamespace:
        states = self.bert(**inputs).last_hidden_state
        return SimpleNamespace(logits=self.classifier(states[:, 0] + states[:, 2]))


def test_rows_of_one_token_prove_nothing() -> None:
    """Their first token is also the last, so a classifier of the last would pass and be wrong on longer rows."""
    config = transformers.GPTNeoXConfig(
        vocab_size=tiny.VOCABULARY,
        hidden_size=32,
        num_hidden_layers=2,
        num_attention_heads=2,
        intermediate_size=48,
        max_position_embeddings=48,
        pad_token_id=0,
        num_labels=3,
    )
    network, seen = network_of(transformers.GPTNeoXForSequenceClassification(config).eval(), ("query_key_value",))
    inputs = tiny.text_batch()
    inputs.pop("token_type_ids", None)
    before = network(seen, {}, inputs)
    short = {n: t[:, :1] for n, t in inputs.items()}
    with pytest.raises(ShortcutRefused, match="several tokens"):
        first_token_only(network, one(seen), short)
    with pytest.raises(ShortcutRefused, match="more than the first token"):
        first_token_only(network, one(seen), inputs)
    assert network(seen, {}, inputs).equal(before)


REFUSED: dict[str, tuple[Callable[[], Any], str]] = {
    "distilbert": (tiny.distilbert, "q_lin"),  # its residual is added outside the attention module
    "gpt2": (tiny.gpt2, "c_attn"),
    "llama-lm": (tiny.llama_lm, "q_proj"),
    "convolutions": (tiny.convolutions, "second"),
    "mean": (Mean, "query"),
    "twice": (Twice, "query"),
}


@pytest.mark.parametrize("kind", REFUSED)
def test_model_reading_more_tokens_is_refused_unchanged(kind: str) -> None:
    make, ending = REFUSED[kind]
    network, seen = network_of(make(), (ending,))
    inputs = tiny.image_batch() if kind == "convolutions" else tiny.text_batch()
    before = network(seen, {}, inputs)
    hooks = [len(m._forward_hooks) for m in network.module.modules()]
    with pytest.raises(ShortcutRefused, match="last layer"):
        first_token_only(network, one(seen), inputs)
    assert torch.equal(network(seen, {}, inputs), before)
    assert [len(m._forward_hooks) for m in network.module.modules()] == hooks
