"""The properties of an algorithm that the table, the wrappers, the engine and the laws read. Imports no torch."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, TypeAlias

from rondo.roles import Select, nothing

HeadPolicy: TypeAlias = Literal["shared", "local", "frozen"]
"""Whether a task head is trained and sent, trained and kept by each client, or left as it is."""

Weighting: TypeAlias = Literal["run", "equal", "tensors"]
"""The weights of uploads: by the run's ``clients.weighting``, 1 each, or by the numbers in the upload."""


@dataclass(frozen=True, kw_only=True)
class Traits:
    """The properties of an algorithm, which its class declares: ``traits = Traits(exact=True)``.

    One property is not declared but follows from the code: :attr:`rondo.algorithm.Algorithm.linear`.

    >>> from rondo.algorithm import Traits
    >>> traits = Traits(exact=True, client_ranks=True)
    >>> traits.personal, traits.default_head
    (False, 'shared')
    """

    exact: bool
    """The aggregated model's change equals the weighted mean of the clients' changes. Without ``needs_factors`` this is
    said of whole tensors alone, because a mean of factors is not the mean of their products."""
    needs_factors: bool = True
    """It is about low-rank factors. Other methods train whole tensors too, with or without factors beside them."""
    lossy: bool = False
    """The server drops what is small in the mean of the uploads, whatever their number. So clients that all reach one
    model get less than it, and the data decide how much is sent: at most the card's numbers."""
    personal: bool = False
    """Clients keep tensors of their own: each client has its own model, and new clients get a cold-start model."""
    keeps: Select = nothing
    """Those of ``init``'s tensors that stay with their clients by the method's own code: ``local_init`` gives them to a
    new client. A head that a client then does not hold is trained and sent as any other tensor."""
    default_head: HeadPolicy = "shared"
    """The policy for a task head when the user does not choose one."""
    client_ranks: bool = False
    """Clients may have their own ranks (``Client.rank``), up to the run's."""
    weighting: Weighting = "run"
    """The weights of uploads. "equal": every upload has weight 1, whatever the run's weighting. "tensors": by
    :meth:`rondo.algorithm.Algorithm.weight_of`, so a weight tells something of a client's data. The server accepts no
    other weight. "run": a weight that a client gives its upload is believed, and the run's weighting is the default."""
    plain_sgd: bool = False
    """A client's movement must be the sum of its gradients: local training is SGD, without momentum and without a limit
    of the gradient's norm."""
    least_squares: bool = False
    """Clients minimise exactly, so the task must be one of least squares."""
    server: Literal["mean", "restart", "step", "others", "other"] = "mean"
    """What the next broadcast is to the uploads. "mean": they are new values of its tensors, so the differences may be
    scaled or go to a server optimizer. "restart": as "mean", and the server may start factors anew (FedLoRU after
    ``tau`` rounds). Numbers that a client held back of the old ones mean nothing to the new ones. "step": the method
    defines its server's step itself, so no server optimizer takes its place. "others": a client is sent what the other
    clients uploaded, so clients that agree do not stay where they are, and two uploads are not one of twice the weight.
    "other": the server changes coordinates."""
    readable: bool = True
    """An expanded upload, put in place of the broadcast tensors, is its client's model. If False, aggregating that
    upload alone gives the client's model."""
    form: Literal["full", "chosen", "packed"] = "full"
    """The form of uploads. If it is not "full", :meth:`rondo.algorithm.Algorithm.expand` checks an upload and raises
    :class:`rondo.algorithm.UnreadableUpload`. "chosen": an upload says itself which slots of the factors it holds
    (LoRA-A2, FSLoRA), so the server cannot tell them beforehand. "packed": packed numbers
    (:mod:`rondo.algorithms.wrappers.compressed`)."""
    gated: bool = False
    """The view has several pairs of factors in a layer, which a router weighs for each token
    (:mod:`rondo.models.networks.pairs`), so no matrix is the layer's change."""
    scored_after_adapting: bool = False
    """Scores are of a client's model after :meth:`rondo.algorithm.Algorithm.adapt`. Per-FedAvg's model is made to be
    good after a step on the client's rows, which :meth:`rondo.algorithm.Algorithm.view`, a pure map, cannot take."""
    row_steps: bool = True
    """A client uses gradients for its steps alone, each a mean of the gradients of single rows. If False, the noise of
    such a step is not in all that the client sends, or no gradient is of one row."""

    @property
    def same_coordinates(self) -> bool:
        """Whether uploads are new values of the broadcast tensors."""
        return self.server != "other"
