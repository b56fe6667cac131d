"""Models, tokenizers and adapters with a few thousand numbers, for tests."""

from __future__ import annotations

import copy
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import torch
import transformers
from tokenizers import Tokenizer, models, pre_tokenizers, processors
from torch import Tensor, nn

from rondo.lowrank import GrowingSum, LowRank
from rondo.models.networks.adapted_layer import Site, layer_kind
from rondo.models.networks.adapted_network import AdaptedNetwork
from rondo.params import HEAD_PREFIX

SPECIAL = ("<pad>", "<unk>", "<s>", "</s>")
WORDS = tuple(f"w{i}" for i in range(36))
VOCABULARY = len(SPECIAL) + len(WORDS)

BERT_LAYERS = ("query", "key", "value", "attention.output.dense", "intermediate.dense")


def _seeded(make: Callable[[], nn.Module], seed: int) -> Any:
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        return make().eval()


SIZES: dict[str, Any] = {
    "vocab_size": VOCABULARY,
    "hidden_size": 32,
    "num_hidden_layers": 2,
    "intermediate_size": 48,
    "max_position_embeddings": 48,
    "pad_token_id": 0,
    "initializer_range": 0.2,
}


def bert(labels: int = 3, seed: int = 0, **options: Any) -> Any:
    """BertForSequenceClassification with two layers of width 32. Its dropout of 0.1 acts in train mode only."""
    config = transformers.BertConfig(**SIZES, num_attention_heads=2, num_labels=labels, **options)
    return _seeded(lambda: transformers.BertForSequenceClassification(config), seed)


def roberta(labels: int = 3, seed: int = 0) -> Any:
    """RobertaForSequenceClassification. Its head is a module of two layers."""
    config = transformers.RobertaConfig(**SIZES, num_attention_heads=2, num_labels=labels)
    return _seeded(lambda: transformers.RobertaForSequenceClassification(config), seed)


def distilbert(labels: int = 3, seed: int = 0) -> Any:
    """DistilBertForSequenceClassification. The names of the two layers of its head end alike."""
    sizes = {k: v for k, v in SIZES.items() if k != "intermediate_size"}
    config = transformers.DistilBertConfig(**sizes, hidden_dim=48, num_attention_heads=2, num_labels=labels)
    return _seeded(lambda: transformers.DistilBertForSequenceClassification(config), seed)


def _gpt2_config(**options: Any) -> Any:
    sizes = {k: v for k, v in SIZES.items() if k != "intermediate_size"}
    return transformers.GPT2Config(**sizes, num_attention_heads=2, bos_token_id=2, eos_token_id=3, **options)


def gpt2(labels: int = 3, seed: int = 0) -> Any:
    """GPT2ForSequenceClassification. Its layers are Conv1D."""
    return _seeded(lambda: transformers.GPT2ForSequenceClassification(_gpt2_config(num_labels=labels)), seed)


def gpt2_lm(seed: int = 0) -> Any:
    """GPT2LMHeadModel with tied embedding and output."""
    return _seeded(lambda: transformers.GPT2LMHeadModel(_gpt2_config()), seed)


def llama_lm(seed: int = 0) -> Any:
    """LlamaForCausalLM with grouped key and value heads."""
    heads = {"num_attention_heads": 4, "num_key_value_heads": 2}
    config = transformers.LlamaConfig(**SIZES, **heads, bos_token_id=2, eos_token_id=3)
    return _seeded(lambda: transformers.LlamaForCausalLM(config), seed)


class Convolutions(nn.Module):
    """Two convolutions with stride and padding, then a linear classifier."""

    base_model_prefix = "body"

    def __init__(self, groups: int = 1) -> None:
        super().__init__()
        self.body = nn.ModuleDict(
            {
                "first": nn.Conv2d(3, 6, 3, stride=2, padding=1),
                "second": nn.Conv2d(6, 8, (3, 2), padding=(0, 1), bias=False, groups=groups),
            }
        )
        self.classifier = nn.Linear(8, 3)

    def forward(self, pixel_values: Tensor, **_: Any) -> SimpleNamespace:
        x = torch.relu(self.body["first"](pixel_values))
        x = torch.relu(self.body["second"](x))
        return SimpleNamespace(logits=self.classifier(x.mean((2, 3))))


def convolutions(seed: int = 0, groups: int = 1) -> Any:
    """:class:`Convolutions` drawn from ``seed``."""
    return _seeded(lambda: Convolutions(groups), seed)


def head_names(module: nn.Module) -> tuple[str, ...]:
    """The names of the tensors outside the base model, as for a checkpoint without a task head."""
    prefix = str(module.base_model_prefix) + "."
    fresh = ("bert.pooler.",)
    return tuple(n for n, _ in module.named_parameters() if not n.startswith(prefix) or n.startswith(fresh))


def redraw_head(module: nn.Module, seed: int) -> Any:
    """A copy with a different head, as a stock library would draw it."""
    module = copy.deepcopy(module)
    g = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for name in head_names(module):
            tensor = module.get_parameter(name)
            tensor.copy_(torch.randn(tensor.shape, generator=g))
    return module


def sites(
    module: nn.Module, endings: Sequence[str], *, rank: int = 3, dropout: float = 0.0, magnitude: bool = False
) -> tuple[Site, ...]:
    """The layers of ``module`` whose path ends with one of ``endings``, each with its own scale."""
    chosen = []
    for path, layer in module.named_modules():
        if any(path == e or path.endswith("." + e) for e in endings):
            kind, shape = layer_kind(layer)
            chosen.append(Site(path, kind, shape, rank, 0.5 + 0.25 * len(chosen), dropout, magnitude))
    assert chosen
    return tuple(chosen)


