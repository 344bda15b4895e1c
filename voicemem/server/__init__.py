"""The edges that listen: websocket ingest, REST, and Agora's paths."""
