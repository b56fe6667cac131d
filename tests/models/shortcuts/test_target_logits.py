"""A language model's loss without its logits: the same loss, gradients and scores, in less memory; or refused."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from types import SimpleNamespace
from typing import Any

import pytest
import torch
import transformers
from torch import Tensor, nn

import tiny
from rondo.engine.client.memory import activation_bytes
from rondo.models.kernels import precision
from rondo.models.networks.adapted_network import AdaptedNetwork
from rondo.models.networks.rows import Rows
from rondo.models.shortcuts.choose import split_off
from rondo.models.shortcuts.prefix import ShortcutRefused
from rondo.params import Params
from rondo.tasks.language.causal_lm import CausalLM
from rondo.tasks.language.text import TextExample

EXAMPLES = (  # two clients of two rows each: prompts, padding, and a row that is all target
    TextExample((5, 6, 7, 8, 9, 3), (-100, -100, -100, 8, 9, 3)),
    TextExample((10, 11, 12), (10, 11, 12)),
    TextExample((4, 5, 3), (-100, -100, 3)),
    TextExample((20, 21, 22, 23, 3), (-100, 21, -100, 23, 3)),
)

MODELS: dict[str, tuple[Callable[[], Any], Sequence[str]]] = {
    "gpt2": (tiny.gpt2_lm, ("c_attn", "c_proj")),
    "llama": (tiny.llama_lm, ("q_proj", "v_proj", "down_proj")),
}


def task_of() -> CausalLM:
    return CausalLM(tiny.tokenizer("gpt"), "text", (), None, 32)


def network_of(kind: str, dtype: torch.dtype = torch.float64) -> tuple[AdaptedNetwork, Params]:
    """A network, and the factors of two clients."""
    make, endings = MODELS[kind]
    module = make().to(dtype)
    network = AdaptedNetwork(module, tiny.sites(module, endings), ())
    return network, tiny.factors(
        tuple(network.sites.values()), 1, clients=2, dtype=torch.promote_types(dtype, torch.float32)
    )


def split(network: AdaptedNetwork, task: CausalLM, seen: Params) -> CausalLM:
    inputs, _ = task.collate(EXAMPLES[:2])
    return task.with_output(split_off(network, {n: t[0] for n, t in seen.items()}, inputs))


def step(network: AdaptedNetwork, task: CausalLM, seen: Params) -> tuple[Tensor, Tensor, dict[str, Tensor]]:
    """Sums and counts of the losses of all rows, and the gradients of the two clients' losses."""
    inputs, targets = task.collate(EXAMPLES)
    leaves = {n: t.clone().requires_grad_() for n, t in seen.items()}
    sums, counts = task.loss(network(leaves, {}, inputs), targets)
    rows = Rows((2, 2))
    (rows.sum(sums) / rows.sum(counts)).sum().backward()
    return sums.detach(), counts, {n: t.grad for n, t in leaves.items() if t.grad is not None}


@pytest.mark.parametrize("tokens", [1, 3, 1000], ids="{} at a time".format)
@pytest.mark.parametrize("kind", MODELS)
def test_losses_and_gradients_equal_those_of_whole_logits(
    logits_of: Callable[[int, int], None], kind: str, tokens: int
) -> None:
    network, seen = network_of(kind)
    task = task_of()
    sums, counts, gradients = step(network, task, seen)
    logits_of(tokens, tiny.VOCABULARY)
    task = split(network, task, seen)
    again, numbers, after = step(network, task, seen)
    assert counts.equal(numbers)
    assert counts.tolist() == [3, 2, 1, 3]
    torch.testing.assert_close(again, sums, rtol=1e-12, atol=1e-12)
    assert after.keys() == gradients.keys()
    for name, gradient in after.items():
        assert gradient.abs().max() > 0
        torch.testing.assert_close(gradient, gradients[name], rtol=1e-10, atol=1e-13)


