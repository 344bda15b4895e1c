"""Repeatable measurements. Each prints a table and ends with one line of JSON."""
