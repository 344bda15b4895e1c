"""The edges that listen: websocket ingest, REST, and the page."""
