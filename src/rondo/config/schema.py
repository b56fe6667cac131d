"""The keys of a configuration, their types, ranges and defaults. Imports no torch."""

from __future__ import annotations

import math
from pathlib import Path
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
BUILTIN_NETWORKS = (
    "builtin:cnn",
    "builtin:mlp",
    "builtin:resnet10",
    "builtin:resnet18",
    "builtin:relu",
    "builtin:lstm",
)
"""Networks with random weights (:mod:`rondo.models.classical`)."""
BUILTIN_DATA = "builtin:home-intents"
BUILTIN_IMAGES = "builtin:digits"
LINEAR = "builtin:linear"
"""Data and networks of the linear problems."""
GIVEN = "given in Python"
"""Value of ``data.source``, ``data.test_source`` or ``model.name`` where a program gave an object in its place."""


Normalization: TypeAlias = Literal["unit", "half", "mnist", "fashion-mnist", "cifar10", "cifar100", "imagenet"]
Augmentation: TypeAlias = Literal["none", "crop-flip"]


class _Section(BaseModel):
    """A section. The reference of all keys (:mod:`rondo.config.reference`) is made of fields and their docstrings."""

    model_config = ConfigDict(
        extra="forbid", strict=True, frozen=True, allow_inf_nan=False, use_attribute_docstrings=True
    )


class AlgorithmConfig(_Section):
    """The algorithm. All keys but ``name`` are fields of its dataclass."""

    model_config = ConfigDict(extra="allow")
    name: str = "rolora"
    """A name of ``rondo list``, or ``package.module:Class`` for an algorithm of one's own."""

    @property
    def fields(self) -> dict[str, Any]:
        return dict(self.__pydantic_extra__ or {})


class AdapterConfig(_Section):
    """PEFT's ``LoraConfig``: same keys, same meaning. A key or a start that PEFT has and Rondo does not is refused with
    the reason."""

    r: Positive = 8
    """Rank."""
    lora_alpha: Annotated[float, Field(gt=0)] = 16.0
    """Numerator of the scale ``lora_alpha / r``."""
    target_modules: str | list[str] = "all-linear"
    """Layers to adapt: their names, a regular expression, or ``"all-linear"``."""
    exclude_modules: str | list[str] | None = None
    """Layers to leave out: their names or a regular expression."""
    layers_to_transform: int | list[int] | None = None
    """Numbers of the layers to adapt; left out, all."""
    layers_pattern: str | list[str] | None = None
    """Name of the list of layers that ``layers_to_transform`` counts in."""
    rank_pattern: dict[str, Positive] = Field(default_factory=dict)
    """Rank per layer name, in place of ``r``."""
    alpha_pattern: dict[str, float] = Field(default_factory=dict)
    """Alpha per layer name, in place of ``lora_alpha``."""
    use_rslora: bool = False
    """Scale by ``lora_alpha / sqrt(r)``."""
    lora_dropout: Fraction = 0.0
    """Probability of dropout before A."""
    init_lora_weights: Literal[True, "gaussian", "orthogonal"] = True
    """Start of the factors; ``true`` is Kaiming-uniform A and B = 0."""
    start_from: str | None = None
    """Folder of an existing adapter to continue from."""
    from_scratch: bool = False
    """Train the adapted layers from nothing: their frozen weights are set to zero and both factors are random, as in
    the official code of FedLoRU and FedHM. Only for a model without a hub."""


class ModelConfig(_Section):
    """The model."""

    name: str = BUILTIN_MODEL
    """A folder, a GGUF file, a Hugging Face name, ``builtin:minilm``, a network with random weights (``builtin:cnn``,
    ``builtin:mlp``, ``builtin:resnet10``, ``builtin:resnet18``, ``builtin:lstm``, ``builtin:relu``), ``builtin:linear``
    (the network of ``[problem]``), or ``package.module:factory``: a function of the configuration and the task that
    returns a ``torch.nn.Module`` or a
    ``rondo.models.network.Network`` of one's own. In Python, ``rondo.run`` takes a model in its place."""
    head: Literal["shared", "local", "frozen"] | None = None
    """Task head: sent and averaged, kept by each client, or not trained. Left out, the algorithm's own choice."""
    revision: str | None = None
    """Revision on the Hugging Face hub."""
    gguf_file: str | None = None
    """GGUF file in the folder or repository ``name``. Its weights are loaded dequantised."""
    quantization: Literal["int8"] | None = None
    """Quantisation of the frozen linear layers, by torchao. Activations stay in float32."""
    head_layers: Annotated[list[str], Field(min_length=1)] | None = None
    """Layers of the head, by module path, of a model that is trained whole (``train.what``); left out, the last layer
    with parameters. What lies below is the body."""
    norm: Literal["batch", "group"] = "batch"
    """Normalisation in the built-in residual networks."""
    buffers: Literal["average", "local", "frozen"] = "average"
    """Statistics of batch normalisation in a model that is trained whole: sent and averaged, kept by each client, or
    left as they are."""

    @property
    def is_gguf_path(self) -> bool:
        """Whether ``name`` is a GGUF file itself."""
        return self.gguf_file is None and self.name.endswith(".gguf")

    @property
    def gguf(self) -> str | None:
        """The GGUF file within the model's folder or repository."""
        return Path(self.name).name if self.is_gguf_path else self.gguf_file


