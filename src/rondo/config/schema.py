"""The keys of a configuration, their types, ranges and defaults. Imports no torch."""

from __future__ import annotations

import math
from typing import Annotated, Any, Literal, TypeAlias

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field

from rondo.algorithms.table import Rule

Positive: TypeAlias = Annotated[int, Field(gt=0)]
Fraction: TypeAlias = Annotated[float, Field(ge=0, lt=1)]


def _zero_if_none(value: Any) -> Any:
    return 0.0 if value is None or value is False else value


def _empty_if_none(value: Any) -> Any:
    return "" if value is None else value


def _text_keys(value: Any) -> Any:
    """Make a dict's keys text. TOML's keys are text already; a Python dict's may be numbers."""
    return {str(k): v for k, v in value.items()} if isinstance(value, dict) else value


BUILTIN_MODEL = "builtin:minilm"
BUILTIN_DATA = "builtin:home-intents"


class _Section(BaseModel):
    model_config = ConfigDict(extra="forbid", strict=True, frozen=True, allow_inf_nan=False)


class AlgorithmConfig(_Section):
    """The algorithm. All keys but ``name`` are fields of its dataclass.

    ``name``: a name of the table, or ``package.module:Class``.
    """

    model_config = ConfigDict(extra="allow")
    name: str = "rolora"

    @property
    def fields(self) -> dict[str, Any]:
        return dict(self.__pydantic_extra__ or {})


class AdapterConfig(_Section):
    """PEFT's ``LoraConfig``: same keys, same meaning.

    ``start_from``: the folder of an existing adapter.
    """

    r: Positive = 8
    lora_alpha: Annotated[float, Field(gt=0)] = 16.0
    target_modules: str | list[str] = "all-linear"
    exclude_modules: str | list[str] | None = None
    layers_to_transform: int | list[int] | None = None
    layers_pattern: str | list[str] | None = None
    rank_pattern: dict[str, Positive] = Field(default_factory=dict)
    alpha_pattern: dict[str, float] = Field(default_factory=dict)
    use_rslora: bool = False
    lora_dropout: Fraction = 0.0
    init_lora_weights: Literal[True, "gaussian", "orthogonal"] = True
    start_from: str | None = None


class ModelConfig(_Section):
    """The model.

    ``name``: a folder, a Hugging Face name, ``builtin:minilm``, or ``package.module:factory`` for a user's own network.
    ``head``: the task head is shared, local or frozen; left out, the algorithm's own choice.
    """

    name: str = BUILTIN_MODEL
    head: Literal["shared", "local", "frozen"] | None = None
    revision: str | None = None
    gguf_file: str | None = None
    quantization: Literal["int8"] | None = None


class TaskConfig(_Section):
    """The task.

    ``kind``: a kind of :mod:`rondo.tasks.table`, or ``package.module:Class``.
    ``text``: one or two columns. For causal-lm set either ``text``, or ``prompt`` and ``response``.
    """

    kind: str = "sequence-classification"
    text: str | Annotated[list[str], Field(min_length=1, max_length=2)] | None = None
    label: str | None = None
    prompt: str | Annotated[list[str], Field(min_length=1)] | None = None
    response: str | None = None
    max_length: Annotated[int, Field(ge=4)] = 128


class DataConfig(_Section):
    """The data.

    ``source``: a file or folder of CSV, JSON lines or Parquet, a Hugging Face name, or ``builtin:home-intents``.
    ``clients_from``: a folder or glob pattern with one file per client; ``[partition]`` is then not used.
    ``test_split``: the split for the test set; ``""`` means no test set.
    """

    source: str | None = None
    subset: str | None = None
    clients_from: str | None = None
    train_split: str = "train"
    test_split: Annotated[str, BeforeValidator(_empty_if_none)] = "validation"
    test_source: str | None = None
    validation_fraction: Fraction = 0.1
    max_train_rows: Positive | None = None
    max_test_rows: Positive | None = None
    bad_rows: Literal["error", "drop"] = "error"
    min_examples: Positive = 1


class PartitionConfig(_Section):
    """The way rows are dealt to clients (flwr-datasets' partitioners).

    ``kind``: left out, it is iid, or the homes of the built-in data.
    """

    kind: Literal["iid", "dirichlet", "shards", "classes", "natural", "lognormal"] | None = None
    clients: Annotated[int, Field(ge=1)] | None = None
    alpha: Annotated[float, Field(gt=0)] | None = None
    classes_per_client: Positive | None = None
    shards_per_client: Positive | None = None
    sigma: Annotated[float, Field(gt=0)] | None = None
    column: str | None = None
    min_size: Annotated[int, Field(ge=0)] = 1


