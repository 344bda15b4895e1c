"""The same true call at another rate of speech: all of its times and positions are multiplied."""

from __future__ import annotations

from typing import Any

import msgspec

from voicemem.cli.truth import TrueCall


def stretched(call: TrueCall, by: float) -> TrueCall:
    """The call with every time, position and length of audio times `by`."""
    longer: TrueCall = call if by == 1.0 else stretched_value(call, by)
    return longer


def stretched_value(value: Any, by: float) -> Any:
    """A record, or a list of them, with all fields named `*_ms` multiplied."""
    if isinstance(value, list):
        return [stretched_value(one, by) for one in value]
    if isinstance(value, msgspec.Struct):
        fields = {name: stretched_field(name, getattr(value, name), by) for name in value.__struct_fields__}
        return msgspec.structs.replace(value, **fields)
    return value


def stretched_field(name: str, value: Any, by: float) -> Any:
    if name.endswith("_ms") and value is not None:
        return round(value * by)
    return stretched_value(value, by)
