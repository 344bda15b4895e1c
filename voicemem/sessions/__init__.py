"""A running call: recording its events, its life cycle, its memory, its tails."""
