"""How often a node looks for what others have journaled."""

from __future__ import annotations

import pytest

from tests.support.rows import every_row
from voicemem.sessions.node_lease import interval_s


@every_row(("followed", "ms"), [(0, 40), (1, 20), (100, 20), (101, 40), (1_000, 40), (1_001, 80), (5_000, 200)])
def test_looks_are_as_frequent_as_they_are_cheap(followed: int, ms: int) -> None:
    """Few journals are looked at more often than thousands."""
    assert ms == pytest.approx(1000 * interval_s(followed))
