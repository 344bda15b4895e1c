"""Metrics and traces of the service itself."""
