"""The dialect `elevenlabs-agents`.

| frame | events |
|---|---|
| `conversation_initiation_metadata` | notes: bytes of audio a millisecond |
| `tentative_user_transcript`, `user_transcript` | `asr` of the item `uEVENT`, partial and final |
| `agent_response`, `agent_chat_response_part` | `llm.done` and `llm.delta` of the item `aEVENT` |
| `audio` | `tts` of the newest reply: its total, and words from the times of characters |
| `interruption` | `interrupt` by the clock |
| `agent_response_correction` | `interrupt` with the heard text, of the reply whose text is the original |
| `client_tool_call`, `agent_tool_request` | `tool.call` |
| `client_tool_result` (app), `agent_tool_response_full_payload` | `tool.result` |
| `user_message`, `multimodal_message` (app) | `message` |
| webhook `post_call_transcription` | a frame each item: onto the live one, else said anew; then `session.end` |
"""

from __future__ import annotations

from voicemem.dialects.dialect import Dialect, Hook
from voicemem.dialects.elevenlabs_agents.frames import reduce
from voicemem.dialects.elevenlabs_agents.texts import texts
from voicemem.dialects.elevenlabs_agents.translation import closed, translate
from voicemem.dialects.elevenlabs_agents.webhook import frames, verify

ELEVENLABS_AGENTS = Dialect(
    name="elevenlabs-agents",
    version=2,
    reduce=reduce,
    translate=translate,
    closed=closed,
    texts=texts,
    hook=Hook(verify=verify, frames=frames),
)
