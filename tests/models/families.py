"""The families of models that the table in docs/models.md lists, each as a random model of a few thousand numbers."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from typing import Any, Literal, get_args

import torch
import transformers
from tokenizers import Tokenizer, models, pre_tokenizers, processors

LONGEST = 64
"""Tokens that the models with positions take."""
SPECIAL = ("<s>", "<pad>", "</s>", "<unk>")
WORDS = tuple(f"w{i}" for i in range(96))

Outcome = Literal["together", "one at a time", "refused", "none"]
"""The clients of a run share calls, or train one at a time; the model is refused; transformers has no such model."""


Kind = Literal[
    *("sequence-classification", "several-labels", "reward", "token-classification", "question-answering", "embedding"),
    *("causal-lm", "preference", "seq2seq-lm", "image-classification"),
]
"""A kind of task; classification of rows that may have several labels counts as one."""
Shortcut = Literal[
    "clients together", "prefix reuse", "first token only", "targets-only logits", "packing", "checkpointing"
]


@dataclass(frozen=True)
class Family:
    """A family of models and what Rondo allows it."""

    config: str
    """The class of its configuration in transformers."""
    options: Mapping[str, Any]
    attention: tuple[str, ...]
    """Layers of its attention, in place of all linear ones."""
    classifies: tuple[Outcome, Outcome] = ("together", "together")
    """As a classifier, also of several labels, and as a reward model, with all linear layers adapted and with those of
    ``attention``."""
    tags: tuple[Outcome, Outcome] | None = None
    """As a classifier of tokens, likewise; None: as a classifier of texts."""
    answers: tuple[Outcome, Outcome] | None = None
    """For question answering; None: as a classifier of texts."""
    embeds: tuple[Outcome, Outcome] | None = None
    """For embeddings; None: as a classifier of texts."""
    speaks: tuple[Outcome, Outcome] = ("none", "none")
    """As a causal language model, likewise, also for preferences."""
    writes: tuple[Outcome, Outcome] = ("none", "none")
    """As a sequence-to-sequence model, likewise."""
    note: str = ""
    """For the reader of the table."""
    shortcuts: Mapping[Kind, Mapping[Shortcut, str]] = field(default_factory=dict)
    """By kind of task, the shortcuts that it does not allow where only its upper layer is adapted, with the manifest's
    reasons. Left out where shortcuts are not tried (``test_shortcuts_of_families.py``)."""

    @property
    def outcomes(self) -> Mapping[Kind, tuple[Outcome, Outcome]]:
        """By kind; that of pictures is not among them."""
        classes: Sequence[Kind] = ("sequence-classification", "several-labels", "reward")
        return {
            **dict.fromkeys(classes, self.classifies),
            "token-classification": self.tags or self.classifies,
            "question-answering": self.answers or self.classifies,
            "embedding": self.embeds or self.classifies,
            "causal-lm": self.speaks,
            "preference": self.speaks,
            "seq2seq-lm": self.writes,
        }


ALL: tuple[Outcome, Outcome] = ("together", "together")
ONE: tuple[Outcome, Outcome] = ("one at a time", "one at a time")
NO: tuple[Outcome, Outcome] = ("refused", "refused")
NAMED: tuple[Outcome, Outcome] = ("refused", "together")
NONE: tuple[Outcome, Outcome] = ("none", "none")

_IDS = {"bos_token_id": 0, "pad_token_id": 1, "eos_token_id": 2}
_SIZES = {"vocab_size": len(SPECIAL) + len(WORDS), "hidden_size": 32, "num_hidden_layers": 2, **_IDS}
_BERT = {**_SIZES, "num_attention_heads": 2, "intermediate_size": 48, "max_position_embeddings": LONGEST}
_ROBERTA = {**_BERT, "max_position_embeddings": LONGEST + 2}
_DEBERTA = {**_BERT, "relative_attention": True, "pos_att_type": ["c2p", "p2c"], "position_biased_input": False}
_LLAMA = {**_BERT, "num_attention_heads": 4, "num_key_value_heads": 2}
_GEMMA = {**_LLAMA, "head_dim": 8}
_MOE = {**_GEMMA, "moe_intermediate_size": 16, "num_experts": 4, "num_experts_per_tok": 2}
_OWN = {"vocab_size": _SIZES["vocab_size"], **_IDS}  # families with names of their own for their sizes

_QUERY, _Q, _QKV = ("query", "value"), ("q_proj", "v_proj"), ("query_key_value",)
_BOTH_SIDES = "no causal language model unless `is_decoder` is set in its config.json"
_POSITIONS = "two positions fewer than `max_position_embeddings`"
_NO_LOGITS: Mapping[Shortcut, str] = {
    "targets-only logits": "only a language model has logits of a vocabulary",
    "packing": "only a language model's rows are tried",
}
_FURTHER_TOKENS: Mapping[Shortcut, str] = {
    "first token only": "the model reads more than the first token of its last layer"
}
_NO_ATTENTION: Mapping[Shortcut, str] = {"first token only": "the last layer has no attention of a known name"}
_ENCODER: Mapping[Kind, Mapping[Shortcut, str]] = {"sequence-classification": _NO_LOGITS}
_DECODER: Mapping[Kind, Mapping[Shortcut, str]] = {
    "sequence-classification": {**_NO_LOGITS, **_NO_ATTENTION},
    "causal-lm": _NO_ATTENTION,
}
_NEOX: Mapping[Kind, Mapping[Shortcut, str]] = {
    "sequence-classification": {**_NO_LOGITS, **_FURTHER_TOKENS},
    "causal-lm": _FURTHER_TOKENS,
}
_BART = {
    **_OWN,
    "d_model": 32,
    "encoder_layers": 2,
    "decoder_layers": 2,
    "encoder_attention_heads": 2,
    "decoder_attention_heads": 2,
    "encoder_ffn_dim": 48,
    "decoder_ffn_dim": 48,
    "max_position_embeddings": LONGEST,
    "decoder_start_token_id": 2,
}
_T5 = {
    **_OWN,
    "d_model": 32,
    "d_kv": 16,
    "d_ff": 48,
    "num_layers": 2,
    "num_heads": 2,
    "decoder_start_token_id": 1,
    "initializer_factor": 0.5,  # its attention is not scaled, and steep softmaxes round more
}
_PAIRS: Mapping[Shortcut, str] = {
    **_NO_ATTENTION,
    "prefix reuse": "an encoder's states and a decoder's would have to be kept for every row",
    "packing": "a decoder attends from one sequence to another, which are not laid out together",
}
_BIASED: Mapping[Shortcut, str] = {
    **_PAIRS,
    "targets-only logits": "the model does not do the same without its output layer",
}
_CROSS = "as a language model its cross-attention stays untrained"
_RELATIVE = "projections of relative positions are shared by all rows"
_EXPERTS = "experts and routers cannot be adapted: name layers in `adapter.target_modules`"

FAMILIES: dict[str, Family] = {
    "BERT": Family("BertConfig", _BERT, _QUERY, speaks=NO, note=_BOTH_SIDES, shortcuts=_ENCODER),
    "RoBERTa": Family(
        "RobertaConfig", _ROBERTA, _QUERY, speaks=NO, note=f"{_POSITIONS}; {_BOTH_SIDES}", shortcuts=_ENCODER
    ),
    "XLM-R": Family("XLMRobertaConfig", _ROBERTA, _QUERY, speaks=NO, note=f"{_POSITIONS}; {_BOTH_SIDES}"),
    "DistilBERT": Family(
        "DistilBertConfig",
        {**_OWN, "dim": 32, "n_layers": 2, "n_heads": 2, "hidden_dim": 48, "max_position_embeddings": LONGEST},
        ("q_lin", "v_lin"),
        shortcuts={"sequence-classification": {**_NO_LOGITS, **_FURTHER_TOKENS}},
    ),
    "ALBERT": Family("AlbertConfig", {**_BERT, "embedding_size": 16}, _QUERY, note="one adapter serves all layers"),
    "ELECTRA": Family("ElectraConfig", {**_BERT, "embedding_size": 16}, _QUERY, speaks=NO, note=_BOTH_SIDES),
    "DeBERTa": Family(
        "DebertaConfig", _DEBERTA, ("in_proj",), classifies=("one at a time", "together"), note=_RELATIVE
    ),
    "DeBERTa v2": Family(
        "DebertaV2Config",
        {**_DEBERTA, "conv_kernel_size": 3},
        ("query_proj", "value_proj"),
        classifies=("one at a time", "together"),
        note=_RELATIVE,
    ),
    "DeBERTa v3": Family(
        "DebertaV2Config",
        {**_DEBERTA, "share_att_key": True, "position_buckets": 8, "norm_rel_ebd": "layer_norm"},
        ("query_proj", "value_proj"),
        classifies=ONE,
        note="query and key projections also serve relative positions, which all rows share",
        shortcuts={
            "sequence-classification": {
                **_NO_LOGITS,
                "clients together": "the clients' rows cannot be told apart in "
                "deberta.encoder.layer.1.attention.self.query_proj (its input is not one row per example)",
            }
        },
    ),
    "MPNet": Family("MPNetConfig", _ROBERTA, ("q", "v"), note=_POSITIONS),
    "Funnel": Family(
        "FunnelConfig",
        {**_OWN, "d_model": 32, "n_head": 2, "d_head": 16, "d_inner": 48, "block_sizes": [1, 1, 1]},
        ("q_head", "v_head"),
        classifies=ONE,
        note="pooling depends on the length that a batch is padded to",
    ),
    "BigBird": Family(
        "BigBirdConfig",
        {**_BERT, "block_size": 16, "num_random_blocks": 1},
        _QUERY,
        answers=ONE,
        speaks=NO,
        note=f"full attention only, up to (5 + 2 `num_random_blocks`) `block_size` tokens (704); {_BOTH_SIDES}",
    ),
    "Longformer": Family(
        "LongformerConfig",
        {**_ROBERTA, "attention_window": 8},
        _QUERY,
        classifies=ONE,
        note=f"tokens come before rows in its attention; {_POSITIONS}",
    ),
    "XLNet": Family(
        "XLNetConfig",
        {**_OWN, "d_model": 32, "n_layer": 2, "n_head": 2, "d_inner": 48},
        ("layer_1", "layer_2"),
        classifies=NO,
        tags=ONE,
        answers=ONE,
        embeds=ONE,
        speaks=NO,
        note="classifies by the last token, where rows are padded; sees the words that it is to predict",
    ),
    "ModernBERT": Family(
        "ModernBertConfig",
        {**_BERT, "cls_token_id": 0, "sep_token_id": 2, "global_attn_every_n_layers": 2, "local_attention": 8},
        ("Wqkv",),
        classifies=ONE,
        embeds=ALL,
        note="its head has a normalisation",
        shortcuts={
            "sequence-classification": {
                **_NO_LOGITS,
                **_NO_ATTENTION,
                "clients together": "the head has trained tensors in LayerNorm",
            }
        },
    ),
    "BART": Family(
        "BartConfig",
        _BART,
        _Q,
        tags=NONE,
        embeds=NO,
        speaks=ALL,
        writes=ALL,
        note=f"as a classifier its tokenizer must end every row; {_CROSS}",
        shortcuts={"seq2seq-lm": _BIASED},
    ),
    "mBART": Family(
        "MBartConfig",
        _BART,
        _Q,
        tags=NONE,
        embeds=NO,
        speaks=ALL,
        writes=ALL,
        note="its tokenizer must end every row, for sequence to sequence with `decoder_start_token_id`, as mBART-50's "
        f"does; {_CROSS}",
        shortcuts={"seq2seq-lm": _BIASED},
    ),
    "Marian": Family(
        "MarianConfig",
        _BART,
        _Q,
        classifies=NONE,
        embeds=NO,
        speaks=ALL,
        writes=ALL,
        note=_CROSS,
        shortcuts={"seq2seq-lm": _BIASED},
    ),
    "Pegasus": Family(
        "PegasusConfig",
        _BART,
        _Q,
        classifies=NONE,
        embeds=NO,
        speaks=ALL,
        writes=ALL,
        note=_CROSS,
        shortcuts={"seq2seq-lm": _BIASED},
    ),
    "M2M100": Family(
        "M2M100Config",
        _BART,
        _Q,
        classifies=NONE,
        embeds=NO,
        writes=ALL,
        note="NLLB too",
        shortcuts={"seq2seq-lm": _PAIRS},
    ),
    "LED": Family(
        "LEDConfig",
        {
            **{name: value for name, value in _BART.items() if name != "max_position_embeddings"},
            "max_encoder_position_embeddings": LONGEST,
            "max_decoder_position_embeddings": LONGEST,
            "attention_window": 8,
        },
        ("query", "value"),
        classifies=NONE,
        answers=ONE,
        embeds=NO,
        writes=ONE,
        note="tokens come before rows in its encoder's attention; rows are read in whole windows (`attention_window`)",
        shortcuts={
            "seq2seq-lm": {
                **_BIASED,
                "clients together": "the clients' rows cannot be told apart in "
                "led.encoder.layers.1.self_attn.longformer_self_attn.query (its input is not one row per example)",
            }
        },
    ),
    "T5": Family(
        "T5Config",
        _T5,
        ("q", "v"),
        answers=NO,
        embeds=NO,
        writes=ALL,
        note="Flan-T5 and mT5 too; as a classifier its tokenizer must end every row",
        shortcuts={
            "sequence-classification": {
                **_NO_LOGITS,
                **_NO_ATTENTION,
                "prefix reuse": "adapted layers are in several lists: "
                "transformer.decoder.block, transformer.encoder.block",
            },
            "seq2seq-lm": _PAIRS,
        },
    ),
    "UMT5": Family(
        "UMT5Config",
        _T5,
        ("q", "v"),
        answers=NO,
        embeds=NO,
        writes=ALL,
        note="as a classifier its tokenizer must end every row",
        shortcuts={"seq2seq-lm": _PAIRS},
    ),
    "LongT5": Family(
        "LongT5Config",
        {**_T5, "local_radius": 4},
        ("q", "v"),
        classifies=NONE,
        embeds=NO,
        writes=ALL,
        shortcuts={"seq2seq-lm": _PAIRS},
    ),
    "Llama": Family("LlamaConfig", _LLAMA, _Q, speaks=ALL, shortcuts=_DECODER),
    "Qwen3": Family("Qwen3Config", _GEMMA, _Q, speaks=ALL, shortcuts=_DECODER),
    "Qwen3-MoE": Family("Qwen3MoeConfig", _MOE, _Q, classifies=NAMED, speaks=NAMED, note=_EXPERTS),
    "Gemma": Family("GemmaConfig", _GEMMA, _Q, answers=NONE, speaks=ALL),
    "Gemma 2": Family("Gemma2Config", {**_GEMMA, "sliding_window": 8}, _Q, answers=NONE, speaks=ALL),
    "Gemma 3": Family(
        "Gemma3TextConfig",
        {**_GEMMA, "sliding_window": 8},
        _Q,
        tags=NONE,
        answers=NONE,
        speaks=ALL,
        note="text models",
        shortcuts=_DECODER,
    ),
    "Mistral": Family("MistralConfig", {**_LLAMA, "sliding_window": 8}, _Q, speaks=ALL, shortcuts=_DECODER),
    "Phi": Family("PhiConfig", _LLAMA, _Q, answers=NONE, speaks=ALL, shortcuts=_DECODER),
    "Phi-3": Family("Phi3Config", _LLAMA, ("qkv_proj",), answers=NONE, speaks=ALL),
    "OPT": Family(
        "OPTConfig", {**_BERT, "ffn_dim": 48, "word_embed_proj_dim": 32}, _Q, tags=NONE, speaks=ALL, shortcuts=_DECODER
    ),
    "GPT-2": Family(
        "GPT2Config",
        {**_OWN, "n_embd": 32, "n_layer": 2, "n_head": 2, "n_positions": LONGEST},
        ("c_attn",),
        speaks=ALL,
        shortcuts=_DECODER,
    ),
    "GPT-NeoX": Family("GPTNeoXConfig", _BERT, _QKV, speaks=ALL, shortcuts=_NEOX),
    "Bloom": Family("BloomConfig", {**_OWN, "hidden_size": 32, "n_layer": 2, "n_head": 2}, _QKV, speaks=ALL),
    "Falcon": Family("FalconConfig", {**_SIZES, "num_attention_heads": 2}, _QKV, speaks=ALL),
    "OLMoE": Family("OlmoeConfig", _MOE, _Q, classifies=NONE, embeds=NAMED, speaks=NAMED, note=_EXPERTS),
    "Mamba": Family(
        "MambaConfig",
        {**_SIZES, "state_size": 4},
        ("in_proj", "x_proj"),
        classifies=NONE,
        embeds=NAMED,
        speaks=NAMED,
        note="PEFT adapts no `out_proj`: name layers in `adapter.target_modules`",
    ),
    "ViT": Family(
        "ViTConfig",
        {**_BERT, "image_size": 16, "patch_size": 8},
        _Q,
        classifies=NO,
        tags=NONE,
        answers=NONE,
        speaks=NO,
        note="no text model",
        shortcuts={
            "image-classification": dict.fromkeys(
                ("prefix reuse", "first token only", "targets-only logits", "packing"), "it is made for rows of tokens"
            )
        },
    ),
}


@cache
def tokenizer() -> Any:
    """A tokenizer of words that puts ``<s>`` before a row and ``</s>`` behind it, and joins two as RoBERTa's does."""
    inner = Tokenizer(models.WordLevel({w: i for i, w in enumerate(SPECIAL + WORDS)}, unk_token="<unk>"))
    inner.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    marks = [("<s>", 0), ("</s>", 2)]
    inner.post_processor = processors.TemplateProcessing(
        single="<s> $A </s>", pair="<s> $A </s> </s> $B </s>", special_tokens=marks
    )
    return transformers.PreTrainedTokenizerFast(
        tokenizer_object=inner,
        bos_token="<s>",
        pad_token="<pad>",
        eos_token="</s>",
        unk_token="<unk>",
        model_input_names=["input_ids", "attention_mask"],
    )


