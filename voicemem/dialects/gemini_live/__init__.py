"""Google's Gemini Live API."""
