"""What the service does without its optional packages."""

# ruff: noqa: SIM300 (asserts read `expected == actual`)
from __future__ import annotations

import subprocess
import sys

import pytest

from tests.support.processes.python_code import ENDPOINT, python

WITHOUT = """
import sys
sys.modules["rs_bpe"] = sys.modules["rs_bpe.bpe"] = None
from voicemem.llm.tokens import counter
print(counter("o200k").name)
"""


def test_without_the_extra_it_is_estimated() -> None:
    """And the name of the counter says so."""
    told = subprocess.run([sys.executable, "-c", WITHOUT], capture_output=True, text=True, check=True)
    assert "estimate" == told.stdout.strip()


UNATTACHED = """
import sys
sys.modules[{package!r}] = None
from voicemem.integrations import {module}
try:
    {module}.{use}
except ImportError as error:
    print(error)
"""


@pytest.mark.parametrize(
    ("package", "module", "use", "name"),
    [
        ("livekit", "livekit", "attach(None, None)", "LiveKit Agents"),
        ("langchain", "langgraph", "middleware(None)", "LangChain"),
        ("google.adk", "google_adk", "plugin(None)", "Google's ADK"),
    ],
)
def test_without_the_framework_its_integration_says_what_to_install(
    package: str, module: str, use: str, name: str
) -> None:
    """Importing it needs no framework; using it says in one sentence what is missing."""
    code, extra = UNATTACHED.format(package=package, module=module, use=use), module.replace("_", "-")
    told = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert f"{name} is not installed: pip install 'voicemem-core[{extra}]'\n" == told.stdout


ABSENT = "import sys; sys.modules['opentelemetry'] = None; import voicemem.cli as c; c.main(%r)"


def test_without_the_extra_the_service_says_what_is_missing() -> None:
    """Where traces are asked for and the extra is absent, one sentence; where they are not, nothing changes."""
    serve = ["serve", "--store", "memory:", "--rest", "127.0.0.1:0", "--ingest", "127.0.0.1:0"]
    asked = python(ABSENT % (serve,), **ENDPOINT)
    assert (1, 1) == (asked.returncode, asked.stderr.count("\n"))
    assert "'voicemem-core[otel]'" in asked.stderr
    assert 0 == python(ABSENT % (["check-config"],)).returncode
