"""The NSQ side of a broker: topics and channels of both kinds, their timers, flushes and deferred messages."""
