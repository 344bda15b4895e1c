"""The dialect `retell`.

| frame | events |
|---|---|
| `update_only`, `response_required`, `reminder_required` | an item `~tINDEX` for each utterance: `asr`, `llm.delta` |
| `response`, `agent_interrupt` (app) | notes: how a reply would go on |
| `tool_call_invocation`, `tool_call_result` (app, and in transcripts) | `tool.call`, `tool.result` |
| webhook `transcript_updated`, `call_ended`, `call_analyzed` | a frame each element: onto the live one of its index |
| webhook `call_ended`, `call_analyzed` | `session.end` |
"""

from __future__ import annotations

from voicemem.dialects.dialect import Dialect, Hook
from voicemem.dialects.retell.frames import reduce, taken_apart
from voicemem.dialects.retell.texts import texts
from voicemem.dialects.retell.translation import closed, translate
from voicemem.dialects.retell.webhook import verify

RETELL = Dialect(
    name="retell",
    version=1,
    reduce=reduce,
    translate=translate,
    closed=closed,
    texts=texts,
    hook=Hook(verify=verify, frames=taken_apart),
    split=taken_apart,
)
