"""Delayed messages: what their properties mean, and where they wait."""
