"""The fields of a run directory's files. The writer refuses a field that is not here, and so does every reader, so the
two cannot drift apart; a reader also refuses a value of another type. Imports no torch."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Annotated, Any

import pydantic
from pydantic import Field

Count = Annotated[int, Field(ge=0, lt=2**63)]
Seconds = Annotated[float, Field(ge=0, allow_inf_nan=False)]


class Shape(pydantic.BaseModel):
    """A JSON object. A field without a default is in all of them."""

    model_config = pydantic.ConfigDict(extra="forbid")


class Failure(Shape):
    """A client that failed in a round."""

    client: str
    reason: str
    detail: str


class Round(Shape):
    """A line of ``metrics.jsonl``. What has a default is of some runs or rounds only."""

    round: Count
    sampled: Count
    clients: Count
    failed: list[Failure]
    rejected: dict[str, Count]
    skipped: str | None
    loss: float | None
    bytes_up: Count
    bytes_down: Count
    bytes_first_contact: Count
    seconds: Seconds
    scores: dict[str, dict[str, float | dict[str, Any] | None]]
    measures: dict[str, float | None] = {}
    lr: float = 0.0
    client_flops: float | None = None
    server_seconds: Seconds = 0.0
    server_memory_bytes: Count | None = None
    process_memory_bytes: Count | None = None
    device_memory_bytes: Count | None = None
    aggregated: Count = 0
    train_seconds: Seconds = 0.0
    evaluation_seconds: Seconds = 0.0
    diagnostics: dict[str, Any] | None = None
    titles: dict[str, str] = {}
    epsilon: float | None = None
    client_epsilon: dict[str, float | None] = {}
    epsilon_valid: bool = True
    clip: float | None = None
    guarantee: str | None = None


class Holding(Shape):
    """A client's rows."""

    train: Count
    validation: Count = 0
    test: Count = 0
    labels: dict[str, Count] | None = None
    rank: Count | None = None


class Partition(Shape):
    """``partition.json``: rows read, left out and held. A published record has the number of its clients alone, and the
    digests."""

    clients: Annotated[dict[str, Holding], pydantic.BeforeValidator(lambda of: {} if isinstance(of, list) else of)]
    rows: Count = 0
    rows_used: Count = 0
    rows_bad: Count = 0
    rows_not_sampled: Count = 0
    rows_without_client: Count = 0
    rows_without_target: Count = 0
    rows_moved: Count = 0
    sampled_by: list[str] = []
    text: dict[str, Any] = {}
    test_rows: Count | None = 0
    test_rows_used: Count = 0
    test_rows_bad: Count = 0
    test_rows_not_sampled: Count = 0
    test_rows_without_target: Count = 0
    test_rows_trained_on: Count | None = 0
    test_text: dict[str, Any] = {}
    test_examples_sha256: str | None = None
    test_labels: dict[str, Count] | None = None
    test_sampled_by: list[str] = []
    more_tests: dict[str, dict[str, Any]] = {}
    clients_not_sampled: Count = 0
    clients_too_small: dict[str, Count] = {}
    clients_without_examples: list[str] = []
    examples_sha256: str | None = None
    clients_sha256: str | None = None
    classes: list[str] = []
    warnings: list[str] = []


class Sample(Shape):
    """An answer that was generated before and after training."""

    prompt: str
    expected: str
    before: str
    after: str


class Summary(Shape):
    """``summary.json``, by which a run is finished."""

    primary: str
    before: dict[str, dict[str, Any]]
    after: dict[str, dict[str, Any]]
    measures: dict[str, dict[str, float | None]]
    rounds: Count
    algorithm: str = ""
    stopped_early: bool = False
    clients: Count = 0
    titles: dict[str, str] = {}
    head: str | None = None
    best: dict[str, Any] | None = None
    samples: list[Sample] = []
    generated: dict[str, Any] | None = None
    bytes: dict[str, float] = {}
    costs: dict[str, float | None] = {}
    failed_clients: Count = 0
    skipped_rounds: Count = 0
    privacy: dict[str, Any] | None = None
    local_only: dict[str, Any] | None = None
    seconds: dict[str, Seconds] = {}


SHAPES: Mapping[str, type[Shape]] = {"metrics.jsonl": Round, "partition.json": Partition, "summary.json": Summary}
"""The shape of each file, and of each line of ``metrics.jsonl``."""


def text(name: str, content: Mapping[str, Any], indent: int | None = None) -> bytes:
    """The JSON of a file, or of a line of one. Raises :class:`KeyError` for a field that its shape does not have, or
    has and is missing: then the writer and the schema say different things."""
    if (shape := SHAPES.get(name)) is not None:
        needed = {field for field, info in shape.model_fields.items() if info.is_required()}
        if wrong := (content.keys() - shape.model_fields.keys()) | (needed - content.keys()):
            raise KeyError(f"fields of {name} that its schema and its writer do not share: {sorted(wrong)}")
    return json.dumps(content, indent=indent, ensure_ascii=False).encode()


def parsed(name: str, content: bytes) -> Any:
    """A file of a run, or a line of one. Raises :class:`ValueError` with the reason where it is not as a run writes
    it."""
    try:
        tree = json.loads(content)
    except RecursionError as error:
        raise ValueError(str(error)) from None
    if (shape := SHAPES.get(name)) is not None:
        if not isinstance(tree, dict):
            raise ValueError("it is no table")
        try:
            shape.model_validate(tree)
        except pydantic.ValidationError as error:
            first = error.errors(include_url=False)[0]
            raise ValueError(f"{'.'.join(map(str, first['loc']))}: {first['msg']}") from None
    return tree
