"""Rows as messages: the sink, its options, its staged rows."""
