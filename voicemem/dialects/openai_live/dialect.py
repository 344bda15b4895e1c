"""The dialect `openai-live`: the events of OpenAI's Live API (GPT-Live), of a primary connection or a sideband.

Both speak at any time: fragments of what is said have their place on one timeline, in ms of the session, and nothing
says where a turn ends. A fragment goes on with what its speaker said, unless 1,000 ms have passed, or the other has
spoken in a shorter pause: `~in:START`, `~out:START`.

| frame | in events |
|---|---|
| `session.started` | the session's id, and when its timeline began |
| `session.input_transcript.delta` | `asr` of `~in:START`, final, as nothing of it is taken back |
| `session.output_transcript.delta` | `llm.delta` of `~out:START`, and `tts` `words` |
| both | what shows that the agent has stopped: `llm.done`; `interrupt` if it was amid a sentence while the user spoke |
| `session.delegation.created` to the client, app `session.commentary.append` for it | `tool.call`, `tool.result` |
| `response.event` with a call of a function, app `response.item.create` with its output | `tool.call`, `tool.result` |
| app `response.item.create` with a message of the user | a `message` of the user |
| `transport.dtmf.received` | a `message` of the user with the metadata `dtmf` |
| `session.closed` | `session.end` |
| audio, instructions, history, thoughts, decisions, usage, all else | nothing |
"""

from __future__ import annotations

from voicemem.dialects.dialect import Dialect
from voicemem.dialects.openai_live.frames import reduce
from voicemem.dialects.openai_live.texts import texts
from voicemem.dialects.openai_live.translation import closed, translate

OPENAI_LIVE = Dialect(name="openai-live", version=1, reduce=reduce, translate=translate, closed=closed, texts=texts)
