"""What many things cost that do nothing: topics with timers, connections, a backlog of ten million messages."""

from __future__ import annotations

import json
import socket
import struct
import subprocess
import time
import urllib.request
from pathlib import Path
from typing import Any

from bench.machine import anonymous_mib, describe, touch_memory
from bench.servers import HERE, Running, load_client, nsq_load, penstock

IDLE_CPU_SHARE_MAX = 0.02
CONNECTIONS_MIB_MAX = 400
BACKLOG_MIB_MAX = 300


def cpu_s(pid: int) -> float:
    """CPU seconds of all threads of a process."""
    return sum(int(task.read_text().split()[0]) for task in Path(f"/proc/{pid}/task").glob("*/schedstat")) / 1e9


def resident_mib(pid: int) -> dict[str, float]:
    """RSS, and PSS, which counts what is shared once."""
    told = dict(line.split(":", 1) for line in Path(f"/proc/{pid}/smaps_rollup").read_text().splitlines()[1:])
    return {name.lower(): round(int(told[name].split()[0]) / 1024, 1) for name in ("Rss", "Pss")}


def _post(broker: Running, path: str) -> None:
    with urllib.request.urlopen(urllib.request.Request(f"http://{broker.http}{path}", method="POST"), timeout=30):
        pass


def _hold(broker: Running, topic: str, messages: int) -> socket.socket:
    """A consumer that has messages in flight, for a quarter of an hour."""
    peer = socket.create_connection(("127.0.0.1", broker.nsq))
    about = b'{"msg_timeout":900000,"heartbeat_interval":60000}'
    peer.sendall(b"  V2IDENTIFY\n" + struct.pack(">I", len(about)) + about)
    peer.sendall(f"SUB {topic} one\nRDY {messages}\n".encode())
    bodies = b"".join([struct.pack(">I", 100) + bytes(100)] * messages)
    peer.sendall(f"MPUB {topic}\n".encode() + struct.pack(">II", 4 + len(bodies), messages) + bodies)
    got = 0
    while got < messages * 134 + 30:  # three OK and the messages
        got += len(peer.recv(1 << 16))
    return peer


def idle_topics(topics: int, seconds: float) -> dict[str, Any]:
    """CPU share of a broker with so many topics of two channels each, messages in flight in every tenth."""
    with penstock(queue_segment_bytes=8 << 20) as broker:
        for number in range(topics):
            _post(broker, f"/topic/create?topic=t{number}")
            for channel in ("one", "two"):
                _post(broker, f"/channel/create?topic=t{number}&channel={channel}")
        held = [_hold(broker, f"t{number}", 10) for number in range(0, topics, 10)]
        time.sleep(3)  # what was published is flushed
        began, used = time.monotonic(), cpu_s(broker.pid)
        time.sleep(seconds)
        share = (cpu_s(broker.pid) - used) / (time.monotonic() - began)
        figures = {"topics": topics, "channels": 2 * topics, "in_flight": 10 * len(held), "cpu_share": round(share, 4)}
        for peer in held:
            peer.close()
        return figures | {"anonymous_mib": round(anonymous_mib(broker.pid))}


def idle_connections(count: int) -> dict[str, Any]:
    """Memory that so many connections add, each after IDENTIFY."""
    with penstock() as broker:
        before = resident_mib(broker.pid)
        client = subprocess.Popen(
            [str(load_client("nsqload")), "idle", "-p", str(broker.nsq), "-n", str(count)],
            stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True,
        )  # fmt: skip
        assert client.stdin is not None
        assert client.stdout is not None
        if client.stdout.readline() != "ready\n":
            raise SystemExit("bench: the connections were not made (look at the limit of open files)")
        after = resident_mib(broker.pid)
        client.stdin.close()
        client.wait(60)
        client.stdout.close()
        grown = {f"{name}_mib": round(after[name] - before[name], 1) for name in after}
        return {"connections": count, **grown, "kib_each": round(grown["pss_mib"] * 1024 / count, 1)}


def backlog(messages: int) -> dict[str, Any]:
    """Anonymous memory of a broker whose channel is so far behind, and while a consumer catches up."""
    with penstock() as broker:
        _post(broker, "/topic/create?topic=bench")
        _post(broker, "/channel/create?topic=bench&channel=ch")
        filled = nsq_load("load", broker, P=1, w=20, b=200, s=100, t=600, W=0, n=messages)
        memory = [anonymous_mib(broker.pid)]
        read = nsq_load("load", broker, P=0, C=1, t=600, W=0, n=messages * 9 // 10)
        memory.append(anonymous_mib(broker.pid))
        return {
            "messages": messages, "body_bytes": 100, "fill_rate": filled["rate"], "fill_cpu_us": filled["cpu_us"],
            "read_rate": read["rate"], "read_cpu_us": read["cpu_us"], "anonymous_mib": [round(mib) for mib in memory],
        }  # fmt: skip


def main(arguments: list[str]) -> None:
    short = "--short" in arguments
    result: dict[str, Any] = {"machine": describe()}
    touch_memory(1 if short else 6)
    result["topics"] = idle_topics(100 if short else 1000, 2 if short else 10)
    print("topics", result["topics"], f"goal: CPU share below {IDLE_CPU_SHARE_MAX}", flush=True)
    result["connections"] = idle_connections(1000 if short else 10_000)
    print("connections", result["connections"], f"goal: at most {CONNECTIONS_MIB_MAX} MiB", flush=True)
    result["backlog"] = backlog(500_000 if short else 10_000_000)
    print("backlog", result["backlog"], f"goal: at most {BACKLOG_MIB_MAX} MiB", flush=True)
    result["goals"] = {
        "cpu_share_max": IDLE_CPU_SHARE_MAX, "connections_mib_max": CONNECTIONS_MIB_MAX, "backlog_mib_max": BACKLOG_MIB_MAX,
    }  # fmt: skip
    print(json.dumps(result["machine"]))
    if not short:
        (HERE / "results").mkdir(exist_ok=True)
        (HERE / "results" / "scale.json").write_text(json.dumps(result, indent=1) + "\n")
