"""This process as one of the nodes of its store: its lease, who is connected to it, and what happens on other nodes."""
