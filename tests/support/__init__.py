"""Helpers of the tests. None of them imports a test."""
