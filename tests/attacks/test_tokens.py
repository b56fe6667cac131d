"""Attacks on the words of one sentence, with factors of rank 8 in the first layer of a tiny network of 2,000 words.

Span: the rows of A's change lie in the span of the layer's inputs x, those of B's in the span of A x, and x is a
function of a word and its place. Exact while a sentence has fewer words than the factors have ranks.
Matching: a search for the inputs whose gradient is what was sent (Zhu et al. 2019, "Deep Leakage from Gradients").
"""

from __future__ import annotations

import random
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path
from typing import Any

import pytest
import torch
from defences import Masked, Released, median
from torch import Tensor
from torch.nn import functional

from composed import Composed
from rondo.config.inputs import GIVEN
from rondo.config.load import load
from rondo.params import Params
from rondo.runs.assembling.assemble import assemble
from rondo.runs.assembling.given import Given

pytestmark = pytest.mark.slow

RANK, WORDS, CLIENTS, RATE = 8, 2000, 200, 100.0
SITE = "bert.encoder.layer.0.attention.self.value"
METHODS = {"A": "rolora", "B": "ffa-lora", "AB": "fedit"}
"""A method for each set of factors that are sent; RoLoRA's in its second round."""
Defence = Callable[["Victims", int], Params]
"""Gives what an adversary sees of the changes of a client, by its number."""


