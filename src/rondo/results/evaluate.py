"""Scores of a finished run, or of a result from one in a folder of its own; and those by lm-eval (EleutherAI's
harness), which no other file imports."""

from __future__ import annotations

import importlib.metadata
import json
import random
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import partial
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import torch

from rondo.config import packages
from rondo.config import task_kinds as kinds
from rondo.config.inputs import AT_SITES
from rondo.config.schema import RunConfig
from rondo.data.client_rows import other_rows
from rondo.data.files.tables import Table
from rondo.errors import ConfigError, headed
from rondo.models.forms.outline import look
from rondo.models.kernels.quiet import quiet
from rondo.models.networks.network import Base
from rondo.params import Params
from rondo.process import seeded
from rondo.records.directory import RunDirectory
from rondo.records.manifest import OPEN_ANYWAY, must_equal
from rondo.results.export import export
from rondo.results.predict import handed_over_by
from rondo.results.reopen import handed_over, is_result, reopen
from rondo.runs.assembling.assemble import MORE, TEST, assemble, rows_of_tests, test_files, with_tests
from rondo.runs.assembling.assembly import Assembly
from rondo.runs.assembling.device import find_device
from rondo.runs.samples import predictor
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
    result = _on_tests(model, data, generate, needed=client is None or not rows)
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
    if not test_files(assembly.config):
        message = "the run's rows are at its sites, and its server has no test set: name a file of rows"
        raise ConfigError.at(_DATA, message, _SOURCE)
    return with_tests(assembly, rows_of_tests(assembly.config, assembly.labels))


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
    if result.form == "merged" and result.config.task.kind == "preference":
        message = "pairs are compared with the model without its adapter, which a merged one no longer tells: name the "
        raise ConfigError.at("ADAPTER_DIR", f"{message}run, or its adapter", _SOURCE)
    assembly = assemble(result.config, device, labels=result.labels, with_rows=with_rows)
    result.check_base(assembly.model.identity, allow_changed=allow_changed, source=_SOURCE)
    return Scored(assembly, *assembly.model.read(path))


def _on_tests(model: Scored, data: str | Path | Table | None, generate: bool, *, needed: bool = True) -> dict[str, Any]:
    """Scores on ``data``, or on the run's test set and those of ``data.more_tests``, by name. Raises
    :class:`ConfigError` if there are none, where they are ``needed``."""
    if data is None:
        model.assembly.keep_tests()
        tests = model.assembly.population.tests
        if needed and not any(tests.values()):
            raise ConfigError.at(_DATA, "the run has no test set: name a file with rows to score it on")
        result: dict[str, Any] = {n: _scored(model, rows, generate, test=n) for n, rows in tests.items() if rows}
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


_OPTION, _FOLDER = "--lm-eval", "--lm-eval-tasks"


@headed(_SOURCE)
def evaluate_by_harness(
    path: str | Path,
    tasks: Sequence[str],
    folder: str | Path | None = None,
    *,
    client: str | None = None,
    device: str = "auto",
    allow_code: bool = False,
    allow_changed: bool = False,
) -> dict[str, Any]:
    """lm-eval's results for a run directory (the newcomer's model, or that of ``client``), or for a folder that it
    handed over.

    ``tasks``: names of tasks or groups.
    ``folder``: task files (YAML) in place of lm-eval's own, whose data come from a hub. Such a file can name Python
    code of its own, which lm-eval runs.

    The model is the base with the adapter as stock PEFT loads it, in float32, in batches of ``evaluation.batch_size``.
    Everything else is lm-eval's default: no chat template, and examples in the prompt as the task says. The other
    options are those of :func:`rondo.evaluate`. Raises :class:`ConfigError`.
    """
    if find_spec("lm_eval") is None:
        raise ConfigError.at(_OPTION, packages.missing("lm_eval"))
    if folder is not None and not Path(folder).is_dir():
        raise ConfigError.at(_FOLDER, f"{str(folder)!r} is not a folder: name the one with the task files")
    allowed = {"allow_code": allow_code, "allow_changed": allow_changed}
    if client is None:
        return _results(handed_over_by(Path(path)), tasks, folder, device, **allowed)
    if is_result(Path(path)):
        raise ConfigError.at("--client", _ONE_MODEL)
    with tempfile.TemporaryDirectory(prefix="rondo-") as place:
        adapter = Path(place, "adapter")
        export(path, adapter, client=client, allow_code=allow_code, allow_changed=allow_changed)
        return _results(adapter, tasks, folder, device, **allowed)


def _results(
    adapter: Path,
    names: Sequence[str],
    folder: str | Path | None,
    device: str,
    *,
    allow_code: bool,
    allow_changed: bool,
) -> dict[str, Any]:
    result = handed_over(adapter, check_paths=False, allow_code=allow_code, source=_SOURCE, with_method=False)
    kind = kinds.TABLE.get(result.config.task.kind)
    if kind is None or not kind.completes:
        raise ConfigError.at(_OPTION, "lm-eval scores causal models of transformers: name the run of one")
    outline = look(result.config, result.labels)
    if outline.problems:
        raise ConfigError(outline.problems)
    with quiet(), _own_draws(find_device(device)):
        from lm_eval import simple_evaluate
        from lm_eval.models.huggingface import HFLM
        from lm_eval.tasks import TaskManager

        manager = TaskManager(include_path=folder, include_defaults=folder is None)
        unknown = [name for name in names if name not in manager.all_tasks]
        if unknown or not names:
            known = ", ".join(sorted(manager.all_tasks)[:20])
            raise ConfigError.at(_OPTION, f"no task {', '.join(map(repr, unknown))}; there are: {known}")
        check = partial(result.check_base, allow_changed=allow_changed, source=_SOURCE)
        model, tokenizer = outline.stock(result.config, result.folder, check)
        size = result.config.evaluation.batch_size
        scored = HFLM(pretrained=model.to(find_device(device)), tokenizer=tokenizer, batch_size=size)
        try:
            scores = simple_evaluate(scored, tasks=list(names), task_manager=manager, log_samples=False)
        except (OSError, ValueError, KeyError, TypeError) as error:  # a task file may be wrong in any way
            reason = str(error).strip().split("\n")[0] or type(error).__name__
            raise ConfigError.at(_OPTION, f"lm-eval fails: {type(error).__name__}: {reason}; mend the task") from error
    kept = {key: scores[key] for key in ("results", "groups", "n-shot", "n-samples", "versions") if key in scores}
    content = {"lm_eval": importlib.metadata.version("lm_eval"), **kept}
    plain: dict[str, Any] = json.loads(json.dumps(content, default=str))
    return plain


@contextmanager
def _own_draws(device: torch.device) -> Iterator[None]:
    """Restore all random states afterwards: lm-eval seeds them."""
    import numpy

    python, numbers = random.getstate(), numpy.random.get_state()
    try:
        with seeded(None, device):
            yield
    finally:
        random.setstate(python)
        numpy.random.set_state(numbers)
