"""From a configuration to a run, in one straight sequence; and the test sets of a federation's server, which has files
of its own and no rows of clients."""

from __future__ import annotations

import gc
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from itertools import chain, islice
from typing import Any

import torch

from rondo import algorithms, own_code
from rondo.algorithm import Algorithm
from rondo.algorithms.compatible import refused
from rondo.config.checks import BUILTINS, data_source
from rondo.config.schema import RunConfig
from rondo.data.client_rows import Dealt, deal_rows, other_rows, resolved
from rondo.data.files.tables import Rows
from rondo.data.labels import find_labels
from rondo.data.named_columns import check_columns
from rondo.data.population import Population, build, nothing_left
from rondo.data.sources import Source
from rondo.data.sources import load as load_source
from rondo.engine.client import own_trainer
from rondo.engine.client.cohorts import one_cohort
from rondo.engine.client.flops import Flops
from rondo.engine.server.ranks import client_ranks
from rondo.engine.transport import Phase
from rondo.errors import ConfigError, Problem
from rondo.models.forms.model import Model, Outline
from rondo.models.forms.outline import look
from rondo.models.forms.trial import try_out
from rondo.models.networks.whole_network import normalises_by_batch
from rondo.models.shortcuts.choose import SAMPLE
from rondo.params import adapted_modules, head, magnitude
from rondo.process import computes
from rondo.runs.assembling.assembly import Assembly, Simulated
from rondo.runs.assembling.device import find_device
from rondo.runs.assembling.given import NOTHING, Given
from rondo.runs.assembling.private import check_accountant, check_patience, check_sum
from rondo.runs.assembling.wrapping import compressed, make_algorithm, wrapped
from rondo.tasks.make import task_class
from rondo.tasks.task import Example, Task


def assemble(
    config: RunConfig,
    device: str,
    *,
    labels: Sequence[str] | None = None,
    with_rows: bool = True,
    given: Given = NOTHING,
    phase: Callable[[Phase], None] = lambda name: None,
) -> Assembly:
    """Load everything that ``config`` names and deal its rows.

    ``labels``: the labels of a run that is opened again.
    ``with_rows``: False leaves the data alone.
    ``given``: rows and a model in place of those that ``config`` names.
    ``phase``: told of the work from now on.

    Raises :class:`ConfigError`. Faults are reported in this order: the algorithm's options, the data, the model's
    structure, its weights.
    """
    computes()
    given.check(config, with_rows=with_rows)
    with collector_paused():  # everything loaded here stays, so the collector would scan it in vain
        algorithm = make_algorithm(config)
        target = find_device(device)
        if target.type == "cuda" and target.index is not None:
            torch.cuda.set_device(target)  # otherwise pinned memory would take up room on the first device
        config, labels, dealt = (
            _dealt(config, labels, given, phase) if with_rows else (config, tuple(labels or ()), None)
        )
        phase("opening")
        outline = looked(config, algorithm, labels, given)
        config = config.model_copy(update={"task": outline.task.completed(config.task)})
        _check_structure(config, algorithm, outline, dealt)
        population = Population({}, (), {})
        if dealt is not None:
            phase("tokenising")
            population = build(config, dealt, outline.task, labels, given.parting)
        phase("loading")
        model = outline.load(config, target)
        if dealt is not None:
            # Layers that the checkpoint lacks belong to the head and are not adapted: ranks are known only now.
            packed, sites = compressed(config.compression, algorithm), model.network.sites.values()
            ranks = client_ranks(config, packed, sites, len(dealt.rows))
            if ranks is not None:
                population = population.with_ranks(dict(zip(dealt.rows, ranks, strict=True)))
            del dealt  # torch.fx keeps the frames beneath its first import alive until the collector runs
        _must_train(config, algorithm, model)
        algorithm, head_policy, initial = wrapped(config, algorithm, model.network.initial, population.clients)
        if head_policy == "frozen":
            model.network.freeze_head()
        if config.train.checkpointing:
            model.network.recompute_layers()
        task = outline.task
        facts = (labels, task, population, model, initial, None, None, Simulated())
        run = Assembly(config, target, algorithm, head_policy, *facts)
        if with_rows:
            _must_score(run)
        phase("trying")
        return tried(run)


