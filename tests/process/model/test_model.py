"""The service does what design section 5 says, whatever happens in whatever order.

A hypothesis state machine does to the real service, on real sockets and a real file, what it does to a simple model
(`model.py`), and after every step both must have the same journals, states and histories. In the suite the examples
are always the same. A long run has others every time, and prints how to repeat what it finds::

    VOICEMEM_MODEL_EXAMPLES=500 python -m pytest tests/model -k Timed

`VOICEMEM_MODEL_STEPS` (50) bounds the length of an example, `--hypothesis-seed=N` gives the same run again.
"""

from __future__ import annotations

import os

from hypothesis import HealthCheck, Phase, settings

from tests.support.model.killed_service import KilledService
from tests.support.model.timed_service import TimedService

EXAMPLES = int(os.environ.get("VOICEMEM_MODEL_EXAMPLES", "0"))
STEPS = int(os.environ.get("VOICEMEM_MODEL_STEPS", "50"))


def bounded(examples: int, steps: int) -> settings:
    """So many examples in the suite, which are the same every time; or as many as were asked for."""
    return settings(
        max_examples=EXAMPLES or examples,
        stateful_step_count=STEPS if EXAMPLES else steps,
        derandomize=not EXAMPLES,
        database=None,
        deadline=None,
        print_blob=True,
        report_multiple_bugs=False,
        phases=[Phase.generate, Phase.shrink],
        suppress_health_check=list(HealthCheck),
    )


TestTimed = TimedService.TestCase
TestTimed.settings = bounded(examples=40, steps=15)
TestKilled = KilledService.TestCase
TestKilled.settings = bounded(examples=3, steps=10)
