"""Keys about what is trained: the adapter, the model, the task, the data. Imports no torch."""

from __future__ import annotations

import math
import re
import unicodedata
from contextlib import suppress
from datetime import date, datetime, time
from decimal import Decimal
from numbers import Real
from pathlib import Path
from typing import Annotated, Any, Literal, TypeAlias

from pydantic import AfterValidator, BeforeValidator, Field
from pydantic_core import PydanticCustomError

from rondo.config.section import Fraction, Positive, Section
from rondo.traits import HeadPolicy


def _empty_if_none(value: Any) -> Any:
    return "" if value is None else value


BUILTIN_MODEL = "builtin:minilm"
_NETWORKS = ("cnn", "mlp", "2nn", "resnet10", "resnet18", "relu", "no-relu", "lstm")
BUILTIN_NETWORKS = tuple(f"builtin:{name}" for name in _NETWORKS)
"""Networks with random weights (:mod:`rondo.models.forms.builtin.classical`)."""
BUILTIN_DATA = "builtin:home-intents"
BUILTIN_IMAGES = "builtin:digits"
LINEAR = "builtin:linear"
"""Data and networks of the linear problems."""
GIVEN = "given in Python"
"""Value of ``data.source``, ``data.test_source``, ``data.clients_from`` or ``model.name`` where a program gave an
object in its place."""
AT_SITES = "at its sites"
"""Value of ``data.clients_from`` in a run whose rows are elsewhere (:mod:`rondo.federation`)."""


_WHOLE = re.compile(r"([+-]?)(0|[1-9][0-9]*)(?:\.0*)?")
"""A whole number as programs write it, 0.0 too. 007 and 3.10 are names: of a ward, of a version."""


def plain_name(name: object) -> str:
    """A name of a column, a class, a client or a person: the same text for all cells that differ by blanks, Unicode
    form or the spelling of a whole number alone. It has no blanks at its ends, one space for blanks within, is composed
    (NFC), and is ``1`` for 1.0, "1.0" and "+1" too: pandas writes integers in a column with gaps as 1.0."""
    text = " ".join(unicodedata.normalize("NFC", cell_text(name)).split())
    if (whole := _WHOLE.fullmatch(text)) is None:
        return text
    return whole[2] if whole[1] != "-" or whole[2] == "0" else f"-{whole[2]}"


def cell_text(value: Any) -> str:
    """A cell as text: a whole number of any library as an integer, a day as a date, without its midnight."""
    if isinstance(value, Real | Decimal) and not isinstance(value, bool):
        number: Any = value
        return str(int(number)) if math.isfinite(number) and number == int(number) else str(number)
    if isinstance(value, datetime) and value == value and value.timetz() == time():  # NaT has no time
        return value.date().isoformat()
    return str(value)


def _day(value: Any) -> Any:
    """A date, which TOML has a literal for, as text."""
    return value.isoformat() if isinstance(value, date) else value


def _is_day(text: str) -> str:
    with suppress(ValueError):
        if date.fromisoformat(text).isoformat() == text:
            return text
    raise PydanticCustomError("date", "should be a date, such as 2026-11-25")


Name: TypeAlias = Annotated[str, AfterValidator(plain_name)]
"""A name of a column or a class."""
Phrase: TypeAlias = Annotated[str, Field(max_length=1000)]
"""A text that is put into every row."""
Normalization: TypeAlias = Literal["unit", "half", "mnist", "fashion-mnist", "cifar10", "cifar100", "imagenet"]
Norm: TypeAlias = Literal["batch", "batch-no-statistics", "group"]
Augmentation: TypeAlias = Literal["none", "crop-flip"]


