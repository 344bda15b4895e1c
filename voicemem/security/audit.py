"""A line in the log `voicemem.audit` for every administrative act: who did what, in which project, to which session.

The line is one JSON object. It never holds payload or secrets.
"""

from __future__ import annotations

import logging
from typing import Literal

import msgspec

LOG = logging.getLogger("voicemem.audit")
LOG.setLevel(logging.INFO)  # whatever the level of the other logs is
COMMAND_LINE = "command line"
FIELDS = "audit"
"""The attribute of a log record with the line as a dict, for logs that have fields of their own."""
Act = Literal[
    "key_created",
    "key_revoked",
    "token_created",
    "calling_out_changed",
    "session_erased",
    "user_erased",
    "webhook_created",
    "webhook_changed",
    "webhook_deleted",
    "webhook_secret_rotated",
    "webhook_tested",
    "delivery_resent",
    "deliveries_recovered",
    "backup",
    "restore",
]


def audit(act: Act, by: str | None, project: str | None, session: str | None = None, **more: object) -> None:
    """Log an act of the key with the id `by`; None is a caller of a service without keys. Call it after the act."""
    line = {"act": act, "by": by, "project": project, "session": session, **more}
    line = {name: value for name, value in line.items() if value is not None}
    LOG.info("%s", msgspec.json.encode(line).decode(), extra={FIELDS: line})