class TaskConfig(_Section):
    """The task."""

    kind: str = "sequence-classification"
    """``"sequence-classification"``, ``"causal-lm"``, ``"image-classification"``, ``"regression"``, ``"linear"`` (least
    squares in float64), or ``package.module:Class`` for a subclass of ``rondo.tasks.task.Task``."""
    text: str | Annotated[list[str], Field(min_length=1, max_length=2)] | None = None
    """Column with the text. A classifier takes two columns too; causal-lm takes one, or ``prompt`` and ``response``, or
    ``messages``."""
    label: str | None = None
    """Column with the label (classification)."""
    prompt: str | Annotated[list[str], Field(min_length=1)] | None = None
    """Column or columns with the instruction (causal-lm)."""
    response: str | None = None
    """Column with the response (causal-lm). The loss is on the response only."""
    separator: str | None = None
    """Text between the columns of the prompt, and between prompt and response where no chat template says. Left out, a
    blank line between columns and a newline before the response."""
    messages: str | None = None
    """Column with a conversation (causal-lm): a list of ``{"role", "content"}``, or of ShareGPT's ``{"from",
    "value"}``, in JSON lines, Parquet, or a Hugging Face data set. A system prompt may come first, then user and
    assistant take turns. The chat template renders it, and the loss is on the assistant's turns only."""
    chat_template: str | None = None
    """Jinja file with the chat template (causal-lm), in place of the tokenizer's own."""
    max_length: Annotated[int, Field(ge=4)] = 128
    """Most tokens per example."""
    image: str | None = None
    """Column with the picture (image-classification); left out, ``image``."""
    image_size: Positive | None = None
    """Pixels in height and width that pictures are resized to (image-classification). Left out, they stay as they are,
    and all must have one size."""
    image_shape: Annotated[list[Positive], Field(min_length=3, max_length=3)] | None = None
    """Height, width and channels of the pictures (image-classification); left out, those of the first. A picture of
    another shape is a bad row, except that greyscale is turned to colour where three channels are named."""
    normalize: Normalization = "unit"
    """Range of the pixels (image-classification): ``"unit"`` is 0 to 1, ``"half"`` is -1 to 1, and the others subtract
    the mean and divide by the deviation that are published for a data set."""
    augment: Augmentation = "none"
    """Random changes of the pictures in training (image-classification). ``"crop-flip"`` shifts them by up to 4 pixels
    and mirrors one in two."""
    features: Annotated[list[str], Field(min_length=1)] | None = None
    """Columns with the numbers to predict from (regression)."""
    target: str | None = None
    """Column with the number to predict (regression)."""


class DataConfig(_Section):
    """The data."""

    source: str | None = None
    """A CSV, TSV, JSON, JSON lines or Parquet file, a folder of splits, a Hugging Face name, or
    ``builtin:home-intents``; for images also an npz or IDX file, a folder with a sub-folder per class, or
    ``builtin:digits``; ``builtin:linear`` with a section ``[problem]``. Left out, the task's own built-in. In Python,
    ``rondo.run`` takes rows in its place."""
    subset: str | None = None
    """Subset of a Hugging Face data set."""
    clients_from: str | None = None
    """Folder or glob pattern with one file per client, in place of ``source``; ``[partition]`` is then not used."""
    train_split: str = "train"
    """Split of a folder or a Hugging Face data set for training."""
    test_split: Annotated[str, BeforeValidator(_empty_if_none)] = "validation"
    """Split for the test set; ``""`` means no test set."""
    test_source: str | None = None
    """File with the test set. Rows that come from single files have no other."""
    validation_fraction: Fraction = 0.1
    """Share of each client's rows that is never trained on."""
    max_train_rows: Positive | None = None
    """Use a random sample of so many training rows, drawn from ``seed``. Labels, and clients by nature, keep their
    shares."""
    max_test_rows: Positive | None = None
    """Use a random sample of so many test rows, drawn from ``seed``. Labels keep their shares."""
    max_read_mb: Positive = 2048
    """The most memory for rows, in MiB. Text files count as they are, Parquet and Hugging Face data sets with 128 bytes
    per value and their texts uncompressed."""
    bad_rows: Literal["error", "drop"] = "error"
    """Bad rows end the run before it starts, or are left out and counted."""
    min_examples: Positive = 1
    """Leave out clients with fewer rows."""


