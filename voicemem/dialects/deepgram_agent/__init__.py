"""Deepgram's Voice Agent API."""