def tried(run: Assembly) -> Assembly:
    """The run with its network tried on some of its rows, and with the shortcuts that the network allows. Without rows
    nothing is changed. Raises :class:`ConfigError` if the network does not run on them.

    A server without rows to train on tries it on its test sets, so that its scores are, to the last bit, those of a
    simulation, which takes the same shortcuts."""
    config, network, population = run.config, run.model.network, run.population
    with one_cohort(network):
        examples = population.sample(SAMPLE) or tuple(islice(chain(*population.tests.values()), SAMPLE))
        try_out(config.model.name, network, run.task, examples)
        if network.layout == "contiguous":
            population = population.warned(_CONTIGUOUS)
        if config.train.micro_batch is not None and network.minds_padding:
            message = "a row's output depends on how far this model's rows are padded, so a step in parts would be "
            raise ConfigError.at("train.micro_batch", f"{message}another step: remove it")
        if config.guarantee.of_rows and network.draws:
            message = "the network draws from a stream of random numbers that all rows share, so one row more changes "
            message += "the gradients of all others: drop by torch.nn.Dropout, which draws row by row, or not at all"
            raise ConfigError.at("model.name", message)
        flops = Flops.of(network, network.initial, run.task, examples)
        task, prefix = run.model.shorten(run.task, examples)
        task = task.compared_with(network.switched_off)
    return replace(run, task=task, population=population, prefix=prefix, flops=flops)


_CONTIGUOUS = (
    "model.name: the network does not run on pictures that are laid out pixel by pixel, which is faster, so they are "
    "laid out channel by channel: write flatten or reshape in its forward, not view"
)


def deal(config: RunConfig, given: Given = NOTHING, source: Source | None = None) -> tuple[Population, Task]:
    """The rows of ``config`` as a run would deal them, and the task that reads them; no weights are loaded.
    ``source``: all rows, where they are loaded already. Raises :class:`ConfigError` as :func:`assemble` does."""
    given.check(config, with_rows=True)
    with collector_paused():
        algorithm = make_algorithm(config)
        config, labels, dealt = _dealt(config, None, given, source=source)
        outline = looked(config, algorithm, labels, given)
        config = config.model_copy(update={"task": outline.task.completed(config.task)})
        _check_structure(config, algorithm, outline, dealt)
        return build(config, dealt, outline.task, labels), outline.task


def _dealt(
    config: RunConfig,
    labels: Sequence[str] | None,
    given: Given,
    phase: Callable[[Phase], None] = lambda name: None,
    source: Source | None = None,
) -> tuple[RunConfig, tuple[str, ...], Dealt]:
    """``config`` with everything that its data know, the labels, and the rows, dealt. ``labels``: if they are known."""
    phase("reading")
    if source is None:
        source = load_source(config, given.train, given.test, given.clients)
    phase("dealing")
    config = resolved(config, source)
    own_names_needed = config.guarantee.noise_from is not None and data_source(config) not in BUILTINS
    if own_names_needed and config.task.named_labels is None and task_class(config.task.kind).classes:
        message = "the classes would be those of the clients' rows, so a name tells of a row: name them all"
        raise ConfigError.at("task.labels", message)
    check_columns(config, source)
    labels = find_labels(config, source) if labels is None else tuple(labels)
    return config, labels, deal_rows(config, source, labels)


def looked(config: RunConfig, algorithm: Algorithm[Any], labels: Sequence[str], given: Given = NOTHING) -> Outline:
    """The outline of the model, which ``algorithm`` can train. Raises :class:`ConfigError`."""
    outline = look(config, labels, given.model, given.tokenizer)
    if algorithm.traits.least_squares and outline.task.least_squares is None:
        message = f"it minimises a squared error exactly, and {config.task.kind} has another loss: "
        raise ConfigError.at("algorithm.name", message + "take a general method, or task.kind = 'linear'")
    return outline


def _check_structure(config: RunConfig, algorithm: Algorithm[Any], outline: Outline, dealt: Dealt | None) -> None:
    """Raise :class:`ConfigError` with everything that the model's structure does not allow, clients' ranks included."""
    problems: list[Problem] = list(outline.problems)
    try:
        if dealt is not None and outline.sites:
            client_ranks(config, compressed(config.compression, algorithm), outline.sites, len(dealt.rows))
    except ConfigError as error:
        problems += error.problems
    if problems:
        raise ConfigError(problems)
    if dealt is not None:
        check_sum(config, len(dealt.rows))


