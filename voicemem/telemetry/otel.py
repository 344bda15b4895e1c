"""Traces through OpenTelemetry's SDK, which the extra `otel` installs and which only this module imports."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager
from typing import Any

from opentelemetry import context, trace
from opentelemetry.context import Context
from opentelemetry.sdk.resources import SERVICE_NAME, SERVICE_VERSION, Resource
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import BatchSpanProcessor, ConsoleSpanExporter, SpanExporter
from opentelemetry.trace.propagation.tracecontext import TraceContextTextMapPropagator

from voicemem.telemetry.metrics import NO_ATTRIBUTES, AttributeValue, Span, SpanKindName, Tracer
from voicemem.version import __version__

MAX_LINKS = 32


def make_provider(exporter: str) -> TracerProvider:
    ours = Resource({SERVICE_NAME: "voicemem", SERVICE_VERSION: __version__})
    named = Resource.create()  # the environment takes precedence
    unnamed = str(named.attributes.get(SERVICE_NAME, "")).startswith("unknown_service")
    provider = TracerProvider(resource=named.merge(ours) if unnamed else ours.merge(named))
    if exporter == "console":
        span_exporter: SpanExporter = ConsoleSpanExporter()
    else:
        from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter

        span_exporter = OTLPSpanExporter()
    provider.add_span_processor(BatchSpanProcessor(span_exporter))
    return provider


class OtelSpan(Span):
    """A `Span` around an OpenTelemetry span."""

    def __init__(self, span: trace.Span) -> None:
        self.span = span

    def set_attribute(self, key: str, value: AttributeValue) -> None:
        self.span.set_attribute(key, value)

    def fail(self, reason: str) -> None:
        self.span.set_attribute("error.type", reason)
        self.span.set_status(trace.Status(trace.StatusCode.ERROR))


def placement(origins: Sequence[object]) -> dict[str, Any]:
    """Return the context and links of a span: a child of the first origin, linked to each of the others once."""
    contexts = [origin for origin in origins if isinstance(origin, Context)]
    others = [trace.get_current_span(other).get_span_context() for other in contexts[1:]]
    distinct = {(span.trace_id, span.span_id): span for span in others}
    links = [trace.Link(span) for span in distinct.values()][:MAX_LINKS]
    return {"context": contexts[0] if contexts else Context(), "links": links}


class OtelTracer(Tracer):
    """A `Tracer` with its own provider; it sets nothing global."""

    def __init__(self, provider: TracerProvider) -> None:
        self.provider = provider
        self.tracer = provider.get_tracer("voicemem", __version__)
        self.propagator = TraceContextTextMapPropagator()

    @contextmanager
    def span(
        self,
        name: str,
        kind: SpanKindName,
        attributes: Mapping[str, AttributeValue] = NO_ATTRIBUTES,
        origins: Sequence[object] | None = None,
    ) -> Iterator[Span]:
        # The text of an exception may contain words from a call, so it is neither recorded nor set as the status.
        with self.tracer.start_as_current_span(
            name,
            kind=trace.SpanKind[kind.upper()],
            attributes=attributes,
            record_exception=False,
            set_status_on_exception=False,
            **({} if origins is None else placement(origins)),
        ) as span:
            wrapped = OtelSpan(span)
            try:
                yield wrapped
            except Exception as error:  # is only noted here
                wrapped.fail(type(error).__name__)
                raise

    def request_span(self, method: str, route: str, headers: Mapping[str, str]) -> AbstractContextManager[Span]:
        attributes = {"http.request.method": method, "http.route": route}
        return self.span(f"{method} {route}", "server", attributes, [self.origin(headers)])

    def origin(self, headers: Mapping[str, str]) -> object:
        carrier = {name: headers[name] for name in ("traceparent", "tracestate") if name in headers}
        origin = self.propagator.extract(carrier, Context())
        return origin if trace.get_current_span(origin).get_span_context().is_valid else None

    def current(self) -> object:
        return context.get_current() if trace.get_current_span().get_span_context().is_valid else None

    def ids(self) -> dict[str, str]:
        current = trace.get_current_span().get_span_context()
        if not current.is_valid:
            return {}
        return {"trace_id": trace.format_trace_id(current.trace_id), "span_id": trace.format_span_id(current.span_id)}

    def headers(self) -> dict[str, str]:
        carried: dict[str, str] = {}
        self.propagator.inject(carried)
        return carried

    def close(self) -> None:
        self.provider.shutdown()
