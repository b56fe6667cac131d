"""The keys of a configuration, their types, ranges and defaults. Imports no torch."""

from __future__ import annotations

import math
from typing import Annotated, Any, Literal, Self, TypeAlias

from pydantic import BeforeValidator, ConfigDict, Field

from rondo.algorithms.table import Rule
from rondo.config.inputs import (
    BUILTIN_NETWORKS,
    AdapterConfig,
    DataConfig,
    ModelConfig,
    Name,
    PartitionConfig,
    TaskConfig,
)
from rondo.config.section import CompressionConfig, Fraction, Positive, ProblemConfig, Section, Threshold, TrackConfig
from rondo.privacy.guarantee import Guarantee


def _zero_if_none(value: Any) -> Any:
    return 0.0 if value is None or value is False else value


def _number_as_text(value: Any) -> Any:
    """Make text of a class that is a number or a truth value."""
    return str(value) if isinstance(value, int) else value


def _text_keys(value: Any) -> Any:
    """Make a dict's keys text. TOML's keys are text already; a Python dict's may be numbers."""
    return {str(k): v for k, v in value.items()} if isinstance(value, dict) else value


class AlgorithmConfig(Section):
    """The algorithm. All keys but ``name`` are fields of its dataclass."""

    model_config = ConfigDict(extra="allow")
    name: str = "rolora"
    """A name of ``rondo list``, or ``package.module:Class`` for your algorithm."""

    @property
    def fields(self) -> dict[str, Any]:
        return dict(self.__pydantic_extra__ or {})


Ranks: TypeAlias = (
    Annotated[list[Positive], Field(min_length=1)]
    | Annotated[dict[str, Annotated[float, Field(gt=0, le=1)]], Field(min_length=1)]
)


class ClientsConfig(Section):
    """The sampling of clients, the weights of their uploads, and the clients' ranks.

    Without ``ranks`` and ``bytes_budget`` all clients have the run's rank. No client may exceed it, and it alone sets
    the scale.
    """

    per_round: Positive | None = None
    """Clients sampled per round; left out, all."""
    sampling: Literal["uniform", "poisson", "full", "weighted"] = "uniform"
    """``"poisson"`` draws each client independently, ``"weighted"`` prefers more examples, ``"full"`` takes all."""
    weighting: Literal["examples", "uniform"] = "examples"
    """Weight of an upload in the mean: the client's examples, or the same for all."""
    min_clients: Positive = 1
    """With fewer uploads the round is skipped and the model stays."""
    over_select: Annotated[float, Field(ge=0, le=10)] = 0.0
    """Sample this share more than ``per_round``. The first ``per_round`` uploads count; later ones come too late."""
    deadline: Annotated[float, Field(gt=0)] | None = None
    """Seconds after which an upload comes too late, simulated ones in a simulation; left out, no limit."""
    ranks: Annotated[Ranks | None, BeforeValidator(_text_keys)] = None
    """One rank per client in the order of their ids, or shares of the clients by rank, which the run's seed deals
    out."""
    bytes_budget: Positive | Annotated[list[Positive], Field(min_length=1)] | None = None
    """In place of ``ranks``, bytes for all clients or per client: the largest rank whose upload per round fits, without
    the head."""
    mode: Literal["rounds", "buffered"] = "rounds"
    """``"buffered"``: no round waits for its clients. ``per_round`` of them train at any time, by a simulated clock,
    and the server steps after every ``buffer`` uploads."""
    buffer: Positive | None = None
    """Uploads per step of the server, with ``mode = "buffered"``."""
    staleness: Annotated[float, Field(ge=0)] = 0.5
    """The exponent a of the factor (1 + t)^-a, by which a buffered upload counts less after t steps of the server; 0
    counts all alike."""