class PartitionConfig(_Section):
    """The way rows are dealt to clients."""

    kind: Literal["iid", "dirichlet", "shards", "classes", "natural", "lognormal"] | None = None
    """Left out, it is iid, or the homes of the built-in data."""
    clients: Annotated[int, Field(ge=1)] | None = None
    """Number of clients. For natural it may be left out, which takes all; else so many are drawn from those with
    ``data.min_examples`` rows."""
    alpha: Annotated[float, Field(gt=0)] | None = None
    """Parameter of dirichlet; smaller values make the clients' labels differ more."""
    classes_per_client: Positive | None = None
    """Number of classes that each client has, for classes."""
    shards_per_client: Positive | None = None
    """Number of shards that each client gets, for shards."""
    sigma: Annotated[float, Field(gt=0)] | None = None
    """Spread of the clients' sizes, for lognormal (left out, 1) and for classes (left out, 0)."""
    equal_sizes: bool = False
    """Give all clients the same number of rows, for classes and dirichlet. Rows that are left are dropped."""
    column: str | None = None
    """Column that names each row's client, for natural."""
    min_size: Annotated[int, Field(ge=0)] = 1
    """Smallest number of rows that a client may get, for all kinds but natural."""


class ProblemConfig(_Section):
    """The linear problem of ``data.source = "builtin:linear"``, drawn from ``seed``: inputs x ~ N(0, I), and a truth
    that the clients' outputs y follow."""

    kind: Literal["factors", "heads"] = "factors"
    """``"factors"``: y = B A x, for a network of the two factors (RoLoRA, section 4.1, where A is a^T and B is b).
    ``"heads"``: y = w_i B^T x, for a representation B^T in common below a head w_i of each client (FedRep, section
    4)."""
    clients: Positive = 10
    """Number of clients."""
    rows: Positive = 50
    """Rows of each client."""
    inputs: Positive = 10
    """Numbers in x."""
    outputs: Positive | None = None
    """Numbers in y, for factors; left out, as many as in x. A head has one."""
    rank: Positive = 1
    """Rows of A, or of the representation."""
    spread: Annotated[float, Field(ge=0)] = 0.0
    """For factors: distance of each client's own B from their mean, over the norm of the mean, as a root mean square; 0
    gives all clients the same."""
    noise: Annotated[float, Field(ge=0)] = 0.0
    """Standard deviation of the noise in y."""
    design: Literal["gaussian", "isotropic"] = "gaussian"
    """``"isotropic"`` gives the inputs of every client the second moment I exactly, so its loss is its population's. It
    needs as many rows as inputs."""
    start_distance: Annotated[float, Field(gt=0, lt=1)] | None = None
    """For factors of rank 1: angle distance between the start of A and the truth; left out, A starts at random."""


Ranks: TypeAlias = (
    Annotated[list[Positive], Field(min_length=1)]
    | Annotated[dict[str, Annotated[float, Field(gt=0, le=1)]], Field(min_length=1)]
)


