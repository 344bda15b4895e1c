"""How much of unfinished bodies a project may make the service hold."""

from __future__ import annotations

import pytest

from voicemem.errors import RateLimited
from voicemem.server.http.bodies import BodiesReceived


def test_a_project_is_refused_beyond_its_bound_and_no_other() -> None:
    """What is too much counts for nothing, and room comes back with what is complete."""
    received = BodiesReceived(most=10)
    received.add("one", 6)
    with pytest.raises(RateLimited):
        received.add("one", 5)
    received.add("one", 4)
    received.add("other", 10)
    received.remove("one", 6)
    received.add("one", 6)
    received.remove("one", 10)
    received.remove("other", 10)
    assert not received.held
