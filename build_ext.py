"""The list of compiled modules, and nothing else. setup.py compiles them, the tests check them."""

COMPILED = [
    "penstock.broker.topics",
    "penstock.disk.segments",
    "penstock.fronts.remoting",
    "penstock.log.checksums",
    "penstock.log.commitlog",
    "penstock.log.consumequeue",
    "penstock.log.draft",
    "penstock.log.keyindex",
    "penstock.log.reading",
    "penstock.log.store",
    "penstock.net",
    "penstock.spark.decode",
    "penstock.spark.encode",
    "penstock.wire.header",
    "penstock.wire.outbox",
]
