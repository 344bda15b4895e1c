"""Read models: the folds of journals up to a position, in a cache, with a bound on the CPU that each may take."""