class AdmissionConfig(Section):
    """Limits that an upload must respect to count. Names, shapes, types and finite values are always checked."""

    max_examples: Positive | None = None
    """Largest number of examples that a client may claim."""
    max_norm: Annotated[float, Field(gt=0)] | None = None
    """Largest Euclidean norm of the difference between an upload and the broadcast, or of the upload itself if the
    algorithm changes the coordinates."""
    clip: bool = False
    """Scale a larger norm down to ``max_norm`` instead of rejecting the upload."""


FaultSpec: TypeAlias = Fraction | Annotated[list[str], Field(min_length=1)]


class RobustConfig(Section):
    """Aggregation that dishonest clients cannot steer (:mod:`rondo.algorithms.wrappers.robust`)."""

    rule: Literal["none", Rule] = "none"
    """Rule in place of the algorithm's own aggregation."""
    byzantine: Annotated[int, Field(ge=0)] = 1
    """Number of dishonest clients per round that the rule must withstand."""


FaultKind: TypeAlias = Literal[
    "crash", "hang", "slow", "out_of_memory", "nonfinite_loss", "corrupt_upload", "late", "duplicate", "wrong_round"
]


class FaultsConfig(Section):
    """Faults to rehearse. Each kind is a probability per client and round, drawn from the run's seed. Or it is a list
    of ids of clients that have the fault in every round. The probabilities may sum to 1 at most."""

    crash: FaultSpec = 0.0
    """The client never answers."""
    hang: FaultSpec = 0.0
    """The client never finishes; it is lost even without a deadline."""
    slow: FaultSpec = 0.0
    """The client takes ``slow_factor`` times as long. Needs ``clients.deadline``, ``clients.over_select`` or buffered
    rounds."""
    out_of_memory: FaultSpec = 0.0
    """The client's training runs out of memory, and its cohort is halved."""
    nonfinite_loss: FaultSpec = 0.0
    """The client's loss is not finite, and its cohort trains again without it."""
    corrupt_upload: FaultSpec = 0.0
    """Some bits of the upload are flipped."""
    late: FaultSpec = 0.0
    """The upload arrives after the round is over."""
    duplicate: FaultSpec = 0.0
    """The upload arrives twice."""
    wrong_round: FaultSpec = 0.0
    """The upload belongs to another round."""
    slow_factor: Annotated[float, Field(gt=1)] = 10.0
    """Time of a slow client over that of any other."""
    seconds_per_example: Annotated[float, Field(gt=0)] = 1.0
    """Simulated time per training example, by which ``clients.deadline``, ``clients.over_select`` and buffered rounds
    go."""


class ServerConfig(Section):
    """The server's optimizer, which steps from the server's tensors towards the mean of the uploads."""

    optimizer: Literal["none", "sgd", "momentum", "adam", "yogi", "adagrad"] = "none"
    """``"none"`` takes the mean itself."""
    lr: Annotated[float, Field(gt=0)] | None = None
    """Step size; left out, 1 for sgd and momentum, 0.01 for the others."""
    beta1: Fraction | None = None
    """Decay of the mean of the steps; left out, 0.9 (adagrad: 0)."""
    beta2: Fraction | None = None
    """Decay of the mean of their squares; left out, 0.99."""
    tau: Annotated[float, Field(gt=0)] | None = None
    """Floor of the adaptive optimizers; left out, 1e-3."""


