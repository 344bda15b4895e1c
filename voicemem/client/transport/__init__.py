"""The ways to the server: the websocket, HTTP as a fallback, and REST requests."""
