"""The list of compiled modules, and nothing else. setup.py compiles them, the tests check them."""

COMPILED = [
]
