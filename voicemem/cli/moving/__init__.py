"""Moving from other memories."""
