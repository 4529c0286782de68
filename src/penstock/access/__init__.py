"""Who may do what: users, their rights, and the one place that every front asks."""
