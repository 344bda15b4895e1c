"""Turns: what transactions of all nodes do one after another, each holding a row until it commits."""

from __future__ import annotations

from voicemem.store.postgresql.database.connection import Session

TAKE_TURN = "select 1 from turns where name = $1 for update"
MAKE_TURN = "insert into turns values ($1) on conflict do nothing"


def take_turn(session: Session, name: str) -> None:
    """Wait for those that have this turn. Every later statement of the transaction sees what they committed."""
    while session.row(TAKE_TURN, (name,)) is None:
        session.execute(MAKE_TURN, (name,))
