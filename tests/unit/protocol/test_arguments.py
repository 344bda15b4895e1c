"""Arguments as programs and LLMs write them are made to fit the types that they are converted to."""

from typing import Any, ClassVar

import msgspec
from msgspec import UNSET, Struct, UnsetType

from tests.support.rows import every_row
from voicemem.protocol.arguments import fit


class Part(Struct):
    """A part of a body."""

    count: int = 1
    text: str | None = None


class Body(Struct):
    """A body with a field of every kind."""

    NEVER_NULL: ClassVar = ("owner",)
    needed: int
    owner: str | UnsetType = UNSET
    result: Any | UnsetType = UNSET
    raw: msgspec.Raw | UnsetType = UNSET
    limit: int | UnsetType = UNSET
    seconds: int | float = 60
    parts: tuple[Part, ...] = ()
    kinds: list[int] | None = None
    free: dict[str, Any] = {}


@every_row(
    ("value", "fitting"),
    [
        ({"limit": None, "seconds": None, "parts": None, "free": None}, {}),
        ({"kinds": None}, {"kinds": None}),
        ({"result": None, "raw": None}, {"result": None, "raw": None}),
        ({"owner": None, "needed": None, "other": None}, {"owner": None, "needed": None, "other": None}),
        ({"parts": [{"count": None, "text": None}, {"count": 2.0}]}, {"parts": [{"text": None}, {"count": 2}]}),
        ({"needed": 5.0, "limit": 5.5, "kinds": [1.0, 2]}, {"needed": 5, "limit": 5.5, "kinds": [1, 2]}),
        ({"seconds": 5.0, "free": {"a": 5.0, "b": None}}, {"seconds": 5.0, "free": {"a": 5.0, "b": None}}),
        ({"limit": float("inf"), "parts": {"count": None}}, {"limit": float("inf"), "parts": {"count": None}}),
        ([], []),
        (None, None),
    ],
)
def test_null_is_absence_and_five_is_an_integer(value: Any, fitting: Any) -> None:
    """Where a field is optional, has no null of its own, and is not one without which more would be meant."""
    assert repr(fitting) == repr(fit(value, Body))


def test_null_stays_where_it_means_something() -> None:
    """In a patch it removes a value, or is refused."""
    assert fit({"limit": None, "needed": 5.0}, Body, nulls=True) == {"limit": None, "needed": 5}
