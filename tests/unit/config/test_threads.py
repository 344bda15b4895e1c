"""Configurations are read by several threads, from the first moment on."""

# ruff: noqa: SIM300 (asserts read `expected == actual`)
from __future__ import annotations

import subprocess
import sys

import pytest

THREADS = """
import sys
import threading
from voicemem.config.session import parse_config

sys.setswitchinterval(1e-6)
barrier = threading.Barrier(6)

def read():
    barrier.wait()
    for _ in range(50):
        parse_config({"name": "x", "memory": {}, "llm": {}, "webhook": {"url": "http://x"}})

threads = [threading.Thread(target=read) for _ in range(6)]
for thread in threads:
    thread.start()
for thread in threads:
    thread.join()
"""


@pytest.mark.slow
@pytest.mark.parametrize("attempt", range(4))
def test_threads_that_begin_together(attempt: int) -> None:
    """msgspec examines a type at its first use, and crashed where that was in several threads at once."""
    assert 0 == subprocess.run([sys.executable, "-c", THREADS], timeout=60).returncode
