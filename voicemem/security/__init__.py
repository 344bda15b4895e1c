"""Who may come in, and whom the service may reach."""
