"""Kills of the service while producers and readers go on, and what must hold afterwards."""
