"""The list of compiled modules, and nothing else. setup.py compiles them, the tests check them."""

COMPILED = [
    "penstock.wire.header",
    "penstock.wire.outbox",
    "penstock.spark.decode",
]
