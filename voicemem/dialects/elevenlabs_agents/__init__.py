"""ElevenLabs Agents: the websocket of a conversation, and the webhook after it."""
