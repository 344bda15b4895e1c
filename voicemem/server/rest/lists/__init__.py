"""Lists of sessions: filters, slim rows, and the list that is told as it changes."""
