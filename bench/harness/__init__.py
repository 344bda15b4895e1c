"""Shared by the benches: servers, load, baselines, reports."""
