"""The files of a log as rows: the bulk source and what is derived from a log."""
