"""Metrics and traces of the service itself."""

from __future__ import annotations

from typing import NamedTuple

from voicemem.telemetry.metrics import Metrics, Tracer


class Telemetry(NamedTuple):
    """The metrics and the tracer that everything shares."""

    metrics: Metrics
    tracer: Tracer

    @classmethod
    def untraced(cls) -> Telemetry:
        return cls(Metrics(), Tracer())
