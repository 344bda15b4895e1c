"""The websocket ingest."""
