"""OpenAI's Realtime API, and the vendors that speak it."""
