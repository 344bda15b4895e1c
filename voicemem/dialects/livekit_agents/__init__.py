"""LiveKit Agents: `model_dump_json()` of each event of an `AgentSession`, items of its chat history, and text streams.

| frame | events |
|---|---|
| `user_state_changed` to speaking | the place of what the user says |
| `user_input_transcribed` | `asr` of an item `~pN`, one a final: what the user says until their item comes |
| `conversation_item_added`, role user | withdraws those; `asr` final of the item, in their turn |
| `conversation_item_added`, role assistant | `llm.done` in the turn of the utterance that began last before it |
| … `interrupted` | `interrupt`, with all of its text heard: LiveKit keeps no other |
| an item of the history (`message`, `function_call`, `function_call_output`) | the same |
| `function_tools_executed`, `tool_execution_updated` that starts a call | `tool.call`, `tool.result` |
| `agent_false_interruption`, resumed | `resume`, where nobody has spoken since the interruption |
| `close` | `session.end` |
| a text of the stream `lk.transcription` | user: `asr` of the segment; agent: `llm.delta`, and `llm.done` when final |
| any other event, item or role | nothing |

An item comes when it was played, so an event that comes later may stand earlier: `created_at` says where.
"""
