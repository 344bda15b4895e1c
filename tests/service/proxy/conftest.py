"""What tests of the proxy share: the time of recorded calls."""

from __future__ import annotations

import pytest

from tests.support.callers.tees import Clock


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    return Clock(monkeypatch)