AUTO = {
    **dict.fromkeys(("sequence-classification", "several-labels", "reward"), "AutoModelForSequenceClassification"),
    "token-classification": "AutoModelForTokenClassification",
    "question-answering": "AutoModelForQuestionAnswering",
    "embedding": "AutoModel",
    **dict.fromkeys(("causal-lm", "preference"), "AutoModelForCausalLM"),
    "seq2seq-lm": "AutoModelForSeq2SeqLM",
    "image-classification": "AutoModelForImageClassification",
}


def save(family: Family, kind: Kind, folder: Path) -> Path:
    """Save a random model and the tokenizer; return the folder. A family without a model of this kind is saved as the
    body alone, as a user who picked the wrong one would have it."""
    config = getattr(transformers, family.config)(**family.options, architectures=[])
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        try:
            module = getattr(transformers, AUTO[kind]).from_config(config)
        except ValueError:
            module = transformers.AutoModel.from_config(config)
    module.save_pretrained(folder)
    tokenizer().save_pretrained(folder)
    return folder


COLUMNS: Mapping[str, Kind] = {
    "classification, several labels, reward": "sequence-classification",
    "token classification": "token-classification",
    "question answering": "question-answering",
    "embedding": "embedding",
    "language model, preference": "causal-lm",
    "sequence to sequence": "seq2seq-lm",
}
"""Of the table, with a kind each. Kinds of a column have the same outcomes."""


