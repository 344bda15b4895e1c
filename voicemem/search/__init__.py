"""Search by words: the words of messages and of queries, and the passages that are indexed."""