def _must_train(config: RunConfig, algorithm: Algorithm[Any], model: Model) -> None:
    """Raises :class:`ConfigError` where the method is about low-rank factors and the network takes none, where
    ``model.head`` is set for a network without a head, where ``train.micro_batch`` would change the step, where
    ``train.trainer`` cannot be loaded, and where private steps would have no gradient of a row or no epsilon. A method
    and a network of the user's own are left to agree."""
    initial, both_own = model.network.initial, model.form == "tensors" and own_code.is_name(config.algorithm.name)
    if algorithm.traits.needs_factors and not both_own and not adapted_modules(initial):
        message = f"{config.algorithm.name} trains low-rank factors, and this network has no adapted layer: "
        message += "add a section [adapter], or take one of "
        message += ", ".join(n for n, e in algorithms.TABLE.items() if not e.traits.needs_factors)
        if own_code.is_name(config.algorithm.name):
            message += "; a method of your own that trains whole tensors sets needs_factors=False in its traits"
        raise ConfigError.at("algorithm.name", message)
    if algorithm.traits.gated and (cause := model.network.no_pairs) is not None:
        message = f"{config.algorithm.name} has several pairs of factors in a layer, which this network cannot: {cause}"
        raise ConfigError.at("algorithm.name", f"{message}; take another method, or factors alone on linear layers")
    reason = refused(algorithm.traits, linear=algorithm.linear).get("magnitudes")
    if reason is not None and any(map(magnitude, initial)):
        message = f"its layers have magnitudes (use_dora). {config.algorithm.name}: {reason}; name another"
        raise ConfigError.at("adapter.start_from", message)
    if config.train.micro_batch is not None and normalises_by_batch(model.network):
        message = "the network normalises by the batch, and a part of a batch is another batch: remove it"
        raise ConfigError.at("train.micro_batch", message)
    if config.train.trainer is not None:
        own_trainer.load(config.train.trainer)
    check_accountant(config)
    if config.guarantee.of_rows and normalises_by_batch(model.network):
        message = (
            "the network normalises by the batch, so no gradient is of one row: take one with another normalisation"
        )
        raise ConfigError.at("model.name", message)
    if config.model.head is not None and not any(map(head, initial)):
        raise ConfigError.at("model.head", "this network has no task head; remove it")


def _must_score(run: Assembly) -> None:
    """Raises :class:`ConfigError` where ``patience`` waits for a score that no round has."""
    evaluation = run.config.evaluation
    check_patience(run.config, tested=bool(run.population.test))
    wanted = "clients_every" if run.best_at_clients else "every"
    if evaluation.patience and getattr(evaluation, wanted) == 0:
        message = f"no round but the last is scored, so the run cannot end early: set evaluation.{wanted}"
        raise ConfigError.at("evaluation.patience", message)


_OWN = 10_000
"""Python 3.12 freezes some hundreds of its own objects. More frozen objects than this were frozen by the program; do
not unfreeze them."""


@contextmanager
def collector_paused() -> Iterator[None]:
    """Pause the garbage collector. It would look through the hundreds of thousands of objects of torch, transformers
    and peft again and again, which takes a seventh of their import time."""
    collecting, modules = gc.isenabled(), len(sys.modules)
    gc.disable()
    try:
        yield
    finally:
        if collecting:
            if len(sys.modules) > modules and gc.get_freeze_count() < _OWN:
                # Imported objects stay: move them to the old generation at once. If nothing was imported, new objects
                # may soon be garbage: leave them young.
                gc.freeze()
                gc.unfreeze()
            gc.enable()


TEST, MORE = "test_examples_sha256", "more_tests"
"""The keys of ``partition.json`` by which test sets are known again."""


def test_files(config: RunConfig) -> dict[str, str]:
    """The files of the test set and of more ones, by key."""
    files = {} if config.data.test_source is None else {"data.test_source": config.data.test_source}
    return files | {f"data.more_tests.{name}": file for name, file in config.data.more_tests.items()}


def rows_of_tests(config: RunConfig, labels: tuple[str, ...]) -> dict[str, Rows]:
    """The rows of these files, by key. Raises :class:`ConfigError`."""
    return {key: other_rows(config, file, labels, key=key) for key, file in test_files(config).items()}


def with_tests(assembly: Assembly, rows: Mapping[str, Rows]) -> Assembly:
    """The run with test sets of ``rows``, on which its network is tried, and their digests in its report. Raises
    :class:`ConfigError`, where no example is left of a set too."""
    encoded = {key: tuple(assembly.task.encode(of_file)) for key, of_file in rows.items()}
    for key, examples in encoded.items():
        if not examples:
            name = "test set" if key == "data.test_source" else f"test set {key.removeprefix('data.more_tests.')!r}"
            raise nothing_left(assembly.config, assembly.task, len(rows[key]), f", and they are the whole {name}")
    test = encoded.get("data.test_source", ())
    more = {name: encoded[f"data.more_tests.{name}"] for name in assembly.config.data.more_tests}
    digests: dict[str, Any] = {TEST: _digest(assembly.task, test)}
    digests[MORE] = {name: {"examples_sha256": _digest(assembly.task, of_set)} for name, of_set in more.items()}
    return tried(replace(assembly, population=Population({}, test, digests, more)))


def _digest(task: Task, examples: Sequence[Example]) -> str:
    store = task.store()
    store.add(examples)
    return store.sha256()
