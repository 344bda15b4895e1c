"""Load generators, which must cost far less than the servers under load."""