class ClientsConfig(_Section):
    """The sampling of clients, the weights of their uploads, and the clients' ranks.

    Without ``ranks`` and ``bytes_budget`` all clients have the run's rank. No client may exceed it, and it alone sets
    the scale.
    """

    per_round: Positive | None = None
    """Clients sampled per round; left out, all."""
    sampling: Literal["uniform", "poisson", "full", "weighted"] = "uniform"
    """``"poisson"`` draws each client independently, ``"weighted"`` prefers clients with more examples, ``"full"``
    takes all."""
    weighting: Literal["examples", "uniform"] = "examples"
    """Weight of an upload in the mean: the client's number of examples, or the same for all, as in most papers."""
    min_clients: Positive = 1
    """With fewer uploads the round is skipped and the model stays."""
    over_select: Annotated[float, Field(ge=0, le=10)] = 0.0
    """Sample this share more than ``per_round``. The first ``per_round`` uploads count; later ones come too late."""
    deadline: Annotated[float, Field(gt=0)] | None = None
    """Simulated seconds after which an upload comes too late; left out, all uploads are waited for."""
    ranks: Annotated[Ranks | None, BeforeValidator(_text_keys)] = None
    """A list with one rank per client in the order of their ids, or shares of the clients by rank, which the run's seed
    deals out."""
    bytes_budget: Positive | Annotated[list[Positive], Field(min_length=1)] | None = None
    """In place of ``ranks``, bytes for all clients or per client. Each client has the largest rank whose upload in a
    round fits, the head not counted."""


class AdmissionConfig(_Section):
    """Limits that an upload must respect to count. Names, shapes, types and finite values are always checked."""

    max_examples: Positive | None = None
    """Largest number of examples that a client may claim."""
    max_norm: Annotated[float, Field(gt=0)] | None = None
    """Largest Euclidean norm, over all tensors, of the difference between an upload and the broadcast, or of the upload
    itself if the algorithm puts it in other coordinates."""
    clip: bool = False
    """Scale a larger norm down to ``max_norm`` instead of rejecting the upload."""


Befalls: TypeAlias = Fraction | Annotated[list[str], Field(min_length=1)]


class RobustConfig(_Section):
    """Aggregation that dishonest clients cannot steer (:mod:`rondo.algorithms.wrappers.robust`)."""

    rule: Literal["none", Rule] = "none"
    """Rule in place of the algorithm's own aggregation."""
    byzantine: Annotated[int, Field(ge=0)] = 1
    """Number of dishonest clients per round that the rule must withstand."""


FaultKind: TypeAlias = Literal[
    "crash", "hang", "slow", "out_of_memory", "nonfinite_loss", "corrupt_upload", "late", "duplicate", "wrong_round"
]


class FaultsConfig(_Section):
    """Faults to rehearse. Each kind is set to the probability that a client has the fault in a round, drawn from the
    run's seed, or to the ids of the clients that have it in every round.

    The probabilities may sum to 1 at most, because a client has one fault per round.
    """

    crash: Befalls = 0.0
    """The client never answers."""
    hang: Befalls = 0.0
    """The client never finishes; it is lost even without a deadline."""
    slow: Befalls = 0.0
    """The client takes ``slow_factor`` times as long. Needs ``clients.deadline`` or ``clients.over_select``."""
    out_of_memory: Befalls = 0.0
    """The client's training runs out of memory, and its cohort is halved."""
    nonfinite_loss: Befalls = 0.0
    """The client's loss is not finite, and its cohort trains again without it."""
    corrupt_upload: Befalls = 0.0
    """Some bits of the upload are flipped."""
    late: Befalls = 0.0
    """The upload arrives after the round is over."""
    duplicate: Befalls = 0.0
    """The upload arrives twice."""
    wrong_round: Befalls = 0.0
    """The upload belongs to another round."""
    slow_factor: Annotated[float, Field(gt=1)] = 10.0
    """Time of a slow client over that of any other."""
    seconds_per_example: Annotated[float, Field(gt=0)] = 1.0
    """Simulated time that a client takes per training example. ``clients.deadline`` and ``clients.over_select`` go by
    simulated time, which takes no real time."""


class ServerConfig(_Section):
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


