"""Traces, as the parts of the service see them; without OpenTelemetry they cost an empty call.

A span has a name and attributes that hold no id, text, key or address with a path. An origin is where a trace comes
from: what `Tracer.origin` made of a `traceparent` header, or `Tracer.current` of the span around the caller.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from typing import Literal, Protocol

Kind = Literal["server", "client", "internal"]
Value = str | int | bool
NOTHING: Mapping[str, Value] = {}


class Span(Protocol):
    """Something that takes time."""

    def set_attribute(self, key: str, value: Value) -> None: ...

    def fail(self, what: str) -> None:
        """It has failed; `what` is a short word, such as an error code."""


class Tracer(Protocol):
    """Makes spans. One is inside the span around it, unless it is given origins: it continues the first."""

    def span(
        self, name: str, kind: Kind, attributes: Mapping[str, Value] = NOTHING, origins: Sequence[object] | None = None
    ) -> AbstractContextManager[Span]: ...

    def origin(self, headers: Mapping[str, str]) -> object:
        """Of a request with these headers; None when it says nothing of a trace."""

    def current(self) -> object:
        """The span around the caller; None without one."""

    def ids(self) -> dict[str, str]:
        """`trace_id` and `span_id` of the span around the caller, as logs name them; empty without one."""

    def headers(self) -> dict[str, str]:
        """What a request to somebody else carries, so that it continues the trace."""

    def close(self) -> None:
        """Send what waits."""


class NoSpan:
    """Takes everything and keeps nothing."""

    def set_attribute(self, key: str, value: Value) -> None: ...

    def fail(self, what: str) -> None: ...


class NoTracer:
    """A `Tracer` for nobody."""

    def __init__(self) -> None:
        self.nothing: nullcontext[Span] = nullcontext(NoSpan())

    def span(
        self, name: str, kind: Kind, attributes: Mapping[str, Value] = NOTHING, origins: Sequence[object] | None = None
    ) -> AbstractContextManager[Span]:
        return self.nothing

    def origin(self, headers: Mapping[str, str]) -> object:
        return None

    def current(self) -> object:
        return None

    def ids(self) -> dict[str, str]:
        return {}

    def headers(self) -> dict[str, str]:
        return {}

    def close(self) -> None: ...
