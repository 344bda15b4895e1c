"""Pipecat's RTVI messages, as its server sends them to clients: protocol 2.2, and 1.x with `spoken`.

| frame | events |
|---|---|
| `user-input` | transcription: `asr`; chat: `message`; backchannel: nothing |
| `user-transcription` | `asr`, where no `user-input` comes; it says the same |
| `send-text` (app) | `message`, once with the `user-input` of its id |
| `bot-llm-started` | the next reply `~rN`, in the turn of the newest utterance |
| `bot-llm-stopped` | `llm.done` |
| `bot-output`, first of a segment | `llm.delta`; segments are joined by a space |
| `bot-output`, each | `tts`: the heard text is all before the segment, and what of it was spoken |
| `bot-output` of 1.x | `spoken`: the sentence or word was heard |
| `bot-output`, not to be spoken | nothing |
| `bot-interrupted` | `interrupt`; the last heard text is exact |
| `bot-started-speaking`, `bot-stopped-speaking` | whether more was said than a TTS without word times reports |
| `llm-function-call-in-progress`, `-stopped`, and what 1.x has for them | `tool.call`, `tool.result` |
| any other message | nothing |
"""