class PrivacyConfig(Section):
    """Protection of clients or of their rows from a named adversary. Left out, there is none."""

    adversary: Literal["reader", "server"] | None = None
    """The party that must not learn: ``"reader"`` has the released model, and the server is trusted; ``"server"`` is
    the server, honest but curious, the other clients and the reader."""
    secure_aggregation: bool = False
    """The server opens the sum of a round's uploads and no single upload. A simulation has no masks."""
    ring: Literal[32, 64] = 32
    """Bits of a number in a masked upload."""
    unit: Literal["client", "example"] | None = None
    """The secret of differential privacy: that a client took part, or that a row is among a client's rows. Left out,
    there is no differential privacy."""
    clip: Annotated[float, Field(gt=0)] | Literal["adaptive"] | None = None
    """Largest Euclidean norm of what one unit adds: the change in a client's upload, or the gradient of a row.
    ``"adaptive"`` (``unit = "client"``) follows the median norm, from 0.1 on, by 10 % per round at most; its noise is
    within ``noise``."""
    upload_clip: Annotated[float, Field(gt=0)] | None = None
    """Largest Euclidean norm of the change in an upload, with ``secure_aggregation`` and ``unit = "example"``."""
    noise: Annotated[float, Field(ge=0)] | None = None
    """The noise in the sum has a standard deviation of ``noise`` times ``clip``. At least 0.2, or 0 for none. ``rondo
    privacy plan`` finds it for an epsilon."""
    colluding: Annotated[int, Field(ge=0)] = 1
    """Sites that may tell the server their noise, where sites add it. 1 holds against the server with any one site, 0
    against the server alone."""
    delta: Annotated[float, Field(gt=0, lt=1)] | None = None
    """The delta of the guarantee; below 1 over the number of units."""
    budget: Annotated[float, Field(gt=0)] | None = None
    """The largest epsilon. The run ends before the round that would exceed it. With ``unit = "example"`` a client stops
    before its own would, and the run ends when fewer than ``clients.min_clients`` are left."""
    group: Name | None = None
    """Column that says whose a row is, with ``unit = "example"``: all rows that a client has of a person are one
    unit."""
    debug_seed: Annotated[int, Field(ge=0, lt=2**63)] | None = None
    """Seed of sampling and noise, for tests. Epsilon is then not valid."""


class TrainConfig(Section):
    """Local training."""

    optimizer: Literal["adamw", "sgd"] = "adamw"
    """Optimizer; every local training starts with a fresh one."""
    # AdamW's first step, ten times the product of both, is a number of float32.
    lr: Annotated[float, Field(gt=0, le=1e30)] = 1e-3
    """Learning rate."""
    lr_ratio: Annotated[float, Field(gt=0, le=1e7)] = 1.0
    """Learning rate of B over that of A and of the head (LoRA+)."""
    momentum: Fraction = 0.0
    """Momentum of sgd."""
    weight_decay: Annotated[float, Field(ge=0)] = 0.0
    """Weight decay."""
    batch_size: Positive = 16
    """Rows per step and client."""
    micro_batch: Positive | None = None
    """Most rows of a client in one forward pass: less memory, the same step. Left out, all of the step's."""
    local_epochs: Positive | None = None
    """Passes over a client's rows per round; left out, 1."""
    local_steps: Positive | None = None
    """Steps per round, in place of ``local_epochs``."""
    checkpointing: bool = False
    """Activation checkpointing of a transformer's layers: less memory, up to half more time, the same bits."""
    schedule: Literal["constant", "linear", "cosine"] = "constant"
    """Learning rate over the rounds: constant, or decay towards zero after the last."""
    warmup_rounds: Annotated[int, Field(ge=0)] = 0
    """Rounds of linear warm-up."""
    max_grad_norm: Annotated[float, Field(ge=0), BeforeValidator(_zero_if_none)] = 1.0
    """Norm to which each client's gradient is clipped; 0 means no clipping."""
    trainer: Name | None = None
    """A function that trains each client in place of Rondo's own loop: ``package.module:function``, ``"transformers"``,
    or TRL's ``"sft"`` and ``"dpo"`` (``docs/how-to/your-trainer.md``). Clients train one after the other, in float32
    and without shortcuts; ``packing``, ``length_grouping`` and ``precision`` do not apply."""
    precision: Literal["exact", "fast"] = "fast"
    """``"exact"`` computes in float32. ``"fast"`` keeps the frozen layers in bfloat16 if the hardware is faster in it;
    networks that are trained whole stay in float32, and their convolutions and wide linear layers multiply in
    bfloat16."""
    length_grouping: bool = True
    """Batch rows of similar length, which saves padding."""
    packing: bool = True
    """Lay the rows of a step end to end, without padding, if the model allows it (causal-lm)."""
    what: Literal["all", "head"] | Annotated[list[str], Field(min_length=1)] | None = None
    """Whole tensors to train: ``"all"``, only the ``"head"``, or parameters by name (patterns with ``*``, as in
    ``"layer4.*"``), beside factors if there is a section ``[adapter]``. Left out, factors and the head are trained."""

    def rate(self, index: int, rounds: int) -> float:
        """The learning rate of round ``index`` of ``rounds``: a linear warm-up, then constant, or linear or cosine
        decay towards zero after the last round."""
        if index < self.warmup_rounds:
            return self.lr * (index + 1) / (self.warmup_rounds + 1)
        done = (index - self.warmup_rounds) / (rounds - self.warmup_rounds)
        factor = {"constant": 1.0, "linear": 1 - done, "cosine": 0.5 * (1 + math.cos(math.pi * done))}[self.schedule]
        return self.lr * factor


