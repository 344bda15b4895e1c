"""What is found by words: the words of messages and of queries, and the passages that are indexed."""
