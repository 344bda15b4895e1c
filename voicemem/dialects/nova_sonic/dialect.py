"""The dialect `nova-sonic`: the events of Amazon Nova Sonic's bidirectional stream, `{"event": {KIND: …}}`.

What the user says comes in blocks, each a content with an id: its item. What the model says comes sentence by
sentence, as SPECULATIVE text, the audio of that, and, when Nova takes it for spoken, as FINAL text: a reply `~rN` from
the user's words, or from `END_TURN`, to the next `END_TURN`.

| frame | in events |
|---|---|
| `contentStart` of the user's text | `asr` `""`: its place |
| `textOutput` of the user | `asr`, final |
| `textOutput`, SPECULATIVE | `llm.delta` of `~rN` |
| `textOutput`, FINAL | `tts` `heard_text`, at the earliest when that can have been played; of a cut reply `interrupt` |
| the text `{ "interrupted" : true }`, `stopReason` `INTERRUPTED` | `interrupt` by the clock of what still plays |
| `audioOutput` | `tts` `total_audio_ms` |
| `contentEnd` of audio with `END_TURN`, `completionEnd` | `llm.done` |
| `toolUse`, app `toolResult` | `tool.call`, `tool.result` |
| app `textInput` of the user, once audio is sent or Nova has answered | a `message` of the user |
| `completionStart` | the session's id |
| `sessionEnd` | the time only: a call of more than eight minutes goes over several connections |
| prompts, history, `audioInput`, `usageEvent`, all else | nothing |
"""

from __future__ import annotations

from voicemem.dialects.dialect import Dialect
from voicemem.dialects.nova_sonic.frames import reduce
from voicemem.dialects.nova_sonic.texts import texts
from voicemem.dialects.nova_sonic.translation import closed, translate

NOVA_SONIC = Dialect(name="nova-sonic", version=1, reduce=reduce, translate=translate, closed=closed, texts=texts)