class AdapterConfig(Section):
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
    use_dora: bool = False
    """Train the norm of each adapted layer's rows beside the direction W + scale * B A (DoRA). For linear layers, and
    for methods that average tensors (``rondo list --compat``)."""
    lora_dropout: Fraction = 0.0
    """Probability of dropout before A."""
    init_lora_weights: Literal[True, "gaussian", "orthogonal", "pissa"] = True
    """Start of the factors; ``true`` is Kaiming-uniform A and B = 0. ``"pissa"`` takes the leading singular directions
    out of each weight, so the result has twice the rank; for methods that average factors."""
    start_from: str | None = None
    """Folder of an existing adapter to continue from."""
    from_scratch: bool = False
    """Train the adapted layers from nothing: frozen weights zero, both factors random, as in FedLoRU's and FedHM's
    code. Only for a model without a hub."""

    @property
    def fresh(self) -> Literal[True, "gaussian", "orthogonal"]:
        """The start of factors that are drawn."""
        return True if self.init_lora_weights == "pissa" else self.init_lora_weights


class ModelConfig(Section):
    """The model."""

    name: str = BUILTIN_MODEL
    """A folder, a GGUF file, a Hugging Face name, ``builtin:minilm``, a network with random weights (``builtin:cnn``,
    ``builtin:mlp``, ``builtin:2nn``, ``builtin:resnet10``, ``builtin:resnet18``, ``builtin:lstm``, ``builtin:relu``,
    ``builtin:no-relu``), ``builtin:linear`` (the network of ``[problem]``), or ``package.module:factory``, a function
    of the configuration and the task that returns a ``torch.nn.Module`` or a
    ``rondo.models.networks.network.Network``."""
    head: HeadPolicy | None = None
    """Task head: sent and averaged, kept by each client, or not trained. Left out, the algorithm's own choice."""
    revision: str | None = None
    """Revision on the Hugging Face hub."""
    gguf_file: str | None = None
    """GGUF file in the folder or repository ``name``. Its weights are loaded dequantised."""
    quantization: Literal["int8", "nf4"] | None = None
    """Rounding of the frozen linear layers: to 8 bits by torchao, or to 4 by bitsandbytes."""
    head_layers: Annotated[list[str], Field(min_length=1)] | None = None
    """Layers of the head, by module path, if ``train.what`` trains the model whole; left out, the last layer with
    parameters."""
    norm: Norm = "batch"
    """Normalisation in the built-in residual networks. With ``"batch-no-statistics"`` scores and predictions depend on
    ``evaluation.batch_size``."""
    vectors: str | None = None
    """Text file with a word and its vector per line, as GloVe's (``builtin:lstm``). Left out, vectors of hashed words
    are trained."""
    buffers: Literal["average", "local", "frozen"] = "average"
    """Statistics of batch normalisation in a model that is trained whole: averaged, kept by each client, or left as
    they are."""

    @property
    def is_gguf_path(self) -> bool:
        """Whether ``name`` is a GGUF file itself."""
        return self.gguf_file is None and self.name.endswith(".gguf")

    @property
    def gguf(self) -> str | None:
        """The GGUF file within the model's folder or repository."""
        return Path(self.name).name if self.is_gguf_path else self.gguf_file