def table() -> list[str]:
    """The rows of the table in docs/models.md. Families of which the same holds share one."""
    rows = [f"| families | {' | '.join(COLUMNS)} | clients | note |", "|---" * (len(COLUMNS) + 3) + "|"]
    alike: dict[tuple[str, ...], list[str]] = {}
    for name, family in FAMILIES.items():
        allowed = (_allowed(family.outcomes[kind]) for kind in COLUMNS.values())
        alike.setdefault((*allowed, _clients(family), family.note), []).append(name)
    return rows + [
        f"| {' | '.join([', '.join(names), *cells])} |".replace("|  |", "| |") for cells, names in alike.items()
    ]


SHORTCUTS = get_args(Shortcut)


def _allowed(outcomes: tuple[Outcome, Outcome]) -> str:
    return {"none": "none", "refused": "refused" if outcomes[1] == "refused" else "named layers"}.get(
        outcomes[0], "yes"
    )


def _clients(family: Family) -> str:
    """How clients train, with the columns for which it is otherwise."""
    alike: dict[str, list[str]] = {}
    for column, kind in COLUMNS.items():
        trained = [outcome for outcome in family.outcomes[kind] if outcome not in ("refused", "none")]
        if trained:
            both = "one at a time; together without such projections"
            alike.setdefault(both if len(set(trained)) == 2 else trained[0], []).append(column)
    most = max(alike, key=lambda how: len(alike[how]), default="")
    return "; ".join([most, *(f"{', '.join(columns)} {how}" for how, columns in alike.items() if how != most)])
