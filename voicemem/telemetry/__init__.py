"""Metrics and traces of the service itself.

The standard environment variables configure traces
(https://opentelemetry.io/docs/specs/otel/configuration/sdk-environment-variables/). Unless they name an exporter or an
endpoint, nothing is traced, and the SDK is not imported.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

from voicemem.errors import CannotStart
from voicemem.telemetry.metrics import Metrics, Tracer

ENDPOINTS = ("OTEL_EXPORTER_OTLP_TRACES_ENDPOINT", "OTEL_EXPORTER_OTLP_ENDPOINT")
PROTOCOLS = ("OTEL_EXPORTER_OTLP_TRACES_PROTOCOL", "OTEL_EXPORTER_OTLP_PROTOCOL")


class Telemetry(NamedTuple):
    """The metrics and the tracer that everything shares."""

    metrics: Metrics
    tracer: Tracer

    @classmethod
    def untraced(cls) -> Telemetry:
        return cls(Metrics(), Tracer())


def chosen_exporter(env: Mapping[str, str]) -> str | None:
    """Return the exporter that the environment names, `otlp` or `console`; None for no traces. Raises `CannotStart`."""
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
    """Return the tracer that the environment asks for. Raises `CannotStart` when the extra is missing."""
    exporter = chosen_exporter(env)
    if exporter is None:
        return Tracer()
    try:
        from voicemem.telemetry.otel import OtelTracer, make_provider

        return OtelTracer(make_provider(exporter))
    except ImportError:
        raise CannotStart(
            "The OTEL_… variables ask for traces, which need the extra `otel`: pip install 'voicemem-core[otel]'"
        ) from None
