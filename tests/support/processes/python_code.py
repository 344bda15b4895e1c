"""Python code in a process of its own."""

from __future__ import annotations

import os
import subprocess
import sys

ENDPOINT = {"OTEL_EXPORTER_OTLP_ENDPOINT": "http://127.0.0.1:4318"}


def python(program: str, **env: str) -> subprocess.CompletedProcess[str]:
    inherited = {name: value for name, value in os.environ.items() if not name.startswith("OTEL_")}
    return subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, timeout=60, env={**inherited, **env}
    )
