"""Copies of a session: checkpoints, restored sessions, forks."""
