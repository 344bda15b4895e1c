"""OpenAI's Live API (GPT-Live)."""
