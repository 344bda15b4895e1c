"""What the operator of a service asks for: health and metrics, the documents of the API, keys."""
