"""The dialect `deepgram-agent`: Deepgram's Voice Agent API, version 1.

The agent's texts up to the user's next words are a reply `~rN`.

| frame | events |
|---|---|
| `Settings` (app) | notes: bytes of audio a second |
| binary | `tts` of the newest reply: its total |
| `ConversationText` of the user | `asr`, final; a backchannel is nothing |
| `ConversationText` of the assistant | `llm.delta` of `~rN`, after a space |
| `AgentAudioDone` | `llm.done` |
| `UserStartedSpeaking` | `interrupt` by the clock; nothing if all had been played; it opens nothing |
| `SpeechInterrupted` | `interrupt` with the heard text |
| `AgentThinking`, `AgentStartedSpeaking` | after an interruption, what comes is another reply |
| `FunctionCallRequest`, `FunctionCallResponse` (either side) | `tool.call` for each function, `tool.result` |
| `InjectUserMessage` (app) | `message`; the same text of the user's directly after it is its echo |
| `InjectAgentMessage` (app) | an interruption, if it says so; its text comes back as `ConversationText` |
| `Welcome` | the session's id; after another connection, the end of its reply |
| `History`, settings' changes, errors, latencies, all else | nothing |
"""

from __future__ import annotations

from voicemem.dialects.deepgram_agent.frames import reduce
from voicemem.dialects.deepgram_agent.texts import texts
from voicemem.dialects.deepgram_agent.translation import closed, translate
from voicemem.dialects.dialect import Dialect

DEEPGRAM_AGENT = Dialect(
    name="deepgram-agent", version=1, reduce=reduce, translate=translate, closed=closed, texts=texts
)
