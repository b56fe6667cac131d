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
    """TOML's keys are text; a dict's may be numbers."""
    return {str(k): v for k, v in value.items()} if isinstance(value, dict) else value


BUILTIN_MODEL = "builtin:minilm"
BUILTIN_DATA = "builtin:home-intents"


class _Section(BaseModel):
    model_config = ConfigDict(extra="forbid", strict=True, frozen=True, allow_inf_nan=False)


class AlgorithmConfig(_Section):
    """``name`` of the table or ``package.module:Class``; all other keys are the fields of its dataclass."""

    model_config = ConfigDict(extra="allow")
    name: str = "rolora"

    @property
    def fields(self) -> dict[str, Any]:
        return dict(self.__pydantic_extra__ or {})


class AdapterConfig(_Section):
    """PEFT's ``LoraConfig``, its words and their meaning. ``start_from`` is the folder of an existing adapter."""

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
    """``name``: a folder, a Hugging Face name, ``builtin:minilm``, or ``package.module:factory`` for a network of one's
    own. ``head`` unset means the algorithm's own."""

    name: str = BUILTIN_MODEL
    head: Literal["shared", "local", "frozen"] | None = None
    revision: str | None = None
    gguf_file: str | None = None
    quantization: Literal["int8"] | None = None


class TaskConfig(_Section):
    """The task. ``kind``: of :mod:`rondo.tasks.table`, or ``package.module:Class``. ``text`` is one or two columns; for
    causal-lm either ``text`` or ``prompt`` and ``response``."""

    kind: str = "sequence-classification"
    text: str | Annotated[list[str], Field(min_length=1, max_length=2)] | None = None
    label: str | None = None
    prompt: str | Annotated[list[str], Field(min_length=1)] | None = None
    response: str | None = None
    max_length: Annotated[int, Field(ge=4)] = 128


class DataConfig(_Section):
    """``source``: a file or folder of CSV, JSON lines or Parquet, a Hugging Face name, or ``builtin:home-intents``.

    ``test_split = ""``: no test set. ``clients_from``: a folder or glob pattern with one file a client (then
    ``[partition]`` is not used).
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
    """How the rows are dealt to clients (flwr-datasets' partitioners). ``kind`` left out: iid, or the homes of the
    built-in data."""

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
    """Who takes part in a round, how their uploads are weighted, and which rank each has.

    ``ranks``: a list, one a client in the order of their ids, or shares of the clients by rank, which the run's seed
    deals out. ``bytes_budget``: instead, for all or one a client: each has the largest rank whose upload in a round
    fits, the head not counted. Left out, all have the run's rank, which none may exceed and which alone sets the scale.

    ``over_select``: sample this share more than ``per_round``; the first ``per_round`` uploads to arrive count, the
    others come too late. ``deadline``: seconds after which an upload comes too late; None: all are waited for.
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
    """What an upload must keep to, beyond the names, shapes and types that its round defines, to be counted.

    ``max_examples``: the largest number of examples that a client may claim. ``max_norm``: the largest Euclidean norm,
    over all tensors, of the difference between an upload and what was sent (of the upload itself, where the method
    puts it in other coordinates); ``clip``: scale a larger one down to it instead of turning it away.
    """

    max_examples: Positive | None = None
    max_norm: Annotated[float, Field(gt=0)] | None = None
    clip: bool = False


Befalls: TypeAlias = Fraction | Annotated[list[str], Field(min_length=1)]


class RobustConfig(_Section):
    """Aggregation that ``byzantine`` dishonest clients a round cannot steer; "none": the algorithm's own. What each
    rule does is in :mod:`rondo.algorithms.wrappers.robust`."""

    rule: Literal["none", Rule] = "none"
    byzantine: Annotated[int, Field(ge=0)] = 1


FaultKind: TypeAlias = Literal[
    "crash", "hang", "slow", "out_of_memory", "nonfinite_loss", "corrupt_upload", "late", "duplicate", "wrong_round"
]


class FaultsConfig(_Section):
    """Faults to rehearse: of each kind the probability that it befalls a client in a round, drawn from the run's seed,
    or the clients, by id, that it befalls in every round.

    ``crash``: it never answers. ``hang``: it never ends; without a deadline it is lost all the same. ``slow``: it
    takes ``slow_factor`` times as long. ``out_of_memory``, ``nonfinite_loss``: its training fails. ``corrupt_upload``,
    ``wrong_round``, ``duplicate``: its upload has some bits turned over, is of another round, comes twice. ``late``: it
    comes after the round is over. A client takes ``seconds_per_example`` of simulated time for every example that it
    trains on, which is what ``clients.deadline`` and ``clients.over_select`` go by; simulated time costs none.
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
    """The optimizer that steps from the server's tensors towards the mean of the uploads; "none": the mean itself.

    Left out, ``lr`` is 1 for sgd and momentum and 0.01 for the others, ``beta1`` 0.9 (adagrad: 0), ``beta2`` 0.99 and
    ``tau``, the adaptive ones' floor, 1e-3.
    """

    optimizer: Literal["none", "sgd", "momentum", "adam", "yogi", "adagrad"] = "none"
    lr: Annotated[float, Field(gt=0)] | None = None
    beta1: Fraction | None = None
    beta2: Fraction | None = None
    tau: Annotated[float, Field(gt=0)] | None = None


class TrainConfig(_Section):
    """Local training. ``local_steps`` replaces ``local_epochs``; the schedule is a function of the round.

    ``max_grad_norm = 0``: no clipping. ``precision``: exact is float32 throughout; fast has the frozen layers in
    bfloat16 where the hardware multiplies it, and is else the same."""

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
    """``every`` and ``clients_every``: rounds between scores on the test set and on each client's own validation
    rows (0: only after the last round). ``diagnostics_every``: rounds between measurements of what aggregation did, the
    last round included (0: none). ``local_only``: also train each client alone, as a baseline."""

    every: Annotated[int, Field(ge=0)] = 1
    clients_every: Annotated[int, Field(ge=0)] = 0
    diagnostics_every: Annotated[int, Field(ge=0)] = 5
    batch_size: Positive = 64
    local_only: bool = False


class SimulationConfig(_Section):
    """How the clients of a round share this machine. ``cohort``: how many train in one forward pass; "auto" takes as
    many as ``memory_mb`` of activations hold and the machine gains from. ``memory_mb`` is for all that train at once;
    "auto" is half of the accelerator's memory; on a processor half of the machine's, at most 256 MB a thread, so that
    clients whose steps keep more train one after the other, on more threads each. ``reuse_prefix``: keep the hidden
    states below the lowest adapted layer, up to ``prefix_memory_mb`` in memory and ``prefix_disk_mb`` in temporary
    files."""

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
