"""What is given away whole: calls as documents, and all that is stored of a user."""
