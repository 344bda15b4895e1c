"""A call in which a reply is cut short, and a tool is asked."""

from __future__ import annotations

from tests.support.events import delta, done, event, final, interrupt

CUT_CALL = (
    final(1, "I am allergic to walnuts.", 1_000),
    delta(1, "Noted. By the way, we have marzipan.", 2_000),
    done(1, 2_100),
    interrupt(1, 2_500, heard_text="Noted."),
    event("tool.call", turn_id=1, ts=2_600, call_id="c", name="find", arguments={"nut": "walnut"}),
)
RESULT = event("tool.result", turn_id=1, ts=2_700, call_id="c", result=["none"])
"""What the tool answers."""
