"""Scores of a finished run, or of a result from one in a folder of its own."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from rondo.config.inputs import AT_SITES
from rondo.config.schema import RunConfig
from rondo.data.client_rows import other_rows
from rondo.data.files.tables import Table
from rondo.errors import ConfigError, headed
from rondo.models.networks.network import Base
from rondo.params import Params
from rondo.records.directory import RunDirectory
from rondo.records.manifest import OPEN_ANYWAY, must_equal
from rondo.results.reopen import handed_over, is_result, reopen
from rondo.runs import server_tests
from rondo.runs.assemble import assemble
from rondo.runs.assembly import Assembly
from rondo.runs.samples import predictor
from rondo.runs.server_tests import MORE, TEST
from rondo.tasks.task import Example

_DATA = "--data"


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
    set, and on those of ``data.more_tests`` by name.

    For a run, the newcomer's model is scored. With ``client``, that client's model is, also on its own validation rows
    ("validation"), or on its own test rows ("own_test") where clients have such. Classifiers have ``titles`` beside the
    test sets, which say the class whose F1 ``f1`` is. A ``note`` says so where the client has no model of its own.

    ``data``: a file or a table in memory with the run's columns, scored in place of all rows of the run, which are then
    not read.
    ``generate``: also score answers that the model generates (multiple choice: ``accuracy_generation``).
    ``allow_code``: import code of one's own that the run names; a directory may be anybody's.
    ``allow_changed``: score even if the base model, the rows, the settings or that code are not those of the run.

    Raises :class:`ConfigError`.

    >>> scores = rondo.evaluate("runs/digits")
    >>> sorted(scores["test"])
    ['accuracy', 'auc', 'examples', 'f1', 'loss', 'matthews']
    """
    path = Path(path)
    if is_result(path):
        if client is not None:
            raise ConfigError.at("--client", _ONE_MODEL)
        config = handed_over(path, check_paths=False, allow_code=allow_code, source=_SOURCE).config
        of_server = data is None and _is_federation(config)
        with_rows = data is None and not of_server
        model = _handed_over(path, device, with_rows=with_rows, allow_code=allow_code, allow_changed=allow_changed)
        if of_server:
            model = replace(model, assembly=_with_tests(model.assembly))
        return _on_tests(model, data, generate)
    of_server = data is None and _is_federation(RunDirectory.open(path).config())
    rows = [TEST, MORE, *(() if client is None else ("examples_sha256", "clients_sha256"))]
    if data is not None or of_server:
        rows = []
    opened = reopen(path, device, source=_SOURCE, rows=rows, allow_code=allow_code, allow_changed=allow_changed)
    assembly = opened.assembly
    if of_server:
        assembly = _with_tests(assembly)
        before, after = opened.directory.read("partition.json"), assembly.population.report
        then, now = ({"partition": {key: report.get(key) for key in (TEST, MORE)}} for report in (before, after))
        must_equal(then, now, whatever=allow_changed, remedy=OPEN_ANYWAY, source=_SOURCE)
    model = Scored(assembly, *opened.model(client))
    result = _on_tests(model, data, generate)
    if client is not None and (reason := opened.not_its_own(client)) is not None:
        result["note"] = reason
    if client is not None and rows:
        population = opened.assembly.population
        rows_of_client = population.own_rows(population.members[client])
        result["own_test" if population.tested_at_clients else "validation"] = _scored(model, rows_of_client, generate)
    return result


def _is_federation(config: RunConfig) -> bool:
    """Whether the run's rows are at its sites, so that its server has test sets alone."""
    return config.data.clients_from == AT_SITES


def _with_tests(assembly: Assembly) -> Assembly:
    """A federation's run with its server's own test sets. Raises :class:`ConfigError`."""
    if not server_tests.files_of(assembly.config):
        message = "the run's rows are at its sites, and its server has no test set: name a file of rows"
        raise ConfigError.at(_DATA, message, _SOURCE)
    return server_tests.tested(assembly, server_tests.read(assembly.config, assembly.labels))


_SOURCE = "rondo evaluate"
_ONE_MODEL = "an adapter folder has one model; name the run directory instead"


@dataclass(frozen=True)
class Scored:
    """A model to score: the tensors that its network sees (no client axis), and the change of its base."""

    assembly: Assembly
    seen: Params
    base: Base


def model_of(
    path: str | Path, client: str | None, device: str, *, allow_code: bool = False, allow_changed: bool = False
) -> Scored:
    """The model of a run directory (the newcomer's, or that of ``client``), or of a folder that it handed over, without
    any rows. Raises :class:`ConfigError`."""
    path = Path(path)
    if is_result(path):
        if client is not None:
            raise ConfigError.at("--client", _ONE_MODEL)
        return _handed_over(path, device, with_rows=False, allow_code=allow_code, allow_changed=allow_changed)
    opened = reopen(path, device, source=_SOURCE, allow_code=allow_code, allow_changed=allow_changed)
    return Scored(opened.assembly, *opened.model(client))


def _handed_over(path: Path, device: str, *, with_rows: bool, allow_code: bool, allow_changed: bool) -> Scored:
    """The model in the folder ``path``. The configuration in it names the data."""
    result = handed_over(path, check_paths=with_rows, allow_code=allow_code, source=_SOURCE)
    assembly = assemble(result.config, device, labels=result.labels, with_rows=with_rows)
    result.check_base(assembly.model.identity, allow_changed=allow_changed, source=_SOURCE)
    return Scored(assembly, *assembly.model.read(path))


def _on_tests(model: Scored, data: str | Path | Table | None, generate: bool) -> dict[str, Any]:
    """Scores on ``data``, or on the run's test set and those of ``data.more_tests``, by name."""
    if data is None:
        model.assembly.keep_tests()
        tests = model.assembly.population.tests.items()
        result: dict[str, Any] = {name: _scored(model, rows, generate, test=name) for name, rows in tests}
    else:
        result = {"test": _scored(model, _other_examples(model.assembly, data), generate)}
    titles = model.assembly.task.titles
    return result | ({"titles": dict(titles)} if titles else {})


def _other_examples(assembly: Assembly, data: str | Path | Table) -> Sequence[Example]:
    """The examples of ``data``. Raises :class:`ConfigError`."""
    examples = assembly.task.encode(other_rows(assembly.config, data, assembly.labels, key=_DATA))
    if not examples:
        raise ConfigError.at(_DATA, "nothing to score is left of the rows within task.max_length: name others")
    return examples


def _scored(
    model: Scored, examples: Sequence[Example], generate: bool, *, test: str | None = None
) -> dict[str, float | None]:
    scores = model.assembly.scorer({}).scores(model.seen, model.base, examples, test=test)
    if not generate:
        return scores
    task = model.assembly.task
    if not task.scores_of_answers(examples[:0], []):
        message = f"only multiple-choice scores generated answers, not {model.assembly.config.task.kind}: remove it"
        raise ConfigError.at("--generate", message)
    answers = task.answered(examples, predictor(model.assembly, model.seen, model.base))
    return {**scores, **task.scores_of_answers(examples, answers)}
