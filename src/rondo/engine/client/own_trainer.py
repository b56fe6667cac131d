"""Local training by a function of the user's own (``train.trainer``), one client at a time."""

from __future__ import annotations

import traceback
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch

from rondo import own_code
from rondo.algorithm import ClientFailed, Fit, FitOptions, plain, unbounded
from rondo.config.rules.trainer import place_of
from rondo.engine.client import torchrun
from rondo.engine.client.trainer import CohortTrainer
from rondo.engine.trainers import LocalTraining
from rondo.errors import ConfigError, StopRequested
from rondo.models.forms.model import Model
from rondo.models.kernels.out_of_memory import is_out_of_memory
from rondo.params import Params, Select, buffer, client_row, pick
from rondo.process import seeded
from rondo.tasks.row_checks import Row

_KEY = "train.trainer"
_MORE_THAN_PLAIN = ConfigError.at(
    _KEY,
    "the method asks for more than training on the plain loss, which a trainer of one's own cannot do: remove it, or "
    "take a method such as fedit or rolora",
)


def load(name: str) -> Callable[[LocalTraining], object]:
    """The function that ``train.trainer`` names. Raises :class:`ConfigError`."""
    try:
        function = own_code.load(place_of(name))
    except Exception as error:  # the user's module may raise anything
        raise ConfigError.at(_KEY, f"cannot load {name!r}: {own_code.reason(error)}") from None
    if not callable(function) or isinstance(function, type):
        raise ConfigError.at(_KEY, f"{name!r} is not a function: name one that takes a rondo.trainers.LocalTraining")
    return function  # type: ignore[no-any-return]


@dataclass
class OwnTrainer(CohortTrainer):
    """Trains by ``function``. A cohort has one client."""

    function: Callable[[LocalTraining], object] = field(kw_only=True)
    model: Model = field(kw_only=True)
    rows: Mapping[str, Sequence[Row]] = field(kw_only=True)
    """The training rows of every client, by its id."""
    labels: Sequence[str] = field(kw_only=True)

    def fit_with(self, params: Params, options: FitOptions) -> Fit:
        """See :meth:`rondo.algorithm.Trainer.fit`. Raises :class:`ConfigError` for an objective that is not the plain
        loss, and where the function fails."""
        if options.objective is not plain or options.project is not unbounded:
            raise _MORE_THAN_PLAIN
        if self.stop is not None and self.stop.is_set():
            raise StopRequested
        self._must_have_rows()
        (client,), (examples,) = self.clients, self.examples
        steps, epochs = options.steps, options.epochs
        if steps is None and epochs is None:
            steps, epochs = self.config.local_steps, self.config.local_epochs
        epochs = 1 if steps is None and epochs is None else epochs
        batches = -(-len(examples) // self.config.batch_size)
        taken = torch.tensor([batches * (epochs or 1) if steps is None else steps])
        behind = torch.tensor(
            [len(examples) * (epochs or 1) if steps is None else steps * min(self.config.batch_size, len(examples))]
        )
        seed = self.round.attempt_generator("data", client.id, self._fits).initial_seed() % 2**31
        self._fits += 1
        before = client_row(pick(params, options.train & ~buffer), 0)
        with seeded(seed, self.network.device), torchrun.streams(seed):
            lent = self.model.lend(client_row(params, 0), self.base, before)
            rate = self.lr if options.lr is None else options.lr
            facts = (epochs, steps, rate, seed, self.config, lent.tokenizer, self.labels, self.task, tuple(examples))
            local = LocalTraining(client.id, lent.model, self.rows[client.id], *facts)
            loss = self._run(local) if before else None
        try:
            trained = lent.trained(before)
        except ValueError as error:
            message = f"{self.config.trainer!r} at client {client.id}: {error}: train what has requires_grad, in place"
            raise ConfigError.at(_KEY, message) from None
        final = {name: trained[name][None] if name in trained else t for name, t in params.items()}
        table = torch.zeros(0, 1) if loss is None else torch.tensor([[loss]])
        self.losses.append(table)
        self.work.append((taken, behind))
        self.find_failed(final, table, taken)
        return Fit(final, taken, behind, table.nan_to_num(0.0).sum(0))

    def solve(self, params: Params, *, train: Select) -> Fit:
        """Raises :class:`ConfigError`."""
        raise _MORE_THAN_PLAIN

    def second_moment(self, params: Params, *, of: Select) -> torch.Tensor:
        """Raises :class:`ConfigError`."""
        raise _MORE_THAN_PLAIN

    def _run(self, local: LocalTraining) -> float | None:
        """The function's mean loss, if it gives one."""
        name = f"{self.config.trainer!r} at client {local.client}"
        try:
            with torch.enable_grad():
                loss: Any = torchrun.together(place_of(str(self.config.trainer)), self.function, local)
        except (ConfigError, ClientFailed, StopRequested):
            raise
        except Exception as error:  # the user's function may raise anything
            if is_out_of_memory(error):
                raise
            place = traceback.extract_tb(error.__traceback__)[-1]
            message = f"{name} failed: {own_code.reason(error)} ({place.filename}, line {place.lineno}): mend it"
            raise ConfigError.at(_KEY, message) from error
        try:
            return None if loss is None else float(loss)
        except (TypeError, ValueError):
            message = f"{name} returned a {type(loss).__name__}: return nothing, or the mean loss as a number"
            raise ConfigError.at(_KEY, message) from None
