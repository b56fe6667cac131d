"""Words that people use for a kind of task: the kind that does it, or the way where there is none."""

from __future__ import annotations

import difflib
from collections.abc import Iterable

KINDS = {
    "token-classification": "ner entities entity named-entity-recognition tagging tagger pos pos-tagging token tokens "
    "chunking slot-filling iob conll",
    "preference": "dpo ipo preferences preference-optimization pairwise rlhf hinge slic",
    "reward": "rm reward-model reward-modeling reward-modelling rewards bradley-terry",
    "embedding": "sts similarity sentence-similarity sentence-embedding sentence-transformers embeddings retrieval "
    "semantic-search feature-extraction contrastive mnrl triplet bi-encoder",
    "question-answering": "qa squad extractive-qa extractive-question-answering reading-comprehension",
    "sequence-classification": "text-classification sentiment sentiment-analysis intent intents topic nli",
    "sequence-regression": "text-regression stsb scoring rating",
    "causal-lm": "sft lm clm causal language-model language-modeling text-generation generation chat instruct "
    "instruction instructions instruction-tuning completion conversational supervised-fine-tuning",
    "seq2seq-lm": "seq2seq translation summarization summarisation text2text text2text-generation encoder-decoder t5",
    "multiple-choice": "mcq mmlu choices choice",
    "image-classification": "image images picture pictures vision vit",
    "regression": "tabular table numbers tabular-regression",
}
"""By kind, the words for it."""
_SEVERAL = "several-labels multi-label multi-label-classification multi-label-text-classification multi-labels"
_OTHERS = (
    "vqa visual-question-answering vlm vision-language image-to-text image-text-to-text captioning image-captioning "
    "asr speech speech-recognition automatic-speech-recognition whisper audio audio-classification "
    "object-detection segmentation image-segmentation depth-estimation text-to-image diffusion mlm fill-mask "
    "masked-lm kto orpo grpo ppo"
)


def _bare(word: str) -> str:
    """``Multi_Label`` as ``multilabel``."""
    return "".join(filter(str.isalnum, word.lower()))


_NAMED = {_bare(word): kind for kind, words in KINDS.items() for word in words.split()}
_HINTS = {
    **{word: f"did you mean {kind!r}?" for word, kind in _NAMED.items()},
    **dict.fromkeys(
        map(_bare, _SEVERAL.split()),
        "did you mean 'sequence-classification' or 'image-classification'? Rows with several labels are theirs, by "
        "task.label_separator, task.multi_label or a list of columns in task.label",
    ),
    **dict.fromkeys(
        map(_bare, _OTHERS.split()),
        "no kind does it: train.trainer takes a script of yours that does (docs/how-to/your-trainer.md)",
    ),
}


def hint(word: str, kinds: Iterable[str]) -> str:
    """A sentence about the word ``word``, which is none of ``kinds``; empty if nothing is known of it."""
    bare = {_bare(kind): kind for kind in kinds}
    known = _HINTS.get(_bare(word)) or (f"did you mean {bare[_bare(word)]!r}?" if _bare(word) in bare else "")
    near = [] if known else difflib.get_close_matches(word, bare.values())
    return f"did you mean {' or '.join(map(repr, near))}?" if near else known
