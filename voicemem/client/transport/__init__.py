"""The ways to the server: the websocket, HTTP in its place, and requests that read."""
