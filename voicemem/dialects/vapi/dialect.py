"""The dialect `vapi`: messages of Vapi's server URL, or of its clients.

| message | events |
|---|---|
| `conversation-update`, `status-update`, `end-of-call-report` | an item for each message of the history |
| `transcript` | until the history has it: `asr` of `~uTURN`; of the agent notes |
| `assistant.speechStarted`, `model-output` | notes: how a reply would go on, how much of it was spoken |
| `user-interrupted` | `interrupt` of the message of the history that ended then |
| `tool-calls`, `tool-calls-result` | `tool.call`, `tool.result` |
| `end-of-call-report` | `session.end` |

A webhook is taken apart: one frame for each message of its history, so that each is kept once.
"""

from __future__ import annotations

from voicemem.dialects.dialect import Dialect, Hook
from voicemem.dialects.vapi.frames import reduce, taken_apart
from voicemem.dialects.vapi.texts import texts
from voicemem.dialects.vapi.translation import closed, translate
from voicemem.dialects.vapi.webhook import verify

VAPI = Dialect(
    name="vapi",
    version=3,
    reduce=reduce,
    translate=translate,
    closed=closed,
    texts=texts,
    hook=Hook(verify=verify, frames=taken_apart),
    split=taken_apart,
)
