"""Ids of sessions, from those of clients, and back."""

from __future__ import annotations

import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.support.profiles import examples
from voicemem.compat.agent_memory_server.sessions import Owner, checked_owner, config_of, derived_id, matches_owner
from voicemem.config.session import validate_config
from voicemem.errors import Refused
from voicemem.protocol.types import SESSION_ID_PATTERN

NAMES = st.none() | st.text(st.characters(exclude_categories=["Cs"]), min_size=1, max_size=100)
OWNERS = st.builds(Owner, st.text(st.characters(exclude_categories=["Cs"]), min_size=1, max_size=200), NAMES, NAMES)


@examples(1)
@given(OWNERS, OWNERS)
def test_each_owner_has_an_id_of_its_own(one: Owner, other: Owner) -> None:
    """One that a session can have, in a configuration that is valid."""
    assert re.match(SESSION_ID_PATTERN, derived_id(one))
    assert (one == other) == (derived_id(one) == derived_id(other))
    assert validate_config(config_of(one, 60)).public["labels"]["agent-memory.session"] == one.session_id


def test_what_is_not_said_may_be_anything() -> None:
    """What is said must hold."""
    found = Owner("s", "shop", "ann")
    assert all(
        matches_owner(wanted, found) for wanted in (Owner("s"), Owner("s", "shop"), Owner("s", None, "ann"), found)
    )
    assert not any(matches_owner(wanted, found) for wanted in (Owner("t"), Owner("s", "a"), Owner("s", "shop", "bob")))
    assert Owner("s") == checked_owner("s", "", "")


@pytest.mark.parametrize("named", [("s" * 513, None, None), ("s", "n" * 257, None), ("s", None, "u" * 129)])
def test_long_names_are_refused(named: tuple[str, str | None, str | None]) -> None:
    """With what may be the longest."""
    with pytest.raises(Refused, match="at most"):
        checked_owner(*named)
