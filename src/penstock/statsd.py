"""Pushes a broker's figures to statsd, in the layout that nsqadmin's graphs expect; one packet at a time over the interval."""

from __future__ import annotations

import asyncio
import logging

from penstock.fronts import figures, prometheus
from penstock.fronts.http.nsqd import NsqHttp

log = logging.getLogger("penstock.statsd")


class Statsd:
    """The push of one broker."""

    def __init__(self, http: NsqHttp) -> None:
        self.http = http
        self.config = http.config
        self._before: dict[str, int] = {}

    def packets(self) -> list[bytes]:
        """What is pushed now; counters count from the last time on."""
        config, broker = self.config, self.http.broker
        topics = figures.topic_stats(broker.queueing.all(), b"", self.http.quantiles, False, 0)
        lines = [*figures.statsd_lines(topics, config.statsd_exclude_ephemeral)]
        if config.statsd_mem_stats:
            mem = prometheus.memory()
            runs = mem.pop("gc_total_runs")
            lines += [(f"mem.{name}", value, False) for name, value in mem.items()]
            lines.append(("mem.gc_runs", runs, True))
        return figures.statsd_packets(
            self.http.settings.statsd_prefix(), lines, self._before, config.statsd_udp_packet_size
        )

    async def run(self) -> None:
        """Until cancelled: a push at the end of every interval, its packets spread over the next one less a second."""
        interval_s = self.config.statsd_interval_ms / 1000
        loop = asyncio.get_running_loop()
        begin = loop.time()
        while True:
            begin += interval_s
            await asyncio.sleep(max(0.0, begin - loop.time()))
            try:
                await self._push(loop, max(0.0, interval_s - 1))
            except (OSError, ValueError) as error:
                log.warning("statsd not reached address=%s error=%s", self.config.statsd_address, error)

    async def _push(self, loop: asyncio.AbstractEventLoop, spread_s: float) -> None:
        host, _, port = self.config.statsd_address.rpartition(":")
        address = (host.strip("[]"), int(port))
        transport, _ = await loop.create_datagram_endpoint(asyncio.DatagramProtocol, remote_addr=address)
        try:
            packets = self.packets()
            for packet in packets:
                transport.sendto(packet)
                await asyncio.sleep(spread_s / len(packets) if packet is not packets[-1] else 0)
        finally:
            transport.close()
