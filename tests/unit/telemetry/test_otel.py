"""When traces are on, and what is said of settings that do not work."""

# ruff: noqa: SIM300 (asserts read `expected == actual`)
from __future__ import annotations

from collections.abc import Mapping

import pytest
from click.testing import CliRunner

from tests.support.processes.python_code import ENDPOINT
from tests.support.rows import every_row
from voicemem.cli import main
from voicemem.errors import CannotStart
from voicemem.telemetry import chosen_exporter, make_tracer
from voicemem.telemetry.metrics import Tracer


@every_row(
    ("env", "exporter"),
    [
        ({}, None),
        ({"OTEL_SERVICE_NAME": "memory"}, None),
        (ENDPOINT, "otlp"),
        ({"OTEL_EXPORTER_OTLP_TRACES_ENDPOINT": "http://127.0.0.1:4318/v1/traces"}, "otlp"),
        ({"OTEL_TRACES_EXPORTER": "console"}, "console"),
        ({"OTEL_TRACES_EXPORTER": "otlp"}, "otlp"),
        ({**ENDPOINT, "OTEL_TRACES_EXPORTER": "none"}, None),
        ({**ENDPOINT, "OTEL_SDK_DISABLED": "true"}, None),
    ],
)
def test_traces_are_off_unless_the_environment_asks(env: Mapping[str, str], exporter: str | None) -> None:
    """An exporter or an endpoint turns them on; `none` and the general switch turn them off."""
    assert exporter == chosen_exporter(env)
    if exporter is None:
        assert Tracer is type(make_tracer(env))


@pytest.mark.parametrize(
    "env", [{"OTEL_TRACES_EXPORTER": "zipkin"}, {**ENDPOINT, "OTEL_EXPORTER_OTLP_PROTOCOL": "grpc"}]
)
def test_what_cannot_be_sent_is_said_at_the_start(env: Mapping[str, str]) -> None:
    """An exporter or protocol that is not there keeps the service from starting, rather than losing traces."""
    with pytest.raises(CannotStart, match="OTEL_"):
        chosen_exporter(env)
    checked = CliRunner().invoke(main, ["check-config"], env=env)
    assert (1, True) == (checked.exit_code, "OTEL_" in checked.output)
