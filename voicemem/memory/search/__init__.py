"""Finds what was heard and what is remembered, by words and by meaning, and keeps what that needs."""
