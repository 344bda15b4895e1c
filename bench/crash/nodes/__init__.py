"""Crash runs of several nodes on one PostgreSQL database."""
