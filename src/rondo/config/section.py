"""A section of the configuration, and types that many keys have."""

from __future__ import annotations

from typing import Annotated, TypeAlias

from pydantic import BaseModel, ConfigDict, Field

Positive: TypeAlias = Annotated[int, Field(gt=0)]
Fraction: TypeAlias = Annotated[float, Field(ge=0, lt=1)]


class Section(BaseModel):
    """A section. The reference of all keys (:mod:`rondo.config.reference`) is made of fields and their docstrings."""

    model_config = ConfigDict(
        extra="forbid", strict=True, frozen=True, allow_inf_nan=False, use_attribute_docstrings=True
    )
