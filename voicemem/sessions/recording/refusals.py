"""The log of refused events: each fault of a session once, so that it is seen, and cannot flood the log."""

from __future__ import annotations

import logging
import re
from collections import OrderedDict

LOG = logging.getLogger("voicemem")
FAULTS = frozenset(
    {
        "unknown_type",
        "unknown_field",
        "missing_field",
        "invalid_field",
        "text_too_long",
        "reserved_metadata",
        "last_seq_mismatch",
        "malformed_frame",
        "address_not_allowed",
    }
)
"""The codes of events that are not as they should be; others are about their order, or about access."""
MAX_SESSIONS, MAX_FAULTS = 10_000, 20
"""How many sessions are remembered, the newest ones, and how many faults of each are logged."""
INDEX = re.compile(r"\[\d+\]")


class RefusalLog:
    """Logs why events were refused. Their sentences name a field, and hold nothing of what was sent."""

    def __init__(self) -> None:
        self.logged: OrderedDict[tuple[str, str | None], set[str]] = OrderedDict()

    def note(self, project: str, session_id: str | None, code: str, detail: str) -> None:
        """Log a refused event, unless this fault of the session was logged before."""
        if code not in FAULTS:
            return
        faults = self.logged.setdefault((project, session_id), set())
        self.logged.move_to_end((project, session_id))
        fault = INDEX.sub("[]", detail)
        if fault in faults or len(faults) == MAX_FAULTS:
            return
        faults.add(fault)
        if len(self.logged) > MAX_SESSIONS:
            self.logged.popitem(last=False)
        where = {"project": project, "session_id": session_id, "code": code}
        LOG.warning("An event was refused. %s", detail, extra=where)
