"""Access control of callers, rate limits, and the guard of the addresses that the service calls."""
