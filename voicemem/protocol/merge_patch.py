"""JSON merge patches (RFC 7396)."""

from __future__ import annotations

from typing import Any

from voicemem.protocol.types import JsonObject


def merge_patch(target: JsonObject, patch: JsonObject) -> JsonObject:
    """A new object: the target after a JSON merge patch (RFC 7396)."""
    result = dict(target)
    for key, value in patch.items():
        if value is None:
            result.pop(key, None)
        elif isinstance(value, dict):
            inner = result.get(key)
            result[key] = merge_patch(inner if isinstance(inner, dict) else {}, value)
        else:
            result[key] = value
    return result


def drop_nulls(value: Any) -> Any:
    """A merge patch without the fields that it removes: what is left must be valid as a configuration."""
    if isinstance(value, dict):
        return {key: drop_nulls(item) for key, item in value.items() if item is not None}
    return value
