"""What was heard, found by words and by meaning, in tables of the database."""
