"""Events to messages: what was said, and what was heard."""
