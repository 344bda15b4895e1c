"""Where journals, folds, exports and keys are kept: the port, and its implementations."""