@dataclass
class Victims:
    """Clients of one sentence that took a step each.

    ``seen``: the changes that each one sent, by name, in float64.
    ``words``: (clients, words), indices of each one's words.
    ``released``: the model of a round with client-level privacy (z = 1) to which one client came.
    """

    module: Any
    start: Params
    scale: float
    seen: list[Params]
    words: Tensor
    released: Released

    def auc(self, defence: Defence) -> float:
        """How well the residual of a word outside of the span tells the sentence's words from others at their places:
        the mean over clients of the area under the curve. Its standard deviation by chance is 0.03 for one word, and
        0.01 for seven."""
        luck, areas = torch.Generator().manual_seed(0), []
        for client, words in enumerate(self.words):
            others = torch.randint(WORDS, (20, len(words)), generator=luck)
            outside = self.outside(defence(self, client), torch.cat([words[None], others]))
            areas.append(float((outside[1:].flatten() > outside[:1].T).double().mean()))
        return sum(areas) / len(areas)

    def outside(self, seen: Params, words: Tensor) -> Tensor:
        """The share of the inputs of ``words``, (n, places), that lies outside of the span of a change, of as many
        dimensions as there are places; by A's, where it was sent."""
        with torch.no_grad():
            inputs = self.module.bert.embeddings(input_ids=words + 1)
        if f"{SITE}.A" in seen:
            change = seen[f"{SITE}.A"]
        else:
            change, inputs = seen[f"{SITE}.B"], inputs @ self.start[f"{SITE}.A"].double().mT
        basis = torch.linalg.svd(change, full_matrices=False)[2][: min(words.shape[1], RANK - 1)]
        return (inputs - inputs @ basis.mT @ basis).norm(dim=-1) / inputs.norm(dim=-1)

    def recall(self, defence: Defence, clients: int) -> float:
        """The share of words that are rebuilt at their places by matching."""
        right = [self.rebuilt(defence(self, c)) == self.words[c] for c in range(clients)]
        return float(torch.stack(right).double().mean())

    def rebuilt(self, seen: Params) -> Tensor:
        """The words, (words,), whose inputs have the gradient that is closest in angle to a change, by L-BFGS; the
        label that fits better."""
        step = torch.cat([-seen[name].flatten() for name in sorted(seen)])
        found = min((self._matched(step, sorted(seen), label) for label in (0, 1)), key=lambda pair: pair[0])[1]
        table = self._words
        return (functional.normalize(found, dim=1) @ functional.normalize(table, dim=1).mT).argmax(1)

    def _matched(self, step: Tensor, names: list[str], label: int) -> tuple[float, Tensor]:
        layer = self.module.bert.encoder.layer[0].attention.self.value
        draw = torch.Generator().manual_seed(0)
        shape = (self.words.shape[1], self._words.shape[1])
        found = (self._words.std() * torch.randn(shape, generator=draw, dtype=torch.float64)).requires_grad_()
        search = torch.optim.LBFGS([found], max_iter=300, line_search_fn="strong_wolfe")

        def distance() -> Tensor:
            factors = {f: self.start[f"{SITE}.{f}"].double().detach().requires_grad_() for f in "AB"}
            a, b = factors["A"], factors["B"]
            hook = layer.register_forward_hook(lambda _, x, y: y + self.scale * (x[0] @ a.mT) @ b.mT)
            try:
                logits = self.module(inputs_embeds=found[None]).logits
            finally:
                hook.remove()
            loss = functional.cross_entropy(logits, torch.tensor([label]))
            wanted = [factors[name[-1]] for name in names]
            made = torch.cat([g.flatten() for g in torch.autograd.grad(loss, wanted, create_graph=True)])
            return 1 - functional.cosine_similarity(made, step, dim=0)

        def closure() -> Tensor:
            search.zero_grad()
            far = distance()
            far.backward()  # type: ignore[no-untyped-call]
            return far

        search.step(closure)  # type: ignore[no-untyped-call]
        return float(distance().detach()), found.detach()

    @property
    def _words(self) -> Tensor:
        table: Tensor = self.module.bert.embeddings.word_embeddings.weight.detach()[1:]
        return table


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A BERT with random weights that reads words alone: no tokens around them."""
    import transformers
    from tokenizers import Tokenizer, models, pre_tokenizers

    folder = tmp_path_factory.mktemp("words")
    inner = Tokenizer(models.WordLevel({"[PAD]": 0, **{f"w{i}": i + 1 for i in range(WORDS)}}, unk_token="[PAD]"))
    inner.pre_tokenizer = pre_tokenizers.Whitespace()
    transformers.PreTrainedTokenizerFast(tokenizer_object=inner, pad_token="[PAD]").save_pretrained(folder)
    shape: dict[str, Any] = {
        "hidden_size": 96,
        "num_hidden_layers": 2,
        "num_attention_heads": 4,
        "intermediate_size": 96,
    }
    shape |= {"hidden_dropout_prob": 0.0, "attention_probs_dropout_prob": 0.0}
    config = transformers.BertConfig(vocab_size=WORDS + 1, max_position_embeddings=64, initializer_range=0.1, **shape)
    with torch.random.fork_rng():
        torch.manual_seed(0)
        transformers.BertForSequenceClassification(config).save_pretrained(folder)
    return folder


@cache
def victims(model: Path, mode: str, length: int, *, private: bool = False) -> Victims:
    """``private``: by example-level privacy with z = 1, and a clip that half of the gradients keep."""
    import transformers

    luck = random.Random(length)
    words = torch.tensor([luck.sample(range(WORDS), length) for _ in range(CLIENTS)])
    privacy: dict[str, Any] = {}
    if private:
        clip = median([_whole(changes) for changes in victims(model, mode, length).seen]) / RATE
        privacy = {"adversary": "server", "unit": "example", "clip": clip, "noise": 1.0, "delta": 1e-5, "debug_seed": 0}
    config = load(
        {
            "rounds": 2,
            "task": {"text": "text", "label": "label", "max_length": 64, "labels": ["0", "1"]},
            "data": {"source": GIVEN, "test_source": GIVEN, "validation_fraction": 0.0, "min_examples": 1},
            "partition": {"kind": "natural", "column": "owner"},
            "model": {"name": str(model), "head": "frozen"},
            "algorithm": {"name": METHODS[mode]},
            "adapter": {"r": RANK, "lora_alpha": RANK, "target_modules": ["value"], "layers_to_transform": [0]},
            "train": {"optimizer": "sgd", "lr": RATE, "batch_size": 1, "local_steps": 1, "max_grad_norm": None},
            "clients": {"weighting": "uniform"},
            "evaluation": {"every": 0, "diagnostics_every": 0},
            **({"privacy": privacy} if private else {}),
        }
    )
    rows = [
        {"text": " ".join(f"w{word}" for word in sentence), "label": str(i % 2), "owner": f"o{i:03}"}
        for i, sentence in enumerate(words.tolist())
    ]
    run = assemble(config, "cpu", given=Given(train=rows, test=rows[:2]))
    sim = Composed(run.algorithm, run.model.network, run.task, run.population, run.config, run.initial)
    index = 1 if mode == "A" else 0
    for attempt in range(index):
        sim.run_round(attempt)
    draw = torch.Generator().manual_seed(1)
    params = {
        n: 0.1 * torch.randn(t.shape, generator=draw) if n.endswith(".B") else t for n, t in sim.state.params.items()
    }
    state = sim.state = replace(sim.state, params=params)
    sim.ledger = sim.assembly.ledger(sim.state)
    sim.run_round(index)
    uploads = {client: upload for (round, client), upload in sorted(sim.uploads.items()) if round == index}
    changes = [{n: (t - state.params[n]).double() for n, t in u.params.items()} for u in uploads.values()]
    assert list(uploads) == [row["owner"] for row in rows]
    module = transformers.AutoModelForSequenceClassification.from_pretrained(model, attn_implementation="eager")
    released = Released(config, run.algorithm, state, list(uploads.values()), 1.0, sim.round(index))
    scale = run.model.network.sites[SITE].scale
    return Victims(module.double().eval(), state.params, scale, changes, words, released)


@pytest.mark.parametrize("length", [1, 7, 64])
@pytest.mark.parametrize("mode", METHODS)
def test_words_are_read_from_a_bare_upload(model: Path, mode: str, length: int) -> None:
    auc = victims(model, mode, length).auc(_bare)
    print(mode, length, auc)
    # Beyond the rank, words are told less surely: by chance the deviation is 0.003 with 64.
    assert auc >= 0.99 if length < RANK else 0.51 < auc < 0.99


@pytest.mark.parametrize("length", [1, 7, 64])
@pytest.mark.parametrize("mode", METHODS)
def test_words_are_not_read_from_a_protected_upload(model: Path, mode: str, length: int) -> None:
    """Masks; client-level privacy in a round of one client; noise of the site. z = 1."""
    seen, noisy = victims(model, mode, length), victims(model, mode, length, private=True)
    aucs = [seen.auc(_masked(seen)), seen.auc(_released), noisy.auc(_bare)]
    print(mode, length, aucs)
    assert aucs == pytest.approx([0.5] * 3, abs=0.05)


def _whole(changes: Params) -> Tensor:
    return torch.cat([t.flatten() for t in changes.values()])


def _bare(seen: Victims, client: int) -> Params:
    return seen.seen[client]


def _released(seen: Victims, client: int) -> Params:
    new = seen.released([client])
    return {name: (new[name] - seen.start[name]).double() for name in seen.seen[client]}


def _masked(seen: Victims) -> Defence:
    whole = list(map(_whole, seen.seen))
    mask = Masked(median(whole))

    def masked(seen: Victims, client: int) -> Mapping[str, Tensor]:
        parts = mask(whole[client]).split([t.numel() for t in seen.seen[client].values()])
        return {n: part.reshape(t.shape) for part, (n, t) in zip(parts, seen.seen[client].items(), strict=True)}

    return masked


@pytest.mark.timeout(900)
def test_words_are_rebuilt_from_a_bare_upload_alone(model: Path) -> None:
    """By matching, at most twice the share of chance where an upload is protected."""
    seen, noisy = victims(model, "AB", 7), victims(model, "AB", 7, private=True)
    bare = seen.recall(_bare, 5)
    protected = [seen.recall(_masked(seen), 5), seen.recall(_released, 5), noisy.recall(_bare, 5)]
    print(bare, protected)
    assert bare > 0.9
    assert max(protected) <= 2 / WORDS