class TrainConfig(_Section):
    """Local training."""

    optimizer: Literal["adamw", "sgd"] = "adamw"
    """Optimizer; every local training starts with a fresh one."""
    lr: Annotated[float, Field(gt=0)] = 1e-3
    """Learning rate."""
    momentum: Fraction = 0.0
    """Momentum of sgd."""
    weight_decay: Annotated[float, Field(ge=0)] = 0.0
    """Weight decay."""
    batch_size: Positive = 16
    """Rows per step and client."""
    local_epochs: Positive | None = None
    """Passes over a client's rows per round; left out, 1."""
    local_steps: Positive | None = None
    """Steps per round, in place of ``local_epochs``."""
    schedule: Literal["constant", "linear", "cosine"] = "constant"
    """Learning rate as a function of the round: constant, or decay towards zero after the last round."""
    warmup_rounds: Annotated[int, Field(ge=0)] = 0
    """Rounds of linear warm-up."""
    max_grad_norm: Annotated[float, Field(ge=0), BeforeValidator(_zero_if_none)] = 1.0
    """Norm to which each client's gradient is clipped; 0 means no clipping."""
    precision: Literal["exact", "fast"] = "fast"
    """``"exact"`` computes in float32 throughout. ``"fast"`` keeps the frozen layers in bfloat16 if the hardware
    multiplies it, and is otherwise the same."""
    length_grouping: bool = True
    """Batch rows of similar length, which saves padding."""
    what: Literal["all", "head"] | Annotated[list[str], Field(min_length=1)] | None = None
    """Whole tensors to train: ``"all"``, those of the ``"head"``, or parameters by name (patterns with ``*``, as in
    ``"layer4.*"``). Low-rank factors are trained beside them where there is a section ``[adapter]``. Left out, factors
    and the head are trained."""

    def rate(self, index: int, rounds: int) -> float:
        """The learning rate of round ``index`` of ``rounds``: a linear warm-up, then constant, or linear or cosine
        decay towards zero after the last round."""
        if index < self.warmup_rounds:
            return self.lr * (index + 1) / (self.warmup_rounds + 1)
        done = (index - self.warmup_rounds) / (rounds - self.warmup_rounds)
        factor = {"constant": 1.0, "linear": 1 - done, "cosine": 0.5 * (1 + math.cos(math.pi * done))}[self.schedule]
        return self.lr * factor


class EvaluationConfig(_Section):
    """Measurements during and after training."""

    every: Annotated[int, Field(ge=0)] | Literal["auto"] = 1
    """Rounds between scores on the test set; 0 scores only after the last round. ``"auto"``: so many that scores take
    about a fifth of the time at most, estimated from the numbers of rows."""
    clients_every: Annotated[int, Field(ge=0)] = 0
    """Rounds between scores on each client's own validation rows; 0 scores only after the last round."""
    diagnostics_every: Annotated[int, Field(ge=0)] = 5
    """Rounds between measurements of the aggregation's effect, the last round included; 0 takes none."""
    patience: Annotated[int, Field(ge=0)] = 0
    """Scores in a row without a better one that end the run early; 0 never ends it early. The scores are those of
    ``every`` or, without a test set, of ``clients_every``."""
    batch_size: Positive = 64
    """Rows per batch."""
    fine_tune_epochs: Annotated[int, Field(ge=0)] = 0
    """Also score each client's model after so many epochs of training on the client's own rows (the "+FT" of papers)
    wherever clients are scored."""
    fine_tune: Literal["all", "head"] = "all"
    """Tensors that this fine-tuning trains."""
    local_only: bool = False
    """Also train each client alone, as a baseline."""


class SimulationConfig(_Section):
    """The way the clients of a round share this machine."""

    cohort: Positive | Literal["auto"] = "auto"
    """Clients that train in one forward pass. ``"auto"`` takes as many as ``memory_mb`` of activations hold, and no
    more than the machine gains from."""
    memory_mb: Positive | Literal["auto"] = "auto"
    """Megabytes for the activations of all clients that train at once. ``"auto"`` is half of the accelerator's memory.
    On a CPU it is half of the machine's, at most 256 MB per thread, so that clients whose steps keep more train one
    after the other, on more threads each."""
    reuse_prefix: bool = True
    """Keep the hidden states below the lowest adapted layer."""
    prefix_memory_mb: Annotated[int, Field(ge=0)] = 1024
    """Most megabytes of memory for these hidden states."""
    prefix_disk_mb: Annotated[int, Field(ge=0)] = 4096
    """Most megabytes of disk space for them, in temporary files."""


class RunConfig(_Section):
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
    train: TrainConfig = Field(default_factory=TrainConfig)
    server: ServerConfig = Field(default_factory=ServerConfig)
    simulation: SimulationConfig = Field(default_factory=SimulationConfig)
    evaluation: EvaluationConfig = Field(default_factory=EvaluationConfig)

    @property
    def whole_tensors(self) -> Literal["all", "head"] | list[str] | None:
        """Whole tensors to train, as ``train.what`` names them. A built-in network without a section ``[adapter]``
        trains all, since its weights are random."""
        scratch = self.model.name in BUILTIN_NETWORKS and "adapter" not in self.model_fields_set
        return "all" if self.train.what is None and scratch else self.train.what

    @property
    def has_factors(self) -> bool:
        """Whether low-rank factors are trained: always, unless there are whole tensors to train and no section
        ``[adapter]``."""
        return self.whole_tensors is None or "adapter" in self.model_fields_set
