"""A call as a document for other programs and for people: from its messages to text (docs/exports.md)."""
