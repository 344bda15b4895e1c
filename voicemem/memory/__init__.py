"""Operations on a memory: add, forget, fork, checkpoint, working memory."""
