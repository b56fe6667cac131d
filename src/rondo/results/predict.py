"""Predictions for new rows: labels, numbers, entities, answers of a context, responses of a language model."""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import Any

from rondo.config.schema import RunConfig
from rondo.data.client_rows import other_rows, refuse
from rondo.data.files.image_files import FILE
from rondo.data.files.placed import places_of
from rondo.data.files.tables import Rows, Table
from rondo.errors import ConfigError, headed
from rondo.models.forms.generation import Generation
from rondo.models.forms.model import NetworkPredictor
from rondo.models.forms.outline import look
from rondo.records.directory import RunDirectory
from rondo.results.reopen import handed_over, is_result, reopen
from rondo.runs.assembling.device import find_device
from rondo.runs.assembling.given import NOTHING
from rondo.tasks.row_checks import UnusableRows
from rondo.tasks.task import Predictor, Task

_SOURCE, _DATA = "rondo predict", "--data"


@headed(_SOURCE)
def predict(
    path: str | Path,
    data: str | Path | Table,
    *,
    client: str | None = None,
    device: str = "auto",
    max_new_tokens: int = 64,
    allow_code: bool = False,
    allow_changed: bool = False,
) -> list[dict[str, Any]]:
    """One prediction per row of ``data``, in the order of its rows.

    ``path``: a folder that a run handed over (a PEFT adapter, a whole model), or a run directory, whose ``adapter/`` is
    taken.
    ``data``: a file or a table in memory with the run's columns of text, prompts, conversations, contexts and
    questions, pictures or numbers; labels, responses and answers are not read. Pictures may also be in a folder, or in
    an archive without labels.
    ``client``: predict with this client's own model, of a run directory.
    ``max_new_tokens``: most tokens of a response.
    ``allow_code``: import a network of one's own that the run names; a directory may be anybody's.
    ``allow_changed``: predict even if the base model is not that of the run.

    Token classification gives ``spans``, a list of ``start``, ``end``, ``label``, ``text`` and ``score``. Start and end
    count characters of a text, or tokens of a list. A classifier gives ``label`` and its ``probability``, multiple
    choice ``choice`` and its ``probability``, a regression ``prediction``, a reward model ``reward``, an embedding
    ``embedding``, a list. Question answering gives ``answer``, its ``probability`` among the answers that its window
    allows, and ``answer_start``, the character of the context where it starts (None, and an empty answer, where
    the question has none). A language model gives a ``response``, which continues or answers the prompt, the
    conversation or the text greedily. A task of one's own gives the columns of its ``predicted``. Pictures of a folder
    have their ``file`` first. Weights are in the task's precision: float32, unless a task of one's own has
    another. Raises :class:`ConfigError`.

    >>> predictions = rondo.predict("runs/digits", new_client)
    >>> len(predictions), sorted(predictions[0])
    (100, ['label', 'probability'])
    """
    if max_new_tokens < 1:
        raise ConfigError.at("--max-new-tokens", f"must be at least 1, got {max_new_tokens}")
    path = Path(path)
    if client is not None:
        if is_result(path):
            raise ConfigError.at("--client", "the folder has one model; name the run directory instead")
        opened = reopen(path, device, source=_SOURCE, exact=True, allow_code=allow_code, allow_changed=allow_changed)
        config, task = opened.assembly.config, opened.assembly.task
        rows = other_rows(config, data, (), key=_DATA, answers=False)
        how = _how(config, max_new_tokens, rows)
        model = NetworkPredictor(opened.assembly.model, *opened.model(client), how)
        return _predicted(task, rows, model)
    target = find_device(device)
    result = handed_over(
        handed_over_by(path), check_paths=False, allow_code=allow_code, source=_SOURCE, with_method=False
    )
    config = result.config
    NOTHING.check(config, with_rows=False)
    rows = other_rows(config, data, (), key=_DATA, answers=False)
    outline = look(config, result.labels)
    if outline.problems:
        raise ConfigError(outline.problems)
    check = partial(result.check_base, allow_changed=allow_changed, source=_SOURCE)
    how = _how(config, max_new_tokens, rows)
    return _predicted(outline.task, rows, outline.predictor(config, result.folder, target, how, check))


def _how(config: RunConfig, max_new_tokens: int, rows: Rows) -> Generation:
    return Generation(max_new_tokens, config.evaluation.batch_size, option="--max-new-tokens", place=places_of(rows))


def _predicted(task: Task, rows: Rows, model: Predictor) -> list[dict[str, Any]]:
    """The predictions for ``rows``, those of pictures in a folder with their files."""
    try:
        predictions = task.predictions(rows, model)
    except UnusableRows as unusable:
        place = places_of(rows)
        refuse([problem.at(place(problem.row)) for problem in unusable.problems], _DATA)
        raise
    if any(FILE in row for row in rows):
        return [{FILE: row.get(FILE), **p} for row, p in zip(rows, predictions, strict=True)]
    return predictions


def handed_over_by(path: Path) -> Path:
    """The folder with the model: ``path``, or the ``adapter/`` of this run directory. Raises :class:`ConfigError`."""
    if is_result(path):
        return path
    directory = RunDirectory.open(path)
    if not directory.adapter.is_dir():
        raise ConfigError.at("RUN_DIR", f"{str(path)!r} has no adapter yet: finish the run with rondo resume")
    return directory.adapter
