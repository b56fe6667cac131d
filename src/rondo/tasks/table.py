"""TODO"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from rondo.config.schema import RunConfig
from rondo.tasks.causal_lm import CausalLM
from rondo.tasks.classification import SequenceClassification
from rondo.tasks.task import Task


def _task(config: RunConfig, tokenizer: Any, labels: Sequence[str]) -> Task:
    task = config.task
    if task.kind == "sequence-classification":
        columns = [task.text] if isinstance(task.text, str) else list(task.text or ())
        return SequenceClassification(tokenizer, columns, task.label or "", labels, task.max_length)
    text = task.text if isinstance(task.text, str) else None
    prompt = [task.prompt] if isinstance(task.prompt, str) else list(task.prompt or ())
    return CausalLM(tokenizer, text, prompt, task.response, task.max_length)
