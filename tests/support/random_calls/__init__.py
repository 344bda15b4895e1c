"""Calls drawn at random, as producers would send them."""