def factors(
    chosen: Sequence[Site], seed: int, clients: int | None = None, dtype: torch.dtype = torch.float64
) -> dict[str, Tensor]:
    """A and B of every site, of order 0.3, and magnitudes around 1; with ``clients`` they have a client axis."""
    g = torch.Generator().manual_seed(seed)
    lead = () if clients is None else (clients,)
    result = {}
    for s in chosen:
        result[f"{s.path}.A"] = 0.3 * torch.randn(*lead, s.rank, s.shape[1], generator=g, dtype=dtype)
        result[f"{s.path}.B"] = 0.3 * torch.randn(*lead, s.shape[0], s.rank, generator=g, dtype=dtype)
        if s.magnitude:
            result[f"{s.path}.magnitude"] = 0.5 + torch.rand(*lead, s.shape[0], generator=g, dtype=dtype)
    return result


def chunks(chosen: Sequence[Site], seed: int, dtype: torch.dtype = torch.float64) -> dict[str, GrowingSum]:
    """Base changes for every site but the first: chunks of ranks 1 and 2, and for every other of these sites a third
    chunk, with which the change is dense."""
    g = torch.Generator().manual_seed(seed)

    def chunk(site: Site, rank: int) -> LowRank:
        up = 0.2 * torch.randn(site.shape[0], rank, generator=g, dtype=dtype)
        return LowRank(up, 0.2 * torch.randn(rank, site.shape[1], generator=g, dtype=dtype))

    changes = {s.path: GrowingSum.of(chunk(s, 1)) + chunk(s, 2) for s in chosen[1:]}
    return changes | {s.path: changes[s.path] + chunk(s, min(s.shape)) for s in chosen[1::2]}


def head_of(network: AdaptedNetwork, seed: int) -> dict[str, Tensor]:
    """A head for ``network`` drawn from ``seed``, without a client axis."""
    g = torch.Generator().manual_seed(seed)
    return {n: torch.randn(t.shape, generator=g).to(t.dtype) for n, t in network.initial_head.items()}


def merged(
    module: nn.Module, chosen: Sequence[Site], seen: Mapping[str, Tensor], base: Mapping[str, GrowingSum] | None = None
) -> Any:
    """A copy of ``module`` with every change added densely to its weights, and their rows stretched: the reference."""
    module = copy.deepcopy(module)
    with torch.no_grad():
        for s in chosen:
            change = s.scale * seen[f"{s.path}.B"] @ seen[f"{s.path}.A"]
            if base is not None and s.path in base:
                change = change + base[s.path].factors().dense()
            weight = module.get_submodule(s.path).weight
            weight += (change.T if s.kind == "conv1d" else change.reshape(weight.shape)).to(weight.dtype)
            if (magnitude := seen.get(f"{s.path}.magnitude")) is not None:
                rows = weight.T if s.kind == "conv1d" else weight
                rows *= (magnitude / rows.norm(dim=1))[:, None]
        for name, tensor in seen.items():
            if name.startswith(HEAD_PREFIX):
                module.get_parameter(name.removeprefix(HEAD_PREFIX)).copy_(tensor)
    return module


def text_batch(rows: int = 4, seed: int = 0) -> dict[str, Tensor]:
    """Input ids with ragged padding on the right; token 0 is padding."""
    g = torch.Generator().manual_seed(seed)
    ids = torch.randint(4, VOCABULARY, (rows, 9), generator=g)
    mask = torch.ones_like(ids)
    for row in range(rows):
        mask[row, 9 - row % 4 :] = 0
    return {"input_ids": ids * mask, "attention_mask": mask}


def image_batch(rows: int = 4, seed: int = 0, dtype: torch.dtype = torch.float64) -> dict[str, Tensor]:
    """Images of 3 x 11 x 10."""
    g = torch.Generator().manual_seed(seed)
    return {"pixel_values": torch.randn(rows, 3, 11, 10, generator=g, dtype=dtype)}


def tokenizer(kind: str = "bert", *, pad: bool = True) -> Any:
    """A tokenizer of whole words ``w0`` ... ``w35``; without ``pad`` it has no padding token.

    "bert": ``<s> a </s> b </s>`` with segments.
    "gpt": adds nothing.
    "llama": ``<s> a``.
    """
    inner = Tokenizer(models.WordLevel({w: i for i, w in enumerate(SPECIAL + WORDS)}, unk_token="<unk>"))
    inner.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    names = ["input_ids", "attention_mask"]
    marks = [("<s>", 2), ("</s>", 3)]
    if kind == "bert":
        names.insert(1, "token_type_ids")
        pair = "<s> $A </s> $B:1 </s>:1"
        inner.post_processor = processors.TemplateProcessing(single="<s> $A </s>", pair=pair, special_tokens=marks)
    elif kind == "llama":
        inner.post_processor = processors.TemplateProcessing(single="<s> $A", special_tokens=marks[:1])
    return transformers.PreTrainedTokenizerFast(
        tokenizer_object=inner,
        unk_token="<unk>",
        bos_token="<s>",
        eos_token="</s>",
        pad_token="<pad>" if pad else None,
        model_input_names=names,
    )


def saved(folder: Path, module: Any, coder: Any) -> str:
    """Save ``module`` and its tokenizer for ``from_pretrained``; return the folder."""
    module.save_pretrained(folder)
    coder.save_pretrained(folder)
    return str(folder)
