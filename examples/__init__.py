"""Agents that run offline, each in one file."""
