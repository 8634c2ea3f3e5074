"""Values of frameworks as JSON that the store accepts."""

from __future__ import annotations

from typing import Any, Final

from pydantic_core import to_jsonable_python

from ..domain.quoting import brief
from ..domain.size_limits import JsonObject, JsonValue, check_value
from ..errors import RunyardError

OMITTED: Final = "runyard_omitted"
"""The only key in the result of a run whose own result cannot be stored. The value is the reason."""


def json_of(value: object) -> Any:
    """Return ``value`` as JSON. Bytes become base64, infinite numbers and NaN become null, and other objects become text."""
    return to_jsonable_python(value, fallback=str, bytes_mode="base64", inf_nan_mode="null")


def result_of(value: object) -> JsonValue:
    """Return ``value`` as the result of a run. An invalid result becomes an object with the key OMITTED.

    When this function is called, the agent has ended and its messages are stored. An invalid result therefore does not fail
    the run.
    """
    try:
        made: JsonValue = json_of(value)
        check_value(made, "result")
    except Exception as error:  # a method __str__ in the value may raise any error
        omitted: JsonObject = {OMITTED: error.message if isinstance(error, RunyardError) else f"no JSON: {brief(str(error))}"}
        return omitted
    return made