class TaskConfig(Section):
    """The task."""

    kind: str = "sequence-classification"
    """``"sequence-classification"``, ``"sequence-regression"`` (a number for a text), ``"question-answering"``,
    ``"token-classification"`` (entities in a text), ``"causal-lm"``, ``"seq2seq-lm"`` (an encoder and a decoder),
    ``"multiple-choice"``, ``"preference"`` (DPO), ``"reward"`` (a number for an answer), ``"embedding"`` (a vector for
    a text), ``"image-classification"``, ``"regression"`` (a number for numbers), ``"linear"`` (least squares in
    float64), or ``package.module:Class`` for a subclass of ``rondo.tasks.task.Task``."""
    text: Name | Annotated[list[Name], Field(min_length=1, max_length=2)] | None = None
    """Column with the text. Classification and regression of texts take two columns too; causal-lm takes one, or
    ``prompt`` and ``response``, or ``messages``."""
    label: Name | Annotated[list[Name], Field(min_length=2)] | None = None
    """Column with the label (classification), or a column of 0 and 1 per label, if a row may have several."""
    labels: Annotated[list[Name], Field(min_length=2)] | None = None
    """Names of the classes, in order (classification), or all tags of IOB2 (token-classification); left out, the names
    in the training rows. A row with another label is a bad row."""
    tokens: Name | None = None
    """Column with a list of words (token-classification), beside ``tags``."""
    tags: Name | None = None
    """Column with a list of tags, one per token (token-classification): names, or numbers of ``labels``."""
    spans: Name | None = None
    """Column with the entities of ``text`` (token-classification): a list of ``{"start", "end", "label"}``, counted in
    characters from 0, or of lists of these three; either may be JSON."""
    scheme: Literal["IOB2", "IOB1", "IO", "BIOES"] | None = None
    """Scheme of ``tags`` (token-classification). Left out, it follows from the tags; IOB1 must be named."""
    label_separator: Annotated[str, Field(min_length=1)] | None = None
    """Text between the labels of a cell, such as ``";"`` in ``flu;cold`` (classification). An empty cell has no
    label."""
    multi_label: bool | None = None
    """Whether the column ``label`` has lists of labels (classification). Left out, it follows from the training rows,
    and from ``label`` and ``label_separator``."""
    prompt: Name | Annotated[list[Name], Field(min_length=1)] | None = None
    """Column or columns with the instruction (causal-lm), the text to read (seq2seq-lm) or the question
    (multiple-choice). Of preference and reward, a text or turns; left out, ``prompt`` if a row has it, else the
    beginning of both answers."""
    response: Name | None = None
    """Column with the response (causal-lm) or the text to write (seq2seq-lm)."""
    separator: Phrase | None = None
    """Text between the columns of the prompt (left out, a blank line), and between prompt and answer without a chat
    template (left out, a newline)."""
    messages: Name | None = None
    """Column with a conversation (causal-lm): a list of ``{"role", "content"}``, or of ShareGPT's ``{"from",
    "value"}``. The loss is on the assistant's turns only."""
    choices: Name | Annotated[list[Name], Field(min_length=2)] | None = None
    """Column with a list of choices (multiple-choice), or with a text that ends in ``Answer format: true/false``, or
    one column per choice, of which a row's last ones may be empty."""
    answer: Name | None = None
    """Column with the right choice (multiple-choice): its text, its letter or its number (from 0)."""
    answer_is: Literal["text", "letter", "number"] | None = None
    """The form of ``answer`` (multiple-choice). Left out, any; a row that can be read in two ways is a bad row."""
    answer_text: Phrase | None = None
    """Text of an answer (multiple-choice), with ``{}`` in place of the choice; left out, the choice alone."""
    letters: bool | None = None
    """List the choices below the question, and answer by letter (multiple-choice), as lm-eval for MMLU."""
    chosen: Name | None = None
    """Column with the better answer (preference, reward): a text, which may begin with the prompt, or turns; left out,
    ``chosen``."""
    rejected: Name | None = None
    """Column with the other answer (preference, reward); left out, ``rejected``."""
    loss_type: Literal["sigmoid", "hinge", "ipo", "robust", "sigmoid_norm"] | None = None
    """Loss of a pair (preference), by TRL's names; left out, ``"sigmoid"`` (DPO)."""
    beta: Annotated[float, Field(gt=0)] | None = None
    """Weight of the reference (preference): the higher, the closer the model stays to it; left out, 0.1."""
    label_smoothing: Annotated[float, Field(ge=0, lt=0.5)] | None = None
    """Share of pairs that are the wrong way round (preference, ``loss_type = "robust"``); left out, 0."""
    chat_template: str | None = None
    """Jinja file with a chat template, in place of the tokenizer's own (language models)."""
    today: Annotated[str, BeforeValidator(_day), AfterValidator(_is_day)] | None = None
    """The date, such as 2026-11-25, that a chat template prints. Left out, the day on which the run starts, which the
    run keeps."""
    context: Name | None = None
    """Column with the text that holds the answers (question-answering)."""
    question: Name | None = None
    """Column with the question (question-answering)."""
    answers: Name | None = None
    """Column with the answers (question-answering): ``{"text": [...], "answer_start": [...]}``, a list of ``{"text",
    "answer_start"}``, or either as JSON; with ``answer_start``, texts alone. The first is learned; scores are for the
    best match of all."""
    answer_start: Name | None = None
    """Column with the places in the context where the answers start (question-answering), if ``answers`` has none."""
    unanswerable: bool = False
    """Whether a question may have no answer (question-answering, as in SQuAD 2.0)."""
    stride: Annotated[int, Field(ge=0)] | None = None
    """Tokens that neighbouring windows share (question-answering, token-classification); left out, a quarter of
    ``max_length``."""
    max_answer_tokens: Positive | None = None
    """Most tokens of a predicted answer (question-answering); left out, 30."""
    anchor: Name | None = None
    """Column with a text, such as a question (embedding)."""
    positive: Name | None = None
    """Column with a text that belongs to it, such as its answer (embedding)."""
    negative: Name | Annotated[list[Name], Field(min_length=1)] | None = None
    """Column or columns with texts that look as if they belonged to it, and do not (embedding)."""
    score: Name | None = None
    """Column with the similarity of anchor and positive, from -1 to 1 (embedding). Rows, and whole files, may have
    none."""
    scale: Annotated[float, Field(gt=0)] | None = None
    """Factor of the cosines in the loss of rows without a score (embedding); left out, 20."""
    pooling: Literal["mean", "cls", "max", "lasttoken"] | None = None
    """How states become a vector (embedding); left out, by the model's ``modules.json``, or the mean."""
    unit_length: bool | None = None
    """Whether predicted vectors have length 1 (embedding); left out, by the model's ``modules.json``."""
    metric: str | None = None
    """Metric of progress, of the best round (``adapter-best``) and of patience; left out, the first: accuracy, f1,
    matthews, auc, loss (classification); pearson, spearman, mse (sequence-regression); f1, exact_match, loss
    (question-answering); f1, precision, recall, accuracy, loss (token-classification); recall_at_1, recall_at_10, mrr,
    spearman (embedding); loss, perplexity, accuracy (causal-lm, seq2seq-lm); accuracy_likelihood, accuracy_normalised,
    loss (multiple-choice); accuracy, margin, loss (preference, reward); r2, rmse, mae (regression)."""
    max_length: Annotated[int, Field(ge=4)] = 128
    """Most tokens per example, per window (question-answering, token-classification) or per prompt (seq2seq-lm)."""
    max_target_length: Annotated[int, Field(ge=4)] | None = None
    """Most tokens of the response (seq2seq-lm); left out, ``max_length``."""
    image: Name | None = None
    """Column with the picture (image-classification); left out, ``image``."""
    image_size: Annotated[int, Field(ge=1, le=4096)] | None = None
    """Pixels in height and width that pictures are resized to (image-classification). Left out, all must have one
    size."""
    image_shape: Annotated[list[Positive], Field(min_length=3, max_length=3)] | None = None
    """Height, width and channels of the pictures (image-classification); left out, the first picture's. Greyscale turns
    to colour, and a list of so many numbers takes this shape; any other picture is a bad row."""
    normalize: Normalization = "unit"
    """Range of the pixels (image-classification): 0 to 1, -1 to 1, or less the mean and over the deviation published
    for a data set. Bytes are divided by 255 first. Floats are not: ``"unit"`` takes them as they are, and the others
    take floats from 0 to 1 alone."""
    augment: Augmentation = "none"
    """Random changes of the pictures in training (image-classification): shifts by up to 4 pixels, and one in two
    mirrored."""
    features: Annotated[list[Name], Field(min_length=1)] | None = None
    """Columns with the numbers to predict from (regression)."""
    target: Name | None = None
    """Column with the number to predict (regression and sequence-regression)."""

    @property
    def label_columns(self) -> list[str]:
        """The columns with labels; none for a task without."""
        return [self.label] if isinstance(self.label, str) else list(self.label or ())

    @property
    def several_labels(self) -> bool:
        """Whether a row may have several labels."""
        return bool(self.multi_label) or self.label_separator is not None or isinstance(self.label, list)

    @property
    def named_labels(self) -> list[str] | None:
        """The names of the classes, in order, as far as the configuration says them: columns of 0 and 1 have theirs."""
        return self.label if isinstance(self.label, list) else self.labels


