"""Live tails: readers of one session or several get what is journaled, or what changes in the memory, as it happens."""