class EvaluationConfig(Section):
    """Measurements during and after training."""

    every: Annotated[int, Field(ge=0)] | Literal["auto"] = 1
    """Rounds between scores on the test set; 0 scores only after the last round. ``"auto"`` takes about a fifth of the
    time at most."""
    clients_every: Annotated[int, Field(ge=0)] = 0
    """Rounds between scores of each client's model on its own test rows, or else its validation rows; 0 only after the
    last round."""
    diagnostics_every: Annotated[int, Field(ge=0)] = 5
    """Rounds between measurements of the aggregation's effect, the last round included; 0 takes none. ``[privacy]``
    forbids them if it hides single uploads."""
    patience: Annotated[int, Field(ge=0)] = 0
    """Scores of ``every`` in a row without a better one that end the run early; 0 never does. Without a test set, and
    for personal methods if ``clients_every`` is set, the clients' mean scores decide."""
    positive: Annotated[Name | None, BeforeValidator(_number_as_text)] = None
    """The class of the metric ``f1`` (classification). Left out, it is class 1 if the classes are 0 and 1, else the
    mean over all classes (macro)."""
    f1: Literal["macro", "weighted"] | None = None
    """The mean over classes of the metric ``f1`` (classification): all count the same, or by their rows. Left out, see
    ``positive``."""
    per_class: bool = False
    """Also score each class: ``f1 of CLASS``; of several labels their areas too, of token-classification precision and
    recall."""
    threshold: Threshold | dict[str, Threshold] | None = None
    """Probability from which a row is given a label, if it may have several (classification): one for all, or by label,
    such as ``{ flu = 0.3 }``; left out, 0.5. ``rondo export --thresholds`` chooses them."""
    batch_size: Positive = 64
    """Rows per batch."""
    fine_tune_epochs: Annotated[int, Field(ge=0)] = 0
    """Also score each client's model after so many epochs on its own rows (the "+FT" of papers)."""
    fine_tune: Literal["all", "head"] = "all"
    """Tensors that this fine-tuning trains."""
    local_only: bool = False
    """Also train each client alone, as a baseline."""
    generate: Annotated[int, Field(ge=0)] = 0
    """Test rows that the model answers before and after training (language models, token-classification, and your tasks
    that have ``shown`` and ``predicted``), into ``summary.json``."""
    max_new_tokens: Positive = 64
    """Most tokens of these answers."""


