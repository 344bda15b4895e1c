"""A second fold, from a call's journal to its messages, written as plainly as the rules are: the oracle of a test."""
