"""Streams and their journals on PostgreSQL."""