class SimulationConfig(Section):
    """The way the clients of a round share this machine, or several."""

    engine: Literal["process", "ray"] = "process"
    """Place where clients train: in this process, or at workers of Ray (``docs/how-to/ray.md``)."""
    workers: Positive | None = None
    """Workers of Ray. Left out, one for every GPU or, without any, for every machine."""
    cohort: Positive | Literal["auto"] = "auto"
    """Clients that train in one forward pass. ``"auto"`` goes by ``memory_mb`` and by what the machine gains."""
    memory_mb: Positive | Literal["auto"] = "auto"
    """Megabytes for the activations of all clients that train at once. ``"auto"`` is half of the accelerator's memory,
    or on a CPU half of the machine's, at most 256 MB per thread."""
    reuse_prefix: bool = True
    """Keep the hidden states below the lowest adapted layer, or the inputs of a head that alone is trained."""
    prefix_memory_mb: Annotated[int, Field(ge=0)] = 1024
    """Most megabytes of memory for the states of ``reuse_prefix``, at most half of it for test sets."""
    prefix_disk_mb: Annotated[int, Field(ge=0)] = 4096
    """Most megabytes of disk space for the states of ``reuse_prefix``, in temporary files."""


class RunConfig(Section):
    """A whole run. Make one with :func:`rondo.config.load.load`, which also accepts a path or a dict."""

    seed: Annotated[int, Field(ge=0, lt=2**63)] = 0
    """Every random draw follows from it."""
    rounds: Positive = 20
    """Number of rounds."""
    algorithm: AlgorithmConfig = Field(default_factory=AlgorithmConfig)
    adapter: AdapterConfig = Field(default_factory=AdapterConfig)
    model: ModelConfig = Field(default_factory=ModelConfig)
    task: TaskConfig = Field(default_factory=TaskConfig)
    data: DataConfig = Field(default_factory=DataConfig)
    problem: ProblemConfig = Field(default_factory=ProblemConfig)
    partition: PartitionConfig = Field(default_factory=PartitionConfig)
    clients: ClientsConfig = Field(default_factory=ClientsConfig)
    admission: AdmissionConfig = Field(default_factory=AdmissionConfig)
    robust: RobustConfig = Field(default_factory=RobustConfig)
    faults: FaultsConfig = Field(default_factory=FaultsConfig)
    privacy: PrivacyConfig = Field(default_factory=PrivacyConfig)
    compression: CompressionConfig = Field(default_factory=CompressionConfig)
    train: TrainConfig = Field(default_factory=TrainConfig)
    server: ServerConfig = Field(default_factory=ServerConfig)
    simulation: SimulationConfig = Field(default_factory=SimulationConfig)
    evaluation: EvaluationConfig = Field(default_factory=EvaluationConfig)
    track: TrackConfig = Field(default_factory=TrackConfig)

    @property
    def whole_tensors(self) -> Literal["all", "head"] | list[str] | None:
        """Whole tensors to train, as ``train.what`` names them. A built-in network without a section ``[adapter]``
        trains all, since its weights are random."""
        scratch = self.model.name in BUILTIN_NETWORKS and "adapter" not in self.model_fields_set
        return "all" if self.train.what is None and scratch else self.train.what

    def changed(self, section: str, **values: Any) -> Self:
        """The same with other values of one section. They are not checked."""
        return self.model_copy(update={section: getattr(self, section).model_copy(update=values)})

    @property
    def guarantee(self) -> Guarantee:
        """The promise of ``[privacy]``, which every other room asks."""
        return Guarantee.of(self.privacy.model_dump())

    @property
    def has_factors(self) -> bool:
        """Whether low-rank factors are trained: always, unless there are whole tensors to train and no section
        ``[adapter]``."""
        return self.whole_tensors is None or "adapter" in self.model_fields_set


class FileConfig(RunConfig):
    """A configuration as a file has it: one run, or one per method."""

    methods: dict[str, dict[str, Any]] = Field(default_factory=dict)
    """Values of single methods, each by a label: ``[methods.fedloru.algorithm]``. The label is the method's name, or
    any text with ``algorithm.name`` in its table. ``rondo run`` takes the table of ``algorithm.name``, ``rondo
    compare`` all. Keys are of ``algorithm``, ``adapter``, ``train`` and ``server``, and ``model.head``,
    ``model.head_layers`` and ``model.buffers``; ``adapter = false`` leaves that section out."""
