"""A real `AgentSession` without a room: scripted recogniser, LLM and voice, and a device that knows what it played."""
