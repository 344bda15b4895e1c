"""OpenAI's Realtime API, and what speaks like it: Azure OpenAI, Azure Voice Live, xAI, Inworld."""
