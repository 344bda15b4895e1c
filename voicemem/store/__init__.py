"""Where journals, snapshots, exports and keys are stored: the port, its rules, and the engines."""
