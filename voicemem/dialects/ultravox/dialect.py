"""The dialect `ultravox`: the data messages of a call, which Ultravox' data connection brings by itself.

Each transcript has an ordinal, which names its item `~oORDINAL`.

| message | events |
|---|---|
| `call_started` | the session's id |
| `transcript` of the user by voice | `asr` |
| `transcript` of the user in text, `user_text_message`, `input_text_message` (app) | `message`, once |
| `transcript` of the agent | `llm.delta`, whole for `text`; `final`: `llm.done` |
| `playback_clear_buffer`, or `state` from speaking to listening, before a final | `interrupt`: so far it was heard |
| `playback_clear_buffer` after the final | `interrupt` by the time since the agent began to speak |
| `state` from speaking to another | `tts` `done` of replies that are final |
| `client_tool_invocation`, `data_connection_tool_invocation`, and their results (app) | `tool.call`, `tool.result` |
| webhooks `call.ended`, `call.billed` | `session.end` |
| audio, `ping`, `pong`, `debug`, `set_output_medium`, `forced_agent_message`, `hang_up`, other webhooks | nothing |

A transcript of the user's may come after the reply to it: its ordinal says where it belongs.
"""

from __future__ import annotations

from voicemem.dialects.dialect import Dialect, Hook
from voicemem.dialects.ultravox.frames import reduce
from voicemem.dialects.ultravox.texts import texts
from voicemem.dialects.ultravox.translation import closed, translate
from voicemem.dialects.ultravox.webhook import frames, verify

ULTRAVOX = Dialect(
    name="ultravox",
    version=3,
    reduce=reduce,
    translate=translate,
    closed=closed,
    texts=texts,
    hook=Hook(verify=verify, frames=frames),
)
