"""What is learned: rows to examples, examples to batches, outputs to losses and scores."""

from __future__ import annotations

from rondo.tasks.causal_lm import CausalLM
from rondo.tasks.classification import SequenceClassification
from rondo.tasks.task import Example, Row, Tally, Task

__all__ = ["CausalLM", "Example", "Row", "SequenceClassification", "Tally", "Task"]
