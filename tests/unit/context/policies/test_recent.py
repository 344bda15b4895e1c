"""The newest messages."""

from __future__ import annotations

import pytest

from tests.support.samples.policies import remembered, turn_of_tokens
from voicemem.context.policies import RecentPolicy

CALL = [*turn_of_tokens(1, 1, 1), *turn_of_tokens(2, 1, 1)]


@pytest.mark.parametrize(("most", "kept"), [(1, [3]), (3, [1, 2, 3]), (4, [0, 1, 2, 3]), (9, [0, 1, 2, 3])])
def test_the_newest_are_kept(most: int, kept: list[int]) -> None:
    """As many as there are, or as are wanted."""
    assert kept == list(RecentPolicy(most).choose(remembered(CALL)).kept)
