"""The algorithm of a run, and the wrappers that its options put around it."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import partial
from typing import Any

from rondo import algorithms
from rondo.algorithm import Algorithm, Client, HeadPolicy
from rondo.algorithms.compatible import Option, refused
from rondo.algorithms.table import RULES
from rondo.algorithms.wrappers.buffered import Buffered
from rondo.algorithms.wrappers.compressed import Compressed, Packing, Rounding, TopK
from rondo.algorithms.wrappers.local import Local, SharedHead
from rondo.algorithms.wrappers.principal_start import PrincipalStart
from rondo.algorithms.wrappers.robust import MEANS, Robust
from rondo.algorithms.wrappers.server_optimizer import OPTIMIZERS, ServerOptimizer, ServerStep
from rondo.config.checks import data_source
from rondo.config.inputs import LINEAR
from rondo.config.schema import RunConfig, ServerConfig
from rondo.config.section import CompressionConfig
from rondo.engine.faults import pace_of
from rondo.errors import ConfigError, Problem
from rondo.params import Params, Role, Select, buffer, everything, head, nothing, pick


def make_algorithm(config: RunConfig) -> Algorithm[Any]:
    """The algorithm without its wrappers. Raises :class:`ConfigError`, also for options of the run that the algorithm
    does not define."""
    try:
        algorithm = algorithms.get(config.algorithm.name, **config.algorithm.fields)
    except algorithms.UnknownAlgorithm as error:
        raise ConfigError.at("algorithm.name", str(error)) from None
    except (TypeError, ValueError) as error:
        raise ConfigError.at("algorithm", str(error)) from None
    problems = list(_refused(config, algorithm))
    if problems:
        raise ConfigError(problems)
    return algorithm


def wrapped(
    config: RunConfig, algorithm: Algorithm[Any], initial: Params, clients: Sequence[Client]
) -> tuple[Algorithm[Any], HeadPolicy | None, Params]:
    """``algorithm`` with its wrappers; the head policy (None without a head); the tensors of ``initial`` that clients
    train."""
    policy: HeadPolicy | None = None
    if any(map(head, initial)):
        policy = config.model.head or algorithm.traits.default_head
    if policy == "frozen":
        initial = pick(initial, ~head)
    if algorithm.traits.least_squares and Role.HEAD in algorithm.traits.keeps.roles and policy not in ("local", None):
        message = f"{config.algorithm.name} leaves heads with their clients: remove it, or take another method"
        raise ConfigError.at("model.head", message)
    _must_divide(config, algorithm, policy, initial)
    if config.adapter.init_lora_weights == "pissa":
        algorithm = PrincipalStart(algorithm)
    local_buffers = config.model.buffers == "local" and any(map(buffer, initial))
    algorithm = with_policies(algorithm, policy, local_buffers=local_buffers)
    algorithm = compressed(config.compression, algorithm)
    if config.server.optimizer != "none":
        algorithm = ServerStep(algorithm, _server_optimizer(config.server))
    if config.robust.rule != "none":
        algorithm = Robust(algorithm, config.robust.rule, config.robust.byzantine)
    options = config.clients
    if options.mode == "buffered" and options.buffer is not None:
        at_once = options.per_round or len(clients)
        pace = partial(pace_of, config)
        algorithm = Buffered(algorithm, tuple(clients), at_once, options.buffer, options.staleness, pace)
    return algorithm, policy, initial


def compressed(config: CompressionConfig, algorithm: Algorithm[Any]) -> Algorithm[Any]:
    """``algorithm`` with the uploads that ``config`` asks for."""
    if config.kind == "none":
        return algorithm
    packing: Packing = Rounding(config.bits or 8) if config.kind == "rounding" else TopK(config.keep or 0.1)
    return Compressed(algorithm, packing)


def with_policies(
    algorithm: Algorithm[Any], policy: HeadPolicy | None, *, local_buffers: bool = False
) -> Algorithm[Any]:
    """``algorithm`` with the head and the statistics shared or with each client. A method may keep the head by its own
    code."""
    keeps_head = Role.HEAD in algorithm.traits.keeps.roles
    if policy == "shared" and keeps_head:
        algorithm = SharedHead(algorithm)
    stays: Select = buffer if local_buffers else nothing
    if policy == "local" and not keeps_head:
        stays |= head
    return Local(algorithm, stays) if stays.roles else algorithm


def _must_divide(config: RunConfig, algorithm: Algorithm[Any], policy: HeadPolicy | None, initial: Params) -> None:
    """Raises :class:`ConfigError` where a method that shares one part of the model and keeps another has only one of
    the two. ``initial``: the tensors that are trained."""
    name, keeps = config.algorithm.name, algorithm.traits.keeps
    if not keeps.roles or keeps == everything:
        return
    head_is = {"frozen": "the head is frozen", None: "this network has no task head"}.get(policy, "")
    if not any(map(keeps, initial)):
        why = head_is if Role.HEAD in keeps.roles else "nothing but the head is trained"
        message = f"{name} keeps a part of the model with each client, and {why}, so nothing would be kept: "
        raise ConfigError.at("algorithm.name", message + "take fedavg, or train that part too")
    if all(map(with_policies(algorithm, policy).traits.keeps, initial)):
        why = "nothing else is trained" if Role.HEAD in keeps.roles else head_is or "the head is local"
        message = f"{name} sends what it does not keep with each client, and {why}, so nothing would be sent: "
        raise ConfigError.at("algorithm.name", message + "take local, or train and share that part too")


def _refused(config: RunConfig, algorithm: Algorithm[Any]) -> Iterator[Problem]:
    """Options of the run that ``algorithm`` refuses (:mod:`rondo.algorithms.compatible`), with the reason."""
    name, linear = config.algorithm.name, algorithm.linear
    reasons = refused(algorithm.traits, linear=linear)
    for option, key, otherwise in _asked(config, algorithm):
        if option in reasons:
            yield Problem(key, f"{name}: {reasons[option]}; {otherwise}")
    sends = algorithm.traits.keeps != everything
    if sends and algorithm.traits.plain_sgd:
        yield from (_no_gradient_step if algorithm.traits.least_squares else _not_plain_sgd)(config)


def _asked(config: RunConfig, algorithm: Algorithm[Any]) -> Iterator[tuple[Option, str, str]]:
    """The options that the run asks of its method, with the key and what to do where it is refused."""
    for key in ("ranks", "bytes_budget"):
        if getattr(config.clients, key) is not None:
            others = ", ".join(n for n in algorithms.names() if algorithms.entry(n).traits.client_ranks)
            yield "own ranks", f"clients.{key}", f"remove {key}, or take one of {others}"
    if config.has_factors and config.adapter.use_dora:
        yield "magnitudes", "adapter.use_dora", "remove it, or take another method (rondo list --compat)"
    otherwise = 'set it to "none", or take another method (rondo list --compat)'
    if config.robust.rule in MEANS:
        choices = ", ".join(r for r in RULES if r not in MEANS)
        yield "robust mean", "robust.rule", f"take {choices}, or a linear method (rondo list --compat)"
    elif config.robust.rule != "none":
        yield "robust choice", "robust.rule", otherwise
    if config.server.optimizer != "none":
        yield "server optimizer", "server.optimizer", otherwise
    elsewhere = "take another method (rondo list --compat), or remove it"
    if getattr(algorithm, "sketch", None) == 0:
        elsewhere = f"set algorithm.sketch, for instance to 32 (docs/privacy.md), {elsewhere}"
    for option, key in config.guarantee.asks_of_methods:
        yield option, key, elsewhere
    if config.compression.kind != "none":
        yield config.compression.kind, "compression.kind", otherwise
    if config.clients.mode == "buffered":
        yield "buffered rounds", "clients.mode", 'set it to "rounds", or take another method (rondo list --compat)'
    if config.model.head == "local":
        yield "local head", "model.head", 'set it to "shared", or take another method (rondo list --compat)'


def _not_plain_sgd(config: RunConfig) -> Iterator[Problem]:
    """The keys of ``[train]`` with which a client's movement is not the sum of its gradients."""
    train, name = config.train, config.algorithm.name
    why = f"{name} reads a client's mean gradient off its movement, which is the sum of its gradients only"
    otherwise = f"or take another variant of {name} (rondo show {name})"
    if train.optimizer != "sgd":
        yield Problem("train.optimizer", f'{why} with sgd; set it to "sgd", {otherwise}')
    elif train.momentum > 0:
        yield Problem("train.momentum", f"{why} without momentum; set it to 0, {otherwise}")
    if train.lr_ratio != 1:
        yield Problem("train.lr_ratio", f"{why} at one learning rate; remove it, {otherwise}")
    if train.max_grad_norm > 0:
        yield Problem("train.max_grad_norm", f"{why} where their norm has no limit; set it to 0, {otherwise}")


def _no_gradient_step(config: RunConfig) -> Iterator[Problem]:
    """The keys of ``[train]`` with which a step is not one down the gradient on all rows."""
    train, name = config.train, config.algorithm.name
    why = f"a step of {name} is a step down the gradient"
    if train.optimizer != "sgd":
        yield Problem("train.optimizer", f'{why}: set it to "sgd"')
    for key in ("momentum", "weight_decay", "max_grad_norm"):
        if getattr(train, key) > 0:
            yield Problem(f"train.{key}", f"{why} and nothing else: set it to 0")
    if train.lr_ratio != 1:
        yield Problem("train.lr_ratio", f"{why} at one learning rate: remove it")
    rows = config.problem.rows
    if data_source(config) == LINEAR and train.batch_size < rows:
        yield Problem("train.batch_size", f"{why} on all rows of a client, {rows}: raise it to {rows}")


def _server_optimizer(config: ServerConfig) -> ServerOptimizer:
    options = config.model_dump(exclude={"optimizer"}, exclude_none=True)
    return OPTIMIZERS[config.optimizer](**options)
