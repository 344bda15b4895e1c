"""Live tails: what readers of a session, or of several, are sent while it happens."""
