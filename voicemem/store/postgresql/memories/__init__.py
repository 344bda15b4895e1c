"""Memories on PostgreSQL: rows with their words."""