Ranks: TypeAlias = (
    Annotated[list[Positive], Field(min_length=1)]
    | Annotated[dict[str, Annotated[float, Field(gt=0, le=1)]], Field(min_length=1)]
)


class ClientsConfig(_Section):
    """The sampling of clients, the weights of their uploads, and the clients' ranks.

    ``over_select``: sample this share more than ``per_round``. The first ``per_round`` uploads count; later ones come
    too late.
    ``deadline``: seconds after which an upload comes too late; None waits for all uploads.
    ``ranks``: a list with one rank per client in the order of their ids, or shares of the clients by rank, which the
    run's seed deals out.
    ``bytes_budget``: instead of ``ranks``, one budget for all clients or one per client. Each client has the largest
    rank whose upload in a round fits, the head not counted.

    Without ``ranks`` and ``bytes_budget`` all clients have the run's rank. No client may exceed it, and it alone sets
    the scale.
    """

    per_round: Positive | None = None
    sampling: Literal["uniform", "poisson", "full", "weighted"] = "uniform"
    weighting: Literal["examples", "uniform"] = "examples"
    min_clients: Positive = 1
    over_select: Annotated[float, Field(ge=0, le=10)] = 0.0
    deadline: Annotated[float, Field(gt=0)] | None = None
    ranks: Annotated[Ranks | None, BeforeValidator(_text_keys)] = None
    bytes_budget: Positive | Annotated[list[Positive], Field(min_length=1)] | None = None


class AdmissionConfig(_Section):
    """Limits that an upload must respect to count, beyond the names, shapes and types that its round defines.

    ``max_examples``: the largest number of examples that a client may claim.
    ``max_norm``: the largest Euclidean norm, over all tensors, of the difference between an upload and the broadcast,
    or of the upload itself if the algorithm puts it in other coordinates.
    ``clip``: scale a larger norm down to ``max_norm`` instead of rejecting the upload.
    """

    max_examples: Positive | None = None
    max_norm: Annotated[float, Field(gt=0)] | None = None
    clip: bool = False


Befalls: TypeAlias = Fraction | Annotated[list[str], Field(min_length=1)]


class RobustConfig(_Section):
    """Aggregation that dishonest clients cannot steer.

    ``rule``: a rule of :mod:`rondo.algorithms.wrappers.robust`; "none" means the algorithm's own aggregation.
    ``byzantine``: the number of dishonest clients per round that the rule must withstand.
    """

    rule: Literal["none", Rule] = "none"
    byzantine: Annotated[int, Field(ge=0)] = 1


FaultKind: TypeAlias = Literal[
    "crash", "hang", "slow", "out_of_memory", "nonfinite_loss", "corrupt_upload", "late", "duplicate", "wrong_round"
]


class FaultsConfig(_Section):
    """Faults to rehearse. Each kind is set to the probability that a client has the fault in a round, drawn from the
    run's seed, or to the ids of the clients that have it in every round.

    ``crash``: the client never answers.
    ``hang``: the client never finishes; it is lost even without a deadline.
    ``slow``: the client takes ``slow_factor`` times as long.
    ``out_of_memory``, ``nonfinite_loss``: the client is asked, and its training fails.
    ``corrupt_upload``: some bits of the upload are flipped.
    ``late``: the upload arrives after the round is over.
    ``duplicate``: the upload arrives twice.
    ``wrong_round``: the upload belongs to another round.
    ``slow_factor``: see ``slow``.
    ``seconds_per_example``: simulated time that a client takes per training example. ``clients.deadline`` and
    ``clients.over_select`` go by simulated time, which takes no real time.
    """

    crash: Befalls = 0.0
    hang: Befalls = 0.0
    slow: Befalls = 0.0
    out_of_memory: Befalls = 0.0
    nonfinite_loss: Befalls = 0.0
    corrupt_upload: Befalls = 0.0
    late: Befalls = 0.0
    duplicate: Befalls = 0.0
    wrong_round: Befalls = 0.0
    slow_factor: Annotated[float, Field(gt=1)] = 10.0
    seconds_per_example: Annotated[float, Field(gt=0)] = 1.0


class ServerConfig(_Section):
    """The server's optimizer, which steps from the server's tensors towards the mean of the uploads.

    ``optimizer``: "none" takes the mean itself.
    ``lr``: left out, 1 for sgd and momentum, 0.01 for the others.
    ``beta1``: left out, 0.9 (adagrad: 0).
    ``beta2``: left out, 0.99.
    ``tau``: the floor of the adaptive optimizers; left out, 1e-3.
    """

    optimizer: Literal["none", "sgd", "momentum", "adam", "yogi", "adagrad"] = "none"
    lr: Annotated[float, Field(gt=0)] | None = None
    beta1: Fraction | None = None
    beta2: Fraction | None = None
    tau: Annotated[float, Field(gt=0)] | None = None


