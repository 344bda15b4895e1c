"""The websocket ingest: events of calls come in, their acks go out."""
