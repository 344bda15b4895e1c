"""What the benches share: servers, load, baselines, reports."""
