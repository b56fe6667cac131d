"""Checks of ``[privacy]``, and of the options that it excludes. Imports no torch."""

from __future__ import annotations

from collections.abc import Iterator
from importlib.util import find_spec

from rondo.config.packages import missing
from rondo.config.schema import EvaluationConfig, PrivacyConfig, RunConfig
from rondo.config.task_kinds import TABLE
from rondo.errors import Problem

_OFF = {"packing": False, "length_grouping": False, "max_grad_norm": 0.0}
"""Keys of ``[train]`` whose defaults do not go with steps that clip each row."""
LEAST_NOISE = 0.2
"""Smallest noise multiplier but none: one step without sampling has an epsilon of 33 at delta 1e-5. Less protects
nobody, and takes ever more time and memory to account for (docs/dev/log/privacy.md, "epsilon of many clients, and of
little noise")."""


def too_quiet(noise: float) -> str:
    """The words that refuse a noise multiplier below :data:`LEAST_NOISE`."""
    why = f"at {LEAST_NOISE:g}, the least, one step without sampling has an epsilon of 33 at delta 1e-5"
    return f"{noise:g} protects nobody: {why}; raise it"


def with_private_defaults(config: RunConfig) -> RunConfig:
    """``config`` with the defaults that ``[privacy]`` needs, so that a run's own file, which has every key, says them:
    no rows held back for scores that nobody would be told, and those of ``[train]`` with ``unit = "example"``."""
    privacy, data, train = config.privacy, config.data, config.train
    if privacy.adversary is not None and "validation_fraction" not in data.model_fields_set:
        data = data.model_copy(update={"validation_fraction": 0.0})
    if privacy.unit == "example":
        left = {key: value for key, value in _OFF.items() if key not in train.model_fields_set}
        train = train.model_copy(update=left)
    return config.model_copy(update={"data": data, "train": train})


def missing_accountant(config: RunConfig) -> Iterator[Problem]:
    """Yield the fault that the package which computes epsilon is not installed, if it is needed."""
    if config.privacy.unit is not None and find_spec("dp_accounting") is None:
        yield Problem("privacy.unit", f"{config.privacy.unit!r} {missing('dp_accounting')}")


def privacy_checks(config: RunConfig) -> Iterator[Problem]:
    """Yield the faults of ``[privacy]``."""
    privacy = config.privacy
    if privacy == PrivacyConfig():
        return
    if privacy.adversary is None:
        yield Problem("privacy.adversary", 'say from whom: "reader" of the released model, or "server": set it')
    if privacy.unit is None and not privacy.secure_aggregation:
        message = 'nothing is protected yet: set unit = "client" or "example", or secure_aggregation = true'
        yield Problem("privacy.unit", message)
    yield from _unused(privacy)
    yield from _adaptive(privacy)
    if privacy.unit is not None:
        yield from _guarantee(privacy)
    if privacy.unit == "client":
        yield from _of_clients(config)
    if privacy.unit == "example":
        yield from _of_examples(config)
    if privacy.secure_aggregation:
        yield from _of_sums(config)
    if privacy.unit == "client" or privacy.secure_aggregation:
        yield from _shows_uploads(config)


def _adaptive(privacy: PrivacyConfig) -> Iterator[Problem]:
    """A clip that follows the clients, where nothing could follow."""
    if privacy.clip == "adaptive" and (privacy.unit != "client" or privacy.secure_aggregation):
        message = 'it follows bits of clients, whose sum the server opens with noise: only unit = "client" without '
        yield Problem("privacy.clip", message + "secure aggregation has them, so set it to a number")


