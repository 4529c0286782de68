"""The whole road on one machine: real events through a broker into a consumer group, a Spark table and a chart."""

from __future__ import annotations

from penstock.demo.command import demo

__all__ = ["demo"]
