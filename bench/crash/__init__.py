"""Kills the service while producers and readers continue, and checks what must hold afterwards."""