def _unused(privacy: PrivacyConfig) -> Iterator[Problem]:
    """Keys that nothing reads."""
    if privacy.unit is None:
        for key in ("clip", "noise", "delta", "budget", "debug_seed"):
            if getattr(privacy, key) is not None and (key != "clip" or not privacy.secure_aggregation):
                yield Problem(f"privacy.{key}", 'only differential privacy uses it: set unit = "client" or "example"')
    if privacy.group is not None and privacy.unit != "example":
        yield Problem("privacy.group", 'only unit = "example" uses it: set unit, or remove it')
    of_rows = privacy.unit == "example" and privacy.secure_aggregation
    if privacy.upload_clip is not None and not of_rows:
        message = 'only secure_aggregation with unit = "example" uses it: set clip, or remove it'
        yield Problem("privacy.upload_clip", message)
    if privacy.ring != PrivacyConfig().ring and not privacy.secure_aggregation:
        yield Problem("privacy.ring", "only secure_aggregation = true uses it: set that, or remove it")
    shared = privacy.unit == "client" and privacy.secure_aggregation
    if privacy.colluding != PrivacyConfig().colluding and not shared:
        message = 'only noise that sites add uses it: set unit = "client" and secure_aggregation, or remove it'
        yield Problem("privacy.colluding", message)


def _guarantee(privacy: PrivacyConfig) -> Iterator[Problem]:
    """Keys without which differential privacy says nothing."""
    for key, example in (("clip", "1.0"), ("noise", "1.0"), ("delta", "1e-5")):
        if getattr(privacy, key) is None:
            yield Problem(f"privacy.{key}", f"differential privacy needs it: set it, for instance {key} = {example}")
    if privacy.noise is not None and 0 < privacy.noise < LEAST_NOISE:
        yield Problem("privacy.noise", too_quiet(privacy.noise))
    if privacy.noise == 0 and privacy.budget is not None:
        yield Problem("privacy.budget", "without noise epsilon is infinite: raise privacy.noise, or remove it")
    if privacy.debug_seed is not None and privacy.budget is not None:
        yield Problem("privacy.budget", "known noise counts as none, so epsilon is infinite: remove it, or debug_seed")


def _of_clients(config: RunConfig) -> Iterator[Problem]:
    """Options that break the guarantee of ``unit = "client"``."""
    privacy, clients = config.privacy, config.clients
    if privacy.adversary == "server":
        yield from _of_shares(config)
    elif clients.sampling not in ("poisson", "full"):
        message = 'the guarantee is for "poisson", with each client drawn by itself, or for "full": set one of them'
        yield Problem("clients.sampling", message)
    if privacy.adversary == "reader" and clients.min_clients != 1:
        yield Problem("clients.min_clients", "a round skipped for want of clients tells who was there: set it to 1")
    if clients.weighting != "uniform":
        message = 'a client with many rows would count more than the clip allows for: set it to "uniform"'
        yield Problem("clients.weighting", message)
    if clients.over_select or clients.deadline is not None:
        key = "over_select" if clients.over_select else "deadline"
        yield Problem(f"clients.{key}", "which uploads count would depend on the clients' speed: remove it")
    if config.admission.max_norm is not None:
        yield Problem("admission.max_norm", "privacy.clip bounds every upload: remove it")


def _of_shares(config: RunConfig) -> Iterator[Problem]:
    """Options that do not go with noise that the sites add. The server knows who took part, and the guarantee is about
    an upload that is there or zero."""
    privacy, clients = config.privacy, config.clients
    if not privacy.secure_aggregation:
        message = 'the server sees each upload before its noise: set it to "reader", or secure_aggregation = true'
        yield Problem("privacy.adversary", message)
    if clients.sampling not in ("uniform", "full"):
        why = {"poisson": "the server knows who took part, so chance hides nothing from it"}
        message = why.get(clients.sampling, "who takes part would follow from numbers of rows")
        yield Problem("clients.sampling", f'{message}: set it to "full" or "uniform"')
    if privacy.noise == 0:
        yield Problem("privacy.noise", "there is no guarantee without noise: raise it, or remove privacy.unit")


