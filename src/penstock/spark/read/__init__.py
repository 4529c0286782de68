"""Live topics as rows: the source, its options, its plan."""
