"""What is done to a memory: add, forget, fork, checkpoint, working memory."""
