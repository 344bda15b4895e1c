"""The tracing port; without OpenTelemetry each use of it is an empty function.

Names and attributes of spans contain no id, text, key, or URL with a path. An origin is where a trace comes from: what
`Tracer.origin` returns for a `traceparent` header, or `Tracer.current` for the span around the caller.
"""

from collections.abc import Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from typing import Literal

SpanKindName = Literal["server", "client", "internal"]
AttributeValue = str | int | bool
NO_ATTRIBUTES: Mapping[str, AttributeValue] = {}


class Span:
    """One timed operation in a trace; here one that is not recorded."""

    def set_attribute(self, key: str, value: AttributeValue) -> None: ...

    def fail(self, reason: str) -> None:
        """Mark the span as failed; `reason` is a short word, such as an error code."""


class Tracer:
    """Makes spans; here such that are not recorded.

    A span is a child of the span around it, or with `origins` a child of the first of these.
    """

    no_span = nullcontext(Span())

    def span(
        self,
        name: str,
        kind: SpanKindName,
        attributes: Mapping[str, AttributeValue] = NO_ATTRIBUTES,
        origins: Sequence[object] | None = None,
    ) -> AbstractContextManager[Span]:
        return self.no_span

    def origin(self, headers: Mapping[str, str]) -> object:
        """The origin that a request's headers name; None when they name none."""
        return None

    def current(self) -> object:
        """The span around the caller, as an origin; None when there is none."""
        return None

    def ids(self) -> dict[str, str]:
        """The `trace_id` and `span_id` of the span around the caller, for logs; empty when there is none."""
        return {}

    def headers(self) -> dict[str, str]:
        """The headers with which an outgoing request continues the trace."""
        return {}

    def close(self) -> None:
        """Export the spans that wait."""