def _of_examples(config: RunConfig) -> Iterator[Problem]:
    """Options that break the guarantee of ``unit = "example"``."""
    if config.train.trainer is not None:
        message = (
            "noise belongs into each step, and Rondo does not see the steps of train.trainer: remove one of the two"
        )
        yield Problem("privacy.unit", message)
    train, evaluation, kind = config.train, config.evaluation, TABLE.get(config.task.kind)
    if kind is not None and kind.mixes_rows and config.task.negative is None and config.task.score is None:
        message = "a row's negatives are the other rows of a batch, so one row more changes the gradients of all, and "
        message += "a row alone has no loss: name task.negative or task.score, by which a row has a loss of its own"
        yield Problem("privacy.unit", message)
    if kind is not None and kind.mixes_rows and config.whole_tensors is not None:
        yield Problem("train.what", "dropout of a whole network draws for all texts of a row at once: train factors")
    if config.clients.weighting != "uniform":
        message = 'weights by numbers of rows tell whether a row is there: set it to "uniform"'
        yield Problem("clients.weighting", message)
    for key in ("packing", "length_grouping"):
        if getattr(train, key):
            yield Problem(f"train.{key}", "rows of a step are drawn one by one and clipped one by one: remove it")
    if train.max_grad_norm:
        yield Problem("train.max_grad_norm", "privacy.clip takes its place, row by row: remove it")
    if evaluation.clients_every:
        yield Problem("evaluation.clients_every", "scores on a client's rows have no noise: remove it")
    if evaluation.local_only or evaluation.fine_tune_epochs:
        key = "local_only" if evaluation.local_only else "fine_tune_epochs"
        yield Problem(f"evaluation.{key}", "it trains on the rows without noise, which is not in epsilon: remove it")
    if config.model.norm == "batch" and config.model.name.startswith("builtin:resnet"):
        yield Problem("model.norm", 'it mixes the rows of a batch: set it to "group"')


def _of_sums(config: RunConfig) -> Iterator[Problem]:
    """Options that do not go with ``secure_aggregation``."""
    privacy, admission = config.privacy, config.admission
    if privacy.adversary == "reader" and privacy.unit != "example":
        yield Problem("privacy.adversary", 'secure aggregation hides uploads from the server: set it to "server"')
    if privacy.clip is None and privacy.unit is None:
        message = "numbers in a sum need a bound: set it to the largest norm of an upload's change, for instance 10.0"
        yield Problem("privacy.clip", message)
    if privacy.upload_clip is None and privacy.unit == "example":
        message = "numbers in a sum need a bound, and clip is of the gradient of a row: set it to the largest norm of "
        yield Problem("privacy.upload_clip", message + "the change in an upload, for instance 10.0")
    for key in ("max_norm", "max_examples"):
        if getattr(admission, key) is not None:
            yield Problem(f"admission.{key}", "the server cannot look into an upload: remove it")
    if config.compression.kind != "none":
        message = "masked numbers are those of one ring for all clients, and each packed upload has its own scale"
        yield Problem("compression.kind", f'{message}: set it to "none", or remove privacy.secure_aggregation')


def _shows_uploads(config: RunConfig) -> Iterator[Problem]:
    """Options that look at single uploads, or publish what they show."""
    for key in ("ranks", "bytes_budget"):
        if getattr(config.clients, key) is not None:
            message = "clients of a rank that few have would be nearly alone in a part of the sum: remove it"
            yield Problem(f"clients.{key}", message)
    if config.robust.rule != "none":
        yield Problem("robust.rule", 'it looks at single uploads, which [privacy] hides: set it to "none"')
    if config.evaluation.diagnostics_every not in (0, EvaluationConfig().diagnostics_every):
        yield Problem("evaluation.diagnostics_every", "it looks at single uploads, which [privacy] hides: remove it")
    for key in ("clients_every", "local_only", "fine_tune_epochs"):
        if getattr(config.evaluation, key):
            yield Problem(f"evaluation.{key}", "it shows what single clients learned, which [privacy] hides: remove it")
