"""Large packages are imported only where they are needed."""

# ruff: noqa: SIM300 (asserts read `expected == actual`)
from __future__ import annotations

import subprocess
import sys

from tests.support.processes.python_code import python


def test_llms_are_called_without_openais_package() -> None:
    """It takes time and memory, and the service sends what it makes itself."""
    code = "import sys, voicemem.app; print([name for name in ('openai', 'httpx2') if name in sys.modules])"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert "[]" == done.stdout.strip()


IMPORTED = (
    "import sys, voicemem.app, voicemem.cli, voicemem.telemetry as o;"
    " o.make_tracer({}); print('opentelemetry' in sys.modules)"
)


def test_nothing_is_imported_unless_it_is_asked_for() -> None:
    """A service that does not trace does not load OpenTelemetry."""
    assert "False" == python(IMPORTED).stdout.strip()


TEE = (
    "import sys, voicemem; before = 'voicemem.client' in sys.modules; import voicemem.integrations.tee;"
    " print(before, [name for name in ('openai', 'fastapi', 'starlette', 'apsw') if name in sys.modules])"
)


def test_a_tee_imports_no_framework() -> None:
    """`voicemem.tee` costs nothing before it is used, and then neither the frameworks nor the server."""
    assert "False []" == python(TEE).stdout.strip()