class DataConfig(Section):
    """The data."""

    source: str | None = None
    """A CSV, TSV, JSON, JSON lines, Parquet, Excel or CoNLL file, a folder of splits (files, or folders of files), a
    Hugging Face name, or ``builtin:home-intents``; for images also an npz or IDX file, a folder with a sub-folder per
    class, or ``builtin:digits``; ``builtin:linear`` with ``[problem]``. Left out, the task's own built-in."""
    subset: str | None = None
    """Subset of a Hugging Face data set."""
    clients_from: str | None = None
    """Folder or glob pattern with one file per client, in place of ``source`` and ``[partition]``, or a folder with
    such folders ``train`` and ``test`` (or the splits' names)."""
    train_split: str = "train"
    """Split of a folder or a Hugging Face data set for training."""
    test_split: Annotated[str, BeforeValidator(_empty_if_none)] = "validation"
    """Split for the test set; ``""`` means no test set."""
    test_source: str | None = None
    """File with the test set. Beside ``clients_from`` also a folder or pattern with each client's own test rows, in a
    file of the same name."""
    more_tests: dict[str, str] = Field(default_factory=dict)
    """More test sets, each by a name: a file, or a split of the source. Their scores choose no round."""
    validation_fraction: Fraction = 0.1
    """Share of each client's rows that is never trained on. Left out, it is 0 if clients have test rows, and with
    ``[privacy]``. With ``privacy.unit = "example"`` a digest of the row, or of its person, decides, so the share is
    approximate."""
    hold_out_by: Name | None = None
    """Column with the person, or another unit that must not be on both sides. All rows of one are held back, or none,
    by a digest, so the share is approximate. Its test rows go to one client (``partition.deal_tests``). A
    warning tells of persons in training and test rows."""
    separator: Annotated[str, Field(min_length=1, max_length=1)] | None = None
    """Character between the columns of CSV and TSV files, unless a file's header has another one. Left out, a comma or
    a tab, by the file's ending."""
    encoding: str = "utf-8"
    """Encoding of text files (CSV, TSV, JSON) that are not UTF-8, such as Excel's ``"cp1252"``."""
    max_train_rows: Positive | None = None
    """Use a random sample of so many training rows, with the shares of labels, and of clients by nature."""
    max_test_rows: Positive | None = None
    """Use a random sample of so many rows of each test set, with the shares of labels and clients."""
    max_read_mb: Positive = 2048
    """The most memory for rows, in MiB. Parquet and Hugging Face data sets count uncompressed, with 128 bytes per
    value."""
    bad_rows: Literal["error", "drop"] = "error"
    """Bad rows end the run before it starts, or are left out and counted."""
    min_examples: Positive = 1
    """Leave out clients with fewer rows."""


