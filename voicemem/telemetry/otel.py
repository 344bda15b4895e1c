"""Traces through OpenTelemetry's SDK, which the extra `otel` installs and which only this module imports.

The standard environment variables configure it
(https://opentelemetry.io/docs/specs/otel/configuration/sdk-environment-variables/). Unless they name an exporter or an
endpoint, nothing is traced, and the SDK is not imported.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager
from typing import TYPE_CHECKING, Any

from voicemem.errors import CannotStart
from voicemem.telemetry.metrics import NO_ATTRIBUTES, AttributeValue, Span, SpanKindName, Tracer
from voicemem.version import __version__

if TYPE_CHECKING:
    from opentelemetry import trace
    from opentelemetry.sdk.trace import TracerProvider

ENDPOINTS = ("OTEL_EXPORTER_OTLP_TRACES_ENDPOINT", "OTEL_EXPORTER_OTLP_ENDPOINT")
PROTOCOLS = ("OTEL_EXPORTER_OTLP_TRACES_PROTOCOL", "OTEL_EXPORTER_OTLP_PROTOCOL")
MAX_LINKS = 32


def chosen_exporter(env: Mapping[str, str]) -> str | None:
    """The exporter that the environment names, `otlp` or `console`; None for no traces. Raises `CannotStart`."""
    if env.get("OTEL_SDK_DISABLED", "").strip().lower() == "true":
        return None
    named = env.get("OTEL_TRACES_EXPORTER", "").strip().lower()
    if named == "none" or not (named or any(env.get(name) for name in ENDPOINTS)):
        return None
    exporter = named or "otlp"
    if exporter not in ("otlp", "console"):
        raise CannotStart("OTEL_TRACES_EXPORTER must be one of otlp, console and none.")
    protocol = next((env[name] for name in PROTOCOLS if env.get(name)), "http/protobuf")
    if exporter == "otlp" and protocol != "http/protobuf":
        raise CannotStart(
            "OTEL_EXPORTER_OTLP_PROTOCOL must be http/protobuf, the only protocol in which traces are sent."
        )
    return exporter


def make_tracer(env: Mapping[str, str]) -> Tracer:
    """The tracer that the environment asks for. Raises `CannotStart` when the extra is missing."""
    exporter = chosen_exporter(env)
    if exporter is None:
        return Tracer()
    try:
        return OtelTracer(make_provider(exporter))
    except ImportError:
        raise CannotStart(
            "The OTEL_… variables ask for traces, which need the extra `otel`: pip install 'voicemem-core[otel]'"
        ) from None


def make_provider(exporter: str) -> TracerProvider:
    from opentelemetry.sdk.resources import SERVICE_NAME, SERVICE_VERSION, Resource
    from opentelemetry.sdk.trace import TracerProvider
    from opentelemetry.sdk.trace.export import BatchSpanProcessor, ConsoleSpanExporter, SpanExporter

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
    """A `Span` around one of OpenTelemetry."""

    def __init__(self, span: trace.Span) -> None:
        self.span = span

    def set_attribute(self, key: str, value: AttributeValue) -> None:
        self.span.set_attribute(key, value)

    def fail(self, reason: str) -> None:
        from opentelemetry.trace import Status, StatusCode

        self.span.set_attribute("error.type", reason)
        self.span.set_status(Status(StatusCode.ERROR))


def placement(origins: Sequence[object]) -> dict[str, Any]:
    """The context and links of a span: a child of the first origin, linked to each of the others once."""
    from opentelemetry.context import Context
    from opentelemetry.trace import Link, get_current_span

    contexts = [origin for origin in origins if isinstance(origin, Context)]
    others = [get_current_span(context).get_span_context() for context in contexts[1:]]
    distinct = {(span.trace_id, span.span_id): span for span in others}
    links = [Link(span) for span in distinct.values()][:MAX_LINKS]
    return {"context": contexts[0] if contexts else Context(), "links": links}


class OtelTracer(Tracer):
    """A `Tracer` with its own provider; it sets nothing global."""

    def __init__(self, provider: TracerProvider) -> None:
        from opentelemetry.trace.propagation.tracecontext import TraceContextTextMapPropagator

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
        from opentelemetry.trace import SpanKind

        # The text of an exception may contain words from a call, so it is neither recorded nor set as the status.
        with self.tracer.start_as_current_span(
            name,
            kind=SpanKind[kind.upper()],
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
        from opentelemetry import trace
        from opentelemetry.context import Context

        carrier = {name: headers[name] for name in ("traceparent", "tracestate") if name in headers}
        context = self.propagator.extract(carrier, Context())
        return context if trace.get_current_span(context).get_span_context().is_valid else None

    def current(self) -> object:
        from opentelemetry import context, trace

        return context.get_current() if trace.get_current_span().get_span_context().is_valid else None

    def ids(self) -> dict[str, str]:
        from opentelemetry import trace

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