class TrainConfig(_Section):
    """Local training.

    ``local_steps``: replaces ``local_epochs``.
    ``schedule``: the learning rate as a function of the round.
    ``max_grad_norm``: 0 means no clipping.
    ``precision``: exact computes in float32 throughout. fast keeps the frozen layers in bfloat16 if the hardware
    multiplies it, and is otherwise the same.
    """

    optimizer: Literal["adamw", "sgd"] = "adamw"
    lr: Annotated[float, Field(gt=0)] = 1e-3
    momentum: Fraction = 0.0
    weight_decay: Annotated[float, Field(ge=0)] = 0.0
    batch_size: Positive = 16
    local_epochs: Positive | None = None
    local_steps: Positive | None = None
    schedule: Literal["constant", "linear", "cosine"] = "constant"
    warmup_rounds: Annotated[int, Field(ge=0)] = 0
    max_grad_norm: Annotated[float, Field(ge=0), BeforeValidator(_zero_if_none)] = 1.0
    precision: Literal["exact", "fast"] = "fast"
    length_grouping: bool = True

    def rate(self, index: int, rounds: int) -> float:
        """The learning rate of round ``index`` of ``rounds``: a linear warm-up, then constant, or linear or cosine
        decay towards zero after the last round."""
        if index < self.warmup_rounds:
            return self.lr * (index + 1) / (self.warmup_rounds + 1)
        done = (index - self.warmup_rounds) / (rounds - self.warmup_rounds)
        factor = {"constant": 1.0, "linear": 1 - done, "cosine": 0.5 * (1 + math.cos(math.pi * done))}[self.schedule]
        return self.lr * factor


class EvaluationConfig(_Section):
    """Measurements during and after training.

    ``every``: rounds between scores on the test set; 0 scores only after the last round.
    ``clients_every``: rounds between scores on each client's own validation rows; 0 scores only after the last round.
    ``diagnostics_every``: rounds between measurements of the aggregation's effect, the last round included; 0 takes
    none.
    ``local_only``: also train each client alone, as a baseline.
    """

    every: Annotated[int, Field(ge=0)] = 1
    clients_every: Annotated[int, Field(ge=0)] = 0
    diagnostics_every: Annotated[int, Field(ge=0)] = 5
    batch_size: Positive = 64
    local_only: bool = False


class SimulationConfig(_Section):
    """The way the clients of a round share this machine.

    ``cohort``: the number of clients that train in one forward pass. "auto" takes as many as ``memory_mb`` of
    activations hold, and no more than the machine gains from.
    ``memory_mb``: memory for the activations of all clients that train at once. "auto" is half of the accelerator's
    memory. On a CPU it is half of the machine's, at most 256 MB per thread, so that clients whose steps keep more train
    one after the other, on more threads each.
    ``reuse_prefix``: keep the hidden states below the lowest adapted layer.
    ``prefix_memory_mb``: the most memory for these hidden states.
    ``prefix_disk_mb``: the most disk space for them, in temporary files.
    """

    cohort: Positive | Literal["auto"] = "auto"
    memory_mb: Positive | Literal["auto"] = "auto"
    reuse_prefix: bool = True
    prefix_memory_mb: Annotated[int, Field(ge=0)] = 1024
    prefix_disk_mb: Annotated[int, Field(ge=0)] = 4096


class RunConfig(_Section):
    """A whole run. Make one with :func:`rondo.config.load.load`, which also accepts a path or a dict."""

    seed: Annotated[int, Field(ge=0, lt=2**63)] = 0
    rounds: Positive = 20
    algorithm: AlgorithmConfig = Field(default_factory=AlgorithmConfig)
    adapter: AdapterConfig = Field(default_factory=AdapterConfig)
    model: ModelConfig = Field(default_factory=ModelConfig)
    task: TaskConfig = Field(default_factory=TaskConfig)
    data: DataConfig = Field(default_factory=DataConfig)
    partition: PartitionConfig = Field(default_factory=PartitionConfig)
    clients: ClientsConfig = Field(default_factory=ClientsConfig)
    admission: AdmissionConfig = Field(default_factory=AdmissionConfig)
    robust: RobustConfig = Field(default_factory=RobustConfig)
    faults: FaultsConfig = Field(default_factory=FaultsConfig)
    train: TrainConfig = Field(default_factory=TrainConfig)
    server: ServerConfig = Field(default_factory=ServerConfig)
    simulation: SimulationConfig = Field(default_factory=SimulationConfig)
    evaluation: EvaluationConfig = Field(default_factory=EvaluationConfig)