class PartitionConfig(Section):
    """The way rows are dealt to clients."""

    kind: Literal["iid", "dirichlet", "shards", "classes", "natural", "lognormal"] | None = None
    """Left out, it is iid, or the homes of the built-in data."""
    clients: Annotated[int, Field(ge=1)] | None = None
    """Number of clients. For natural so many are drawn of those with ``data.min_examples`` rows; left out, all."""
    alpha: Annotated[float, Field(gt=0)] | None = None
    """Parameter of dirichlet; smaller values make the clients' labels differ more."""
    classes_per_client: Positive | None = None
    """Number of classes that each client has, for classes."""
    shards_per_client: Positive | None = None
    """Number of shards that each client gets, for shards."""
    sigma: Annotated[float, Field(gt=0)] | None = None
    """Spread of the clients' sizes, for lognormal (left out, 1) and for classes (left out, 0)."""
    equal_sizes: bool = False
    """All clients have the same number of rows (classes, dirichlet); rows that are left are dropped."""
    column: Name | None = None
    """Column that names each row's client, for natural."""
    min_size: Annotated[int, Field(ge=0)] = 1
    """Smallest number of rows that a client may get, for all kinds but natural."""
    deal_tests: bool = False
    """Deal the test set to the clients too, each class in proportion to their training rows of it."""
