"""Scores of a finished run, or of a result from one in a folder of its own."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from rondo.data.client_rows import DATA, other_rows
from rondo.data.tables import Table
from rondo.errors import ConfigError, headed
from rondo.models.network import Base
from rondo.params import Params
from rondo.runs.assemble import Assembly, assemble
from rondo.runs.reopen import handed_over, is_result, reopen
from rondo.runs.samples import answers_of
from rondo.tasks.causal_lm import CausalLM
from rondo.tasks.task import Example


@headed("rondo evaluate")
def evaluate(
    path: str | Path,
    *,
    data: str | Path | Table | None = None,
    client: str | None = None,
    generate: bool = False,
    device: str = "auto",
    allow_code: bool = False,
    allow_changed: bool = False,
) -> dict[str, Any]:
    """Scores of a run directory, or of a folder that it handed over (a PEFT adapter, a whole model), on the run's test
    set, and on each of ``data.more_tests`` under its name.

    For a run, the newcomer's model is scored. With ``client``, that client's model is, also on its own validation rows.

    ``data``: a file or a table in memory with the run's columns, scored in place of all rows of the run, which are then
    not read.
    ``generate``: also score answers that the model generates (multiple choice: ``accuracy_generation``).
    ``allow_code``: import code of one's own that the run names; a directory may be anybody's.
    ``allow_changed``: score even if the base model, the rows, the settings or that code are not those of the run.

    Raises :class:`ConfigError`.
    """
    path = Path(path)
    if is_result(path):
        if client is not None:
            raise ConfigError.at("--client", "an adapter folder has one model; name the run directory instead")
        return _evaluate_result(path, data, device, generate, allow_code=allow_code, allow_changed=allow_changed)
    rows = ["test_examples_sha256", "more_tests", *(() if client is None else ("examples_sha256", "clients_sha256"))]
    if data is not None:
        rows = []
    opened = reopen(path, device, source=_SOURCE, rows=rows, allow_code=allow_code, allow_changed=allow_changed)
    assembly, (seen, base) = opened.assembly, opened.model(client)
    result = _on_tests(assembly, seen, base, data, generate)
    if client is not None and data is None:
        own = assembly.population.members[client].validation
        result["validation"] = _scored(assembly, seen, base, own, generate)
    return result


_SOURCE = "rondo evaluate"


def _evaluate_result(
    path: Path, data: str | Path | Table | None, device: str, generate: bool, *, allow_code: bool, allow_changed: bool
) -> dict[str, Any]:
    """Scores of the result in ``path``. The configuration in it names the data."""
    result = handed_over(path, check_paths=data is None, allow_code=allow_code, source=_SOURCE)
    assembly = assemble(result.config, device, labels=result.labels, with_rows=data is None)
    result.check_base(assembly.model.identity, allow_changed=allow_changed, source=_SOURCE)
    return _on_tests(assembly, result.tensors(assembly.model), {}, data, generate)


def _on_tests(
    assembly: Assembly, seen: Params, base: Base, data: str | Path | Table | None, generate: bool
) -> dict[str, Any]:
    """Scores on ``data``, or on the run's test set and those of ``data.more_tests``, by name."""
    result = {"test": _scored(assembly, seen, base, _examples(assembly, data), generate)}
    more = assembly.population.more_tests if data is None else {}
    return result | {name: _scored(assembly, seen, base, examples, generate) for name, examples in more.items()}


def _examples(assembly: Assembly, data: str | Path | Table | None) -> Sequence[Example]:
    """The examples of ``data``, or of the run's test set. Raises :class:`ConfigError`."""
    if data is None:
        return assembly.population.test
    examples = assembly.task.encode(other_rows(assembly.config, data, assembly.labels))
    if not examples:
        raise ConfigError.at(DATA, "nothing to score is left of the rows within task.max_length: name others")
    return examples


def _scored(
    assembly: Assembly, seen: Params, base: Base, examples: Sequence[Example], generate: bool
) -> dict[str, float | None]:
    scores = assembly.scorer({}).scores(seen, base, examples)
    if not generate:
        return scores
    task = assembly.task
    if not isinstance(task, CausalLM) or not task.scores_of_answers(examples[:0], []):
        message = f"only multiple-choice scores generated answers, not {assembly.config.task.kind}: remove it"
        raise ConfigError.at("--generate", message)
    return {**scores, **task.scores_of_answers(examples, answers_of(assembly, seen, base, examples))}
