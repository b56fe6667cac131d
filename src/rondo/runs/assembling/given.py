"""Rows and a model that a program passes, in place of those that the configuration names."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from rondo.config import task_kinds as tasks
from rondo.config.inputs import GIVEN
from rondo.config.schema import RunConfig
from rondo.data.files.tables import Table
from rondo.errors import ConfigError, Problem

if TYPE_CHECKING:
    from transformers import PreTrainedModel, PreTrainedTokenizerBase

    from rondo.data.units import Parting

_ROWS = "to score or predict other rows, name them with data"
_MODEL = "its finished adapter is loaded by peft.PeftModel.from_pretrained(model, FOLDER)"
_OTHERWISE = {**dict.fromkeys(("data.source", "data.test_source", "data.clients_from"), _ROWS), "model.name": _MODEL}
"""Remedies, by key, in commands that take no such object."""


@dataclass(frozen=True)
class Given:
    """Rows, and a model with its tokenizer; None where the configuration names them."""

    train: Table | None = None
    test: Table | Mapping[str, Table] | None = None
    clients: Mapping[str, Table] | None = None
    model: PreTrainedModel | None = None
    tokenizer: PreTrainedTokenizerBase | None = None
    parting: Parting | None = None
    """Splits the rows of clients in place of the run's seed."""

    @property
    def sets(self) -> Sequence[str]:
        """Overrides by which a configuration says what was given."""
        return [f'{key}="{GIVEN}"' for key, (_, value) in self._places().items() if value is not None]

    def check(self, config: RunConfig, *, with_rows: bool = True) -> None:
        """Raise :class:`ConfigError` if an object is missing that ``config`` says was given, or if one is given that it
        does not speak of.

        ``with_rows``: whether rows are needed.
        """
        problems = []
        for key, (arguments, value) in self._places().items():
            section, _, name = key.partition(".")
            named = getattr(getattr(config, section), name)
            if named == GIVEN and value is None and (with_rows or key == "model.name"):
                message = f"it was {GIVEN}, so only a program can give it again: rondo.resume(RUN_DIR, {arguments})"
                problems.append(Problem(key, f"{message}; {_OTHERWISE[key]}"))
            if named != GIVEN and value is not None:
                message = f"the run has {key} = {named!r}: leave this argument out"
                problems.append(Problem(arguments.partition("=")[0], message))
        kind = tasks.TABLE.get(config.task.kind)
        if kind is not None and kind.inputs != "text":
            if self.tokenizer is not None:
                problems.append(Problem("tokenizer", f"a {config.task.kind} task has no text: leave it out"))
        elif (self.model is None) != (self.tokenizer is None):
            problems.append(Problem("tokenizer", "model and tokenizer go together: give both or neither"))
        if problems:
            raise ConfigError(problems)

    def _places(self) -> dict[str, tuple[str, object]]:
        """The key that each object stands for, with the arguments that take it, and the object."""
        return {
            "data.source": ("train=...", self.train),
            "data.test_source": ("test=...", self.test),
            "data.clients_from": ("clients=...", self.clients),
            "model.name": ("model=..., tokenizer=...", self.model),
        }


NOTHING = Given()
