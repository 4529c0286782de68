"""The web console: a process of its own that draws what a broker tells (docs/console.md)."""
