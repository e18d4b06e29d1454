"""The base of every settings section and the number types that they are made of."""

from __future__ import annotations

from typing import Annotated, Any

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field


class Section(BaseModel):
    """A frozen settings section: unknown keys are refused, each field is explained by the text under it."""

    model_config = ConfigDict(
        frozen=True, extra="forbid", allow_inf_nan=False, use_attribute_docstrings=True, validate_default=True
    )


def _a_number(value: Any) -> Any:
    # bool is an int for Python; `learning_rate: true` is a mistake all the same.
    if isinstance(value, bool):
        raise ValueError("must be a number, not true or false")
    if isinstance(value, str):
        raise ValueError("must be a number, not text")
    return value


number = BeforeValidator(_a_number)

# Bounds before the validator: pydantic puts only those into the schema as its standard names them.
Count = Annotated[int, Field(ge=1, le=2**53), number]
Whole = Annotated[int, Field(ge=0), number]
Positive = Annotated[float, Field(gt=0), number]
NonNegative = Annotated[float, Field(ge=0), number]
Share = Annotated[float, Field(ge=0, le=1), number]
Real = Annotated[float, number]
Widths = Annotated[tuple[Count, ...], Field(min_length=1)]


off_policy = Field(json_schema_extra={"family": "off_policy"})
"""Marks a field that only off-policy algorithms use."""
on_policy = Field(json_schema_extra={"family": "on_policy"})
"""Marks a field that only on-policy algorithms use."""
