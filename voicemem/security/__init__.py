"""Access control of clients, rate limits, caller ids, and the guard of the addresses that the service calls."""
