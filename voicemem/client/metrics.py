"""A client's metrics, in the text format of Prometheus."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from voicemem.client.producer import Producer

PREFIX = "voicemem_client"


def exposition(dropped: Mapping[str, int], producers: Iterable[Producer], transport: str | None) -> str:
    """The metrics of a client, as a page of `/metrics` has them. `dropped` counts by code."""
    held = [producer.buffer for producer in producers]
    return "".join(
        [
            family("dropped_events_total", "counter", {f'code="{code}"': count for code, count in dropped.items()}),
            family("unacknowledged_events", "gauge", {"": sum(len(buffer) for buffer in held)}),
            family("unacknowledged_bytes", "gauge", {"": sum(buffer.size for buffer in held)}),
            family(
                "connected", "gauge", {f'transport="{name}"': int(name == transport) for name in ("websocket", "http")}
            ),
        ]
    )


def family(name: str, kind: str, samples: Mapping[str, int], prefix: str = PREFIX) -> str:
    """One metric; `samples` are its values by labels."""
    lines = [
        f"{prefix}_{name}{{{labels}}} {value}" if labels else f"{prefix}_{name} {value}"
        for labels, value in sorted(samples.items())
    ]
    return "".join(f"{line}\n" for line in [f"# TYPE {prefix}_{name} {kind}", *lines])
