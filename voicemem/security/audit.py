"""The audit log `voicemem.audit`: one line for each administrative act, with the key, the project and the session.

A line is one JSON object. It never contains payloads or secrets.
"""

import logging
from typing import Literal

import msgspec

from voicemem.security.access import Grant

LOG = logging.getLogger("voicemem.audit")
LOG.setLevel(logging.INFO)  # independent of the level of the other logs
COMMAND_LINE = "command line"
LINE_ATTRIBUTE = "audit"
"""The attribute of a log record that holds the line as a dict, for structured logs."""
KeyAct = Literal["key_created", "key_limits_changed", "key_revoked", "token_created", "page_signed_in"]
AgoraAct = Literal["agora_app_added", "agora_app_removed", "agora_certificate_rotated", "agora_certificate_retired"]
SessionAct = Literal["calling_out_changed", "session_ended", "session_erased", "calls_exported"]
ObserverAct = Literal["observation_started", "observation_stopped"]
UserAct = Literal["user_exported", "user_erased", "users_linked", "users_unlinked", "memories_forgotten"]
WebhookAct = Literal[
    "webhook_created", "webhook_changed", "webhook_deleted", "webhook_secret_rotated", "webhook_tested"
]
SendingAct = Literal[
    "hook_secret_set", "hook_secret_removed", "caller_secret_rotated", "delivery_resent", "deliveries_recovered"
]
StoreAct = Literal["backup", "restore", "copy"]
Act = Literal[KeyAct, AgoraAct, SessionAct, ObserverAct, UserAct, WebhookAct, SendingAct, StoreAct]


def audit(
    act: Act, by: Grant | str | None, project: str | None = None, session: str | None = None, **more: object
) -> None:
    """Log an act, once it is done. `by` is a grant, whose project is logged, or the id of a key; None: no keys."""
    if isinstance(by, Grant):
        more, project, by = {"via": by.via, **more}, project or by.project, by.key_id
    line = {"act": act, "by": by, "project": project, "session": session, **more}
    line = {name: value for name, value in line.items() if value is not None}
    LOG.info("%s", msgspec.json.encode(line).decode(), extra={LINE_ATTRIBUTE: line})