def test_only_target_tokens_have_logits_and_few_at_a_time(logits_of: Callable[[int, int], None]) -> None:
    network, seen = network_of("llama")
    task = task_of()
    asked: list[int] = []
    layer = network.module.lm_head
    original = layer.forward
    layer.forward = lambda states: asked.append(states.numel() // 32) or original(states)  # type: ignore[func-returns-value]
    logits_of(4, tiny.VOCABULARY)
    task = split(network, task, seen)
    asked.clear()
    step(network, task, seen)
    assert asked == [4, 4, 1]  # of 24 tokens


@pytest.mark.parametrize("kind", MODELS)
def test_scores_equal_those_of_whole_logits(logits_of: Callable[[int, int], None], kind: str) -> None:
    network, seen = network_of(kind)
    task = task_of()
    first = {n: t[:1] for n, t in seen.items()}
    inputs, targets = task.collate(EXAMPLES)

    def scores() -> Any:
        tally = task.tally()
        with torch.no_grad():
            tally.add(network(first, {}, inputs), targets)
        return tally.scores()

    whole = scores()
    logits_of(2, tiny.VOCABULARY)
    task = split(network, task, seen)
    assert scores() == pytest.approx(whole, rel=1e-6)
    assert whole["tokens"] == 9


def test_backward_pass_keeps_no_logits() -> None:
    network, seen = network_of("llama", torch.float32)
    task = task_of()

    def kept() -> list[tuple[int, ...]]:
        """Shapes of the tensors with a number for every word that a step keeps."""
        shapes: list[tuple[int, ...]] = []
        frozen = {p.data_ptr() for p in network.module.parameters()}

        def note(tensor: Tensor) -> Tensor:
            if tiny.VOCABULARY in tensor.shape and tensor.data_ptr() not in frozen:
                shapes.append(tuple(tensor.shape))
            return tensor

        with torch.autograd.graph.saved_tensors_hooks(note, lambda t: t):
            step(network, task, seen)
        return shapes

    assert kept()
    one = {n: t[0] for n, t in seen.items()}
    before = activation_bytes(network, task, one, EXAMPLES)
    task = split(network, task, seen)
    assert not kept()
    assert activation_bytes(network, task, one, EXAMPLES) < before


def test_nonfinite_values_stay_in_their_rows() -> None:
    network, seen = network_of("llama")
    task = task_of()
    task = split(network, task, seen)
    sums, _, gradients = step(network, task, seen)
    bad = {n: torch.stack([t[0], torch.full_like(t[1], torch.nan)]) for n, t in seen.items()}
    again, _, after = step(network, task, bad)
    assert again[:2].equal(sums[:2])
    assert again[2:].isnan().all()
    for name, gradient in after.items():
        assert gradient[0].equal(gradients[name][0])


def test_bfloat16_losses_are_float32() -> None:
    module = tiny.llama_lm()
    network = AdaptedNetwork(module, tiny.sites(module, ("q_proj", "v_proj")), ())
    seen = tiny.factors(tuple(network.sites.values()), 1, clients=2, dtype=torch.float32)
    chosen = precision.Kernels(torch.bfloat16, "onednn" if precision.has_onednn() else "torch", "written out")
    precision.apply(module, chosen)
    task = task_of()
    sums, _, gradients = step(network, task, seen)
    task = split(network, task, seen)
    again, _, after = step(network, task, seen)
    assert again.dtype == torch.float32
    torch.testing.assert_close(again, sums, rtol=1e-6, atol=1e-6)
    for name, gradient in after.items():
        torch.testing.assert_close(gradient, gradients[name], rtol=2e-2, atol=2e-2 * float(gradients[name].abs().max()))


class Softened(nn.Module):
    """A model that changes its logits after the output layer, as Gemma's and Cohere's do."""

    def __init__(self) -> None:
        super().__init__()
        self.model = tiny.llama_lm()

    def get_output_embeddings(self) -> nn.Module:
        layer: nn.Module = self.model.get_output_embeddings()
        return layer

    def forward(self, **inputs: Any) -> SimpleNamespace:
        return SimpleNamespace(logits=30 * torch.tanh(self.model(**inputs).logits / 30))


class Forbidding(Softened):
    """A model that forbids words in place, as Chameleon does with the words for pictures."""

    def forward(self, **inputs: Any) -> SimpleNamespace:
        logits = self.model(**inputs).logits
        with torch.no_grad():
            logits[:, :, 7] = -1e4
        return SimpleNamespace(logits=logits)


def gemma() -> Any:
    config = transformers.Gemma2Config(
        vocab_size=tiny.VOCABULARY,
        hidden_size=32,
        num_hidden_layers=2,
        num_attention_heads=2,
        num_key_value_heads=1,
        head_dim=16,
        intermediate_size=48,
        final_logit_softcapping=5.0,
        pad_token_id=0,
    )
    return transformers.Gemma2ForCausalLM(config).eval()


class Padded(Softened):
    """A model with more words in its output layer than in its vocabulary, as Inkling has. Here it has no surplus, so
    logits pass unchanged, but hidden states, which are narrower or wider, would not."""

    def forward(self, **inputs: Any) -> SimpleNamespace:
        logits = self.model(**inputs).logits
        return SimpleNamespace(logits=logits.reshape(*logits.shape[:2], tiny.VOCABULARY))


class Doubled(Softened):
    """A model that treats states otherwise than logits, and gives the shape of both."""

    def forward(self, **inputs: Any) -> SimpleNamespace:
        logits = self.model(**inputs).logits
        return SimpleNamespace(logits=logits if logits.shape[-1] == tiny.VOCABULARY else 2 * logits)


class Broken(Softened):
    """A model whose logits are not numbers."""

    def forward(self, **inputs: Any) -> SimpleNamespace:
        return SimpleNamespace(logits=self.model(**inputs).logits + torch.nan)


REFUSED: dict[str, tuple[Callable[[], Any], Sequence[str], str]] = {
    "softened": (Softened, ("q_proj",), "the model changes what its output layer gives, or its type"),
    "forbidding": (Forbidding, ("q_proj",), "the model changes what its output layer gives, or its type"),
    "gemma": (gemma, ("q_proj",), "the model changes what its output layer gives, or its type"),
    "padded": (Padded, ("q_proj",), "the model does not do the same without its output layer"),
    "doubled": (Doubled, ("q_proj",), "the model does not do the same without its output layer"),
    "broken": (Broken, ("q_proj",), "are not finite"),
    "adapted": (tiny.llama_lm, ("q_proj", "lm_head"), "the output layer is adapted"),
    "no output layer": (tiny.convolutions, ("second",), "the model names no output layer"),
}


@pytest.mark.parametrize("kind", REFUSED)
def test_model_that_needs_its_logits_keeps_them(kind: str) -> None:
    make, endings, reason = REFUSED[kind]
    module = make()
    network = AdaptedNetwork(module, tiny.sites(module, endings), ())
    seen = tiny.factors(tuple(network.sites.values()), 1, clients=1, dtype=torch.float32)
    inputs = task_of().collate(EXAMPLES)[0] if kind != "no output layer" else {"pixel_values": torch.rand(2, 3, 8, 8)}

    def logits() -> Tensor:
        with torch.no_grad():
            output: Tensor = network(seen, {}, inputs)
        return output

    before = logits()
    hooks = [len(m._forward_hooks) for m in module.modules()]
    with pytest.raises(ShortcutRefused, match=reason):
        split_off(network, {n: t[0] for n, t in seen.items()}, inputs)
    torch.testing.assert_close(logits(), before, rtol=0, atol=0, equal_nan=True)
    assert [len(m._forward_hooks) for m in module.modules()] == hooks


def test_output_layer_is_taken_out_only_once() -> None:
    network, seen = network_of("llama")
    split(network, task_of(), seen)
    with pytest.raises(ShortcutRefused, match="taken out before"):
        split(network, task_of(), seen)


def test_failing_model_leaves_nothing_behind() -> None:
    network, seen = network_of("llama")
    layer = network.module.get_output_embeddings()  # type: ignore[operator]
    layer.forward, forward = lambda _: 1 / 0, layer.forward
    with pytest.raises(ZeroDivisionError):
        split(network, task_of(), seen)
    assert not layer._forward_hooks
    layer.forward = forward
    split(network, task_of(), seen)
