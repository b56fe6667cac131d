"""The networks of the linear problems, in float64: y = B A x, and y = w B^T x."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from rondo.config.checks import data_source
from rondo.config.inputs import LINEAR, AdapterConfig
from rondo.config.schema import RunConfig
from rondo.errors import Problem
from rondo.models.forms.builtin.outline import unused
from rondo.models.forms.model import Outline
from rondo.models.forms.own_network import OwnModel
from rondo.models.loading.pretrained import fingerprint
from rondo.models.networks.adapted_layer import Site
from rondo.models.networks.adapted_network import AdaptedNetwork
from rondo.models.networks.network import Base, Network, Streams
from rondo.models.networks.rows import Rows
from rondo.params import Params, module_of
from rondo.tasks.numbers.linear import BODY, DOWN, HEAD, UP, LinearRegression
from rondo.tasks.numbers.linear_problem import LinearProblem
from rondo.tasks.task import Batch


class _Layer(nn.Module):
    """A linear layer of zeros, to which the factors are added."""

    def __init__(self, inputs: int, outputs: int) -> None:
        super().__init__()
        self.linear = nn.Linear(inputs, outputs, bias=False, dtype=torch.float64)
        nn.init.zeros_(self.linear.weight)

    def forward(self, x: Tensor) -> Tensor:
        y: Tensor = self.linear(x)
        return y


def factors(problem: LinearProblem) -> AdaptedNetwork:
    """y = B A x (RoLoRA's linear model): an adapted layer without a base weight. A starts as the problem says, B at
    zero."""
    outputs = problem.up.shape[1]
    layer = _Layer(problem.config.inputs, outputs)
    site = Site(module_of(DOWN), "linear", (outputs, problem.config.inputs), problem.config.rank, 1.0, 0.0)
    up = torch.zeros(outputs, problem.config.rank, dtype=torch.float64)
    return AdaptedNetwork(layer, [site], [], {DOWN: problem.start, UP: up})


class Heads(Network):
    """y = w B^T x (FedRep's linear model): a representation B^T (k, d) below a head w (1, k), which starts at zero."""

    def __init__(self, problem: LinearProblem) -> None:
        self.module = nn.Identity()
        head = torch.zeros(1, problem.config.rank, dtype=torch.float64)
        self.initial = {BODY: problem.start, HEAD: head}

    def __call__(
        self, params: Params, base: Base, batch: Batch, dropout: Streams = None, rows: Rows | None = None
    ) -> Tensor:
        """``x`` (rows, d) gives y (rows, 1)."""
        x, body, head = batch["x"], params[BODY], params[HEAD]
        if rows is not None and not rows.even:
            body, head = body[rows.index], head[rows.index]
        return (x.reshape(len(body), -1, x.shape[1]) @ body.mT @ head.mT).reshape(len(x), -1)


@dataclass(frozen=True)
class LinearOutline(Outline):
    """An :class:`rondo.models.forms.model.Outline`."""

    task: LinearRegression
    drawn: LinearProblem
    sites: Sequence[Site]
    problems: Sequence[Problem]

    def load(self, config: RunConfig, device: torch.device) -> OwnModel:
        network = Heads(self.drawn) if self.drawn.config.kind == "heads" else factors(self.drawn)
        network.move(device)
        identity = {"model_sha256": fingerprint(network.module)}
        return OwnModel(LINEAR, identity, network, self.task.precision)


def look(config: RunConfig) -> LinearOutline:
    """Outline the network of ``[problem]``. Its truth is known to the task if the rows are the problem's own."""
    drawn = LinearProblem.draw(config.problem, config.seed)
    task = LinearRegression(drawn if data_source(config) == LINEAR else None)
    sites = tuple(factors(drawn).sites.values()) if config.problem.kind == "factors" else ()
    return LinearOutline(task, drawn, sites, tuple(_problems(config)))


def _problems(config: RunConfig) -> Iterator[Problem]:
    yield from unused(config)
    if config.adapter != AdapterConfig():
        yield Problem("adapter", f"[problem] has the sizes of {LINEAR!r}, and it does not use this section: remove it")
    if config.train.what not in (None, "all"):
        yield Problem("train.what", f"{LINEAR!r} trains all of its tensors: remove it")
