"""The dialect `gemini-live`: the messages of Gemini's Live API.

Their names are in camelCase as on the wire, or as in Google's Python SDK.

There are no ids. What the user says and what the model answers is an exchange n, up to `turnComplete`: `~uN` and `~aN`.

| frame | in events |
|---|---|
| `serverContent.inputTranscription` | `asr` of `~uN`, all that came so far; final once the model has begun |
| `serverContent.interimInputTranscription` | a partial |
| `serverContent.outputTranscription`, `modelTurn.parts[].text` (not `thought`) | `llm.delta` of `~aN` |
| `modelTurn.parts[].inlineData` of audio | `tts` `total_audio_ms` |
| `generationComplete` | `llm.done` |
| `interrupted` | `interrupt` of `~aN` by the clock; the user's next words belong to the next exchange |
| `turnComplete` | `llm.done`; without `interrupted` also `tts` `done`: Gemini waits for the end of playback; n + 1 |
| `toolCall.functionCalls[]`, app `toolResponse.functionResponses[]` | `tool.call`, `tool.result` |
| app `clientContent.turns[]` (the last, if it is the user's), `realtimeInput.text` | a `message` of the user |
| `setupComplete` | the session's id; after another connection, the end of its exchange |
| `goAway`, `sessionResumptionUpdate`, `usageMetadata`, `setup`, audio and video sent, all else | nothing |

Transcriptions come in no order with what the model says: a place is kept for the user's words when the model begins
before any have come. When the model has generated all, words of an utterance that has a text are the next one's.
"""

from __future__ import annotations

from voicemem.dialects.dialect import Dialect
from voicemem.dialects.gemini_live.frames import reduce
from voicemem.dialects.gemini_live.texts import texts
from voicemem.dialects.gemini_live.translation import closed, translate

GEMINI_LIVE = Dialect(name="gemini-live", version=2, reduce=reduce, translate=translate, closed=closed, texts=texts)
