"""Where journals, snapshots, deliveries and keys are stored: the port, its rules, and the engines."""
