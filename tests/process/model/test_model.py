"""The service does what docs/ingest.md says, whatever happens in whatever order.

A hypothesis state machine does to the real service, on real sockets and a real file, what it does to a simple model
(`tests/support/model/reference_model.py`), and after every step both must have the same journals, states and histories.
A failure prints how to repeat it. A long run::

    python -m pytest tests/process/model -k Timed --hypothesis-profile=thorough
"""

from __future__ import annotations

from hypothesis import HealthCheck, Phase, settings

from tests.support.model.killed_service import KilledService
from tests.support.model.timed_service import TimedService
from tests.support.profiles import examples, is_thorough


def bounded(fraction: float, steps: int) -> settings:
    """Each example starts a service on a file, so a part of the profile's number is enough; steps bound its length."""
    return settings(
        examples(fraction, least=3),
        stateful_step_count=50 if is_thorough() else steps,
        database=None,
        report_multiple_bugs=False,
        phases=[Phase.generate, Phase.shrink],
        suppress_health_check=list(HealthCheck),
    )


TestTimed = TimedService.TestCase
TestTimed.settings = bounded(0.4, steps=15)
TestKilled = KilledService.TestCase
TestKilled.settings = bounded(0.03, steps=10)
