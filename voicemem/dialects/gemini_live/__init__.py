"""The messages of Gemini's Live API, as a dialect."""
