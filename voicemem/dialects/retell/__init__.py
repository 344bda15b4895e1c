"""The messages of Retell, as a dialect."""
