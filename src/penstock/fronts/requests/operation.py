"""Requests of ours about the process itself: who is connected to this broker, and its settings taken anew."""

from __future__ import annotations

from penstock.broker.clients import Peer
from penstock.broker.nsq.queueing import Producer
from penstock.delivery.channel import Consumer
from penstock.errors import ConfigError, Refused
from penstock.fronts.requests.calls import Answer, Calls
from penstock.wire import fastjson
from penstock.wire.codes import RequestCode, read_fields
from penstock.wire.fastjson import JsonObject
from penstock.wire.remoting import RemotingCommand

ROWS_MAX = 1_000


class Operation(Calls):
    """The part of the requests' table for who operates a broker."""

    TABLE = {
        RequestCode.CLIENTS: "clients",
        RequestCode.CONFIG_RELOAD: "reload",
        RequestCode.CLIENT_DISCONNECT: "disconnect",
    }

    def clients(self, session: Peer, request: RemotingCommand) -> Answer:
        """A page of the clients that have said what they are, by address."""
        after = read_fields(request.code, request.ext)["after"] or ""
        rows = sorted(self._rows(), key=lambda row: (str(row["address"]), str(row["role"]), str(row["of"])))
        if after:
            if not after.isascii() or not after.isdigit() or len(after) > 9:
                raise Refused("after is what next was in the answer before")
            rows = rows[int(after) :]
        at = int(after or 0) + ROWS_MAX
        found = {"rows": rows[:ROWS_MAX], "next": str(at) if len(rows) > ROWS_MAX else None}
        return request.reply(body=fastjson.dumps(found))

    def disconnect(self, session: Peer, request: RemotingCommand) -> Answer:
        """End the connection of a client; it may come again, as clients do."""
        address = read_fields(request.code, request.ext)["address"]
        broker, now_s = self.broker, self.broker.now_ms // 1000
        groups = [online.members for online in broker.clients.consumers.values()]
        peers = {
            id(one.peer): one.peer for members in (*groups, *broker.clients.producers.values())
            for one in members.values() if one.peer.remote == address
        }  # fmt: skip
        for peer in peers.values():
            peer.disconnect()
        found: list[Consumer | Producer] = list(broker.queueing.producers)
        for topic in broker.queueing.all():
            for channel in topic.channels.values():
                found += channel.consumers
        nsq = [one for one in found if one.describe(now_s).get("remote_address") == address]
        for one in nsq:
            one.disconnect()
        return request.reply(body=fastjson.dumps({"count": len(peers) + len(nsq)}))

    def _rows(self) -> list[JsonObject]:
        broker, now_s = self.broker, self.broker.now_ms // 1000
        rows: list[JsonObject] = []
        for role, groups in (("consumer", broker.clients.consumers), ("producer", broker.clients.producers)):
            for group, found in groups.items():
                members = found if isinstance(found, dict) else found.members
                rows += [
                    {
                        "address": one.peer.remote, "protocol": "rocketmq", "role": role, "of": group,
                        "client": one.client_id, "about": f"{one.language} {one.version}", "inFlight": None,
                    }
                    for one in members.values()
                ]  # fmt: skip
        for topic in broker.queueing.all():
            for channel in topic.channels.values():
                of = f"{topic.name.decode()}/{channel.name.decode()}"
                rows += [_of_nsq(one.describe(now_s), "consumer", of) for one in channel.consumers]
        for producer in list(broker.queueing.producers):
            about = producer.describe(now_s)
            counts = about.get("pub_counts")
            topics = [str(one["topic"]) for one in counts] if isinstance(counts, list) else []
            rows.append(_of_nsq(about, "producer", " ".join(topics)))
        return rows

    def reload(self, session: Peer, request: RemotingCommand) -> Answer:
        """Read the settings again, as SIGHUP has it; what changed, and whether it holds now."""
        try:
            changes = self.broker.core.reload()
        except ConfigError as error:
            raise Refused(f"the settings cannot be used, all stay as they were: {error}", hint=error.hint) from None
        return request.reply(body=fastjson.dumps({"changes": [_plain(change) for change in changes]}))


def _plain(change: JsonObject) -> JsonObject:
    return {name: value if isinstance(value, bool | int | str) else str(value) for name, value in change.items()}


def _of_nsq(about: dict[str, object], role: str, of: str) -> JsonObject:
    return {
        "address": about.get("remote_address", ""),
        "protocol": "nsq",
        "role": role,
        "of": of,
        "client": about.get("client_id", ""),
        "about": about.get("user_agent", ""),
        "inFlight": about.get("in_flight_count") if role == "consumer" else None,
    }
