"""Registries are told what is here: name servers of RocketMQ's kind, and nsqlookupd."""
