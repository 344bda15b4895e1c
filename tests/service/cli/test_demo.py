"""The demo shows the whole call, both formats and the verified webhook."""

from __future__ import annotations

import io

import pytest
from rich.console import Console

from voicemem.cli.demo.one_call import demo


@pytest.fixture
def console() -> Console:
    return Console(file=io.StringIO(), width=120)


def shown(console: Console) -> str:
    assert isinstance(console.file, io.StringIO)
    return console.file.getvalue()


async def test_demo_shows_the_call_both_formats_and_the_verified_webhook(console: Console) -> None:
    """A newcomer sees the reply with what was unheard, both bodies, signatures, and that the next call knows it."""
    await demo(console, fast=True)

    text = shown(console)
    assert "Why did the scarecrow ~~win an award?" in text
    assert "36 of 36 events on disk and acknowledged" in text
    assert '"interrupt_timestamp": 1795176004700' in text
    assert text.count("✓ verified") == 3
    assert "✗" not in text
    assert 'known: 20 November 2026, assistant: "Once upon a time' in text
    assert "Next: voicemem serve runs the service, and voicemem ui opens its page" in " ".join(text.split())
    assert "http://127.0.0.1:8080/ui/" in text
