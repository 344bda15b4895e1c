"""Measurements that can be run again: each prints a table and, last, one line of JSON."""
