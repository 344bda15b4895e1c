"""OpenAI's Realtime API, and compatible vendors."""
