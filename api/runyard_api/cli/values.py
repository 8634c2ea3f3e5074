"""The values of options that are JSON, or pairs of a key and a value."""

from __future__ import annotations

import json
from collections.abc import Sequence

from runyard.errors import InvalidInputError
from runyard.models import JsonObject


def json_object(text: str, option: str) -> JsonObject:
    """Return the JSON object ``text``. Raises InvalidInputError if ``text`` is not a JSON object. The error names the
    ``option``."""
    field = option.lstrip("-")
    try:
        value = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise InvalidInputError(f"{option} takes a JSON object: {error}", field=field) from None
    if not isinstance(value, dict):
        raise InvalidInputError(f"{option} takes a JSON object; got {text!r}", field=field)
    return value


def key_value(pair: str, option: str) -> tuple[str, str]:
    """Return the key and the value of ``KEY=VALUE``. Raises InvalidInputError if ``pair`` does not have this form. The error
    names the ``option``."""
    key, equals, value = pair.partition("=")
    if not equals or not key:
        raise InvalidInputError(f"{option} takes KEY=VALUE; got {pair!r}", field=option.lstrip("-"))
    return key, value


def metadata(given: Sequence[str], option: str) -> JsonObject:
    """Return one object for the values of an option, each a JSON object or ``KEY=VALUE``. The value of a pair is a text.

    Raises InvalidInputError if a value is neither a JSON object nor ``KEY=VALUE``, or if a key is given twice.
    """
    found: JsonObject = {}
    for text in given:
        object_ = json_object(text, option) if text.lstrip().startswith("{") else dict([key_value(text, option)])
        if twice := sorted(found.keys() & object_.keys()):
            raise InvalidInputError(f"{option} has {', '.join(map(repr, twice))} twice; give each key once", field="metadata")
        found |= object_
    return found
