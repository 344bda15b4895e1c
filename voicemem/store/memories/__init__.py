"""Memories, their words and their vectors."""
