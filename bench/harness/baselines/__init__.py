"""The least work that a measured task can be: baselines, each a process of its own."""
