"""`/metrics`: histograms of what is stored, handed out and asked over HTTP, on a broker and on a registry."""

from __future__ import annotations

import base64
import os
import re
import threading
import time
import urllib.error
import urllib.request
from pathlib import Path

from http_rows import ask

from access.people import SECRET, user, write
from fronts.nsq_peer import NsqPeer
from penstock import Admin, Message, Producer, PullConsumer
from penstock.client.staging import SinkRun, StageClient, Stager
from penstock.clock import FakeClock
from penstock.errors import NoRoute, NotFound
from penstock.fronts.prometheus import (
    FAMILIES,
    by_family,
    histogram_samples,
    metrics_pieces,
    sample,
    site_samples,
    wants_openmetrics,
)
from penstock.histogram import Histogram
from penstock.testing import Broker
from penstock.wire.record import BatchItem, encode_batch
from penstock.wire.staged import piece_head
from polling import eventually

LINE = re.compile(r"^penstock_(\w+?)(?:{(.*)})? (\S+)$")

HEAD = 34  # of a frame: size, kind, timestamp, attempts, id


def figures(address: str) -> dict[tuple[str, str], float]:
    """(name, labels) → value; each line is one of a family that there is, behind its type."""
    text = ask(address, "GET", "/metrics").body.decode()
    found, kind = {}, ""
    for line in text.splitlines():
        if line.startswith("# TYPE penstock_"):
            name, kind = line[len("# TYPE penstock_") :].split()
            assert FAMILIES[name][0] == kind
        elif not line.startswith("#"):
            match = LINE.match(line)
            assert match, line
            known = FAMILIES.get(match[1]) or FAMILIES[match[1].removesuffix("_count")]
            assert known[0] == kind or (kind == "histogram" and known[0] == "counter"), line
            found[match[1], match[2] or ""] = float(match[3])
    return found


def read_all(broker: Broker, count: int) -> None:
    """A consumer of the channel q/c takes so many."""
    peer = NsqPeer(broker.nsq)
    peer.subscribe(b"q", b"c", count)
    for _ in range(count):
        peer.message()
    peer.close()


def test_every_histogram_of_a_broker() -> None:
    """A thousand messages in a few calls: counted are turns, answers and requests, never messages."""
    with Broker() as broker, Producer(broker.registry) as producer:
        before = figures(broker.http)
        ask(broker.http, "POST", "/mpub?topic=q", b"\n".join([b"x"] * 1000))
        producer.send_batch([Message("t", b"x")] * 500)
        with PullConsumer(broker.registry, group="g") as consumer:
            consumer.assign("t")
            consumer.seek_to_start()
            got = 0
            while got < 500:
                got += sum(map(len, consumer.getmany().values()))
        read_all(broker, 1000)
        now = figures(broker.http)
        assert 1 <= now["append_seconds_count", ""] - before["append_seconds_count", ""] <= 60
        assert 1 <= now["delivery_seconds_count", 'kind="log"'] <= 60
        assert 1 <= now["delivery_seconds_count", 'kind="queue"'] <= 60
        assert now["http_request_seconds_count", 'route="/mpub"'] == 1
        assert now["http_request_seconds_count", 'route="/metrics"'] >= 1
        histograms = 0
        for (name, labels), count in now.items():
            family = name.removesuffix("_count")
            if family != name and FAMILIES[family][0] == "histogram":
                inside = f"{labels},le" if labels else "le"
                assert now[f"{family}_bucket", f'{inside}="10.0"'] <= count
                assert now[f"{family}_bucket", f'{inside}="+Inf"'] == count
                assert now[f"{family}_sum", labels] >= 0
                histograms += 1
        assert histograms >= 7


def test_a_histogram_is_of_one_moment() -> None:
    """Also where something is counted while the samples are written: a count is that of its last bucket."""
    histogram = Histogram()
    histogram.add(0.5)
    samples = histogram_samples("loop_lag_seconds", histogram)
    lines = [next(samples)[1]]
    histogram.add(0.5)
    lines += [line for _, line in samples]
    assert [line.rpartition(" ")[2] for line in lines[-3:]] == ["1", "0.5", "1"]


def test_how_old_a_message_is_when_it_is_given() -> None:
    """By a clock that is set: a minute later is more than ten seconds, and what comes again is not counted again."""
    clock = FakeClock()
    with Broker(clock=clock) as broker:
        ask(broker.http, "POST", "/pub?topic=q", b"x")
        ask(broker.http, "POST", "/channel/create?topic=q&channel=c")
        clock.advance(30_000)
        for attempt in (1, 2):
            peer = NsqPeer(broker.nsq)
            peer.subscribe(b"q", b"c", 1)
            message = peer.message()
            assert message.attempts == attempt
            assert peer.ask(b"RDY 0\nREQ " + message.id + b" 0\nNOP\nCLS\n") == b"CLOSE_WAIT"
            peer.close()
            found = figures(broker.http)
            assert found["delivery_seconds_count", 'kind="queue"'] == 1
            assert found["delivery_seconds_bucket", 'kind="queue",le="10.0"'] == 0
            assert 29 < found["delivery_seconds_sum", 'kind="queue"'] < 31


def test_a_registry_has_metrics_too(tmp_path: Path) -> None:
    users = write(tmp_path / "users.toml", user("root", "admin"), user("eye", "monitor"), user("shop", "publish:*"))
    with Broker(users=str(users)) as broker:

        def asked(who: str) -> int:
            request = urllib.request.Request(f"http://{broker.lookup_http}/metrics")
            login = base64.b64encode(f"{who}:{SECRET}{who}".encode()).decode()
            if who:
                request.add_header("Authorization", f"Basic {login}")
            try:
                with urllib.request.urlopen(request) as answer:
                    text = answer.read().decode()
            except urllib.error.HTTPError as error:
                with error:
                    return error.code
            assert "\npenstock_lookup_producers " in text
            return 200

        assert [asked(who) for who in ("", "shop", "eye", "root")] == [401, 403, 200, 200]


def test_what_a_registry_counts() -> None:
    with Broker() as broker:
        ask(broker.http, "POST", "/topic/create?topic=q")
        ask(broker.http, "POST", "/channel/create?topic=q&channel=c")
        eventually(lambda: figures(broker.lookup_http)["lookup_channels", ""] == 1)
        for path in ("/lookup?topic=q", "/a-path-of-a-stranger", "/another"):
            ask(broker.lookup_http, "GET", path)
        found = figures(broker.lookup_http)
        assert (found["registry_brokers", ""], found["lookup_producers", ""], found["lookup_topics", ""]) == (1, 1, 1)
        assert found["http_request_seconds_count", 'route="/lookup"'] == 1
        assert found["http_request_seconds_count", 'route="other"'] == 2
        assert ask(broker.lookup_http, "POST", "/metrics").status == 405
        assert found["connections", ""] >= 1


def test_dead_letters_delays_and_the_age_of_the_log() -> None:
    with Broker(max_attempts=1) as broker, Producer(broker.registry) as producer:
        producer.send(Message("%DLQ%billing", b"x"))
        ask(broker.http, "POST", "/pub?topic=q", b"x")
        ask(broker.http, "POST", "/channel/create?topic=q&channel=c")
        peer = NsqPeer(broker.nsq)
        peer.subscribe(b"q", b"c", 1)
        peer.send(b"REQ " + peer.message().id + b" 0\n")
        given_up = "send_to_dlq_messages_total"
        eventually(lambda: figures(broker.http).get((given_up, 'topic="q",channel="c"')) == 1)
        peer.close()
        found = figures(broker.http)
        assert found[given_up, 'group="billing"'] == 1
        assert found["delayed_late_seconds", ""] == 0
        assert 0 <= found["storage_message_reserve_seconds", ""] < 600


def test_staged_rows_that_nobody_published() -> None:
    run = SinkRun("sink", "query", "run")
    messages = encode_batch(BatchItem(b"%d" % n, b"") for n in range(3))
    head = piece_head(b"rows", 0, delayed=False, sys_flag=0, born_ms=1, count=3, size=len(messages))
    staged = "staged_rows", "staged_bytes", "staged_seconds"
    clock = FakeClock()
    with Broker(clock=clock) as broker, Admin(broker.registry) as admin, StageClient(broker.registry) as client:
        admin.create_topic("rows", 1)
        assert [figures(broker.http)[name, ""] for name in staged] == [0, 0, 0]
        stager = Stager(client, run, 0)
        stager.add("broker-a", head + messages, 3)
        sealed = stager.seal()
        clock.advance(7_000)
        rows, size, seconds = (figures(broker.http)[name, ""] for name in staged)
        assert (rows, seconds) == (3, 7)
        assert size > len(messages)
        client.publish(run, 0, [sealed])
        clock.advance(1_000)  # the files go behind the next flush
        eventually(lambda: [figures(broker.http)[name, ""] for name in staged] == [0, 0, 0])


def test_names_of_a_histogram_are_counters() -> None:
    assert {FAMILIES[f"append_seconds_{part}"][0] for part in ("bucket", "sum", "count")} == {"counter"}
    pieces = b"".join(metrics_pieces(by_family([sample("healthy", 1), sample("users", 2, who='a"\n')])))
    assert pieces.decode().splitlines()[2::3] == ["penstock_healthy 1", 'penstock_users{who="a\\"\\n"} 2']


def test_how_late_the_loop_is() -> None:
    """A step that takes half a second is seen; a broker that does nothing is not woken for it."""
    with Broker() as broker:
        for address in (broker.http, broker.lookup_http):
            assert figures(address)["loop_lag_seconds_count", ""] >= 0
        eventually(lambda: figures(broker.http)["loop_lag_seconds_count", ""] >= 3)
        before = figures(broker.http)
        began = time.monotonic()
        eventually(
            lambda: figures(broker.http)["loop_lag_seconds_count", ""] - before["loop_lag_seconds_count", ""] >= 5
        )
        assert (
            time.monotonic() - began > 0.1
        )  # no more often than its timer came as ever: once a second, and when a flush is due

        def late() -> bool:
            broker.call(lambda server: server.net.loop.call_later(0.01, time.sleep, 2.5))
            told = figures(broker.http)
            return told["loop_lag_seconds_count", ""] - told["loop_lag_seconds_bucket", 'le="1.0"'] >= 1

        eventually(late)


ACCEPTS = {
    b"": False, b"*/*": False, b"text/plain": False, b"application/openmetrics-text": True,
    b"application/openmetrics-text;q=0": False,
    b"application/openmetrics-text;version=1.0.0;q=0.75,text/plain;version=0.0.4;q=0.5,*/*;q=0.1": True,
    b"application/openmetrics-text;q=0.5, text/plain;q=0.9": False, b"application/openmetrics-text;q=much,text/plain": False,
}  # fmt: skip


def test_who_wants_openmetrics() -> None:
    assert {accept: wants_openmetrics(accept) for accept in ACCEPTS} == ACCEPTS


def test_openmetrics_where_it_is_asked_for() -> None:
    with Broker() as broker, Producer(broker.registry) as producer:
        producer.send(Message("t", b"x"))
        for address in (broker.http, broker.lookup_http):
            request = urllib.request.Request(
                f"http://{address}/metrics", headers={"Accept": "application/openmetrics-text"}
            )
            with urllib.request.urlopen(request) as answer:
                assert answer.headers["content-type"] == "application/openmetrics-text; version=1.0.0; charset=utf-8"
                lines = answer.read().decode().splitlines()
            assert lines[-1] == "# EOF"
            assert lines.count("# EOF") == 1
            kinds = dict(line.split()[2:] for line in lines if line.startswith("# TYPE "))
            assert kinds["penstock_faults"] == "counter"
            for line in lines[:-1]:
                name = re.split(r"[{ ]", line)[0]
                if not line.startswith("#"):
                    part = re.sub(r"_(total|bucket|sum|count)$", "", name)
                    assert kinds.get(part if name.endswith("_total") or part in kinds else name), line
            assert not [name for name in kinds if name.endswith("_total")]


def test_attempts_and_the_age_of_what_is_finished() -> None:
    """A minute passes by a clock that is set. One of three messages is finished at its second attempt; what a deleted channel
    has counted stays counted.
    """
    clock = FakeClock()
    with Broker(clock=clock) as broker:
        ask(broker.http, "POST", "/topic/create?topic=q")
        ask(broker.http, "POST", "/channel/create?topic=q&channel=c")
        ask(broker.http, "POST", "/mpub?topic=q", b"x\nx\nx")
        clock.advance(60_000)
        peer = NsqPeer(broker.nsq)
        peer.subscribe(b"q", b"c", 3)
        taken = [peer.message() for _ in range(3)]
        peer.send(b"REQ " + taken[0].id + b" 0\n")
        again = peer.message()
        assert (again.id, again.attempts) == (taken[0].id, 2)
        peer.send(b"".join(b"FIN " + one.id + b"\n" for one in (again, taken[1], taken[2])))
        kind = 'kind="queue"'
        eventually(lambda: figures(broker.http)["finish_attempts_count", kind] == 3)
        found = figures(broker.http)
        assert found["finish_attempts_sum", kind] == 4
        assert [found["finish_attempts_bucket", f'{kind},le="{n}.0"'] for n in (1, 2, 16)] == [2, 3, 3]
        assert 1 <= found["acknowledge_seconds_count", kind] <= 3
        assert 60 <= found["acknowledge_seconds_sum", kind] / found["acknowledge_seconds_count", kind] < 61
        assert found["messages_out_total", 'topic="q",channel="c"'] == 4
        ask(broker.http, "POST", "/channel/delete?topic=q&channel=c")
        found = figures(broker.http)
        assert (found["finish_attempts_count", kind], found["finish_attempts_sum", kind]) == (3, 4)
        peer.close()


def test_bytes_given_by_a_channel() -> None:
    """Bodies with the heads of their frames; what comes again counts again."""
    with Broker() as broker:
        ask(broker.http, "POST", "/topic/create?topic=q")
        ask(broker.http, "POST", "/channel/create?topic=q&channel=c")
        ask(broker.http, "POST", "/pub?topic=q", b"x" * 1_000)
        out = ("throughput_out_bytes_total", 'topic="q",channel="c"')
        assert figures(broker.http)[out] == 0
        peer = NsqPeer(broker.nsq)
        peer.subscribe(b"q", b"c", 1)
        first = peer.message()
        eventually(lambda: figures(broker.http)[out] == 1_000 + HEAD)
        peer.send(b"REQ " + first.id + b" 0\n")
        again = peer.message()
        eventually(lambda: figures(broker.http)[out] == 2 * (1_000 + HEAD))
        peer.send(b"FIN " + again.id + b"\n")
        large = b"y" * 300_000  # written from where it lies
        ask(broker.http, "POST", "/pub?topic=q", large)
        assert len(peer.message().body) == len(large)
        eventually(lambda: figures(broker.http)[out] == 2 * (1_000 + HEAD) + len(large) + HEAD)
        peer.close()


def test_a_group_that_commits() -> None:
    clock = FakeClock()
    with Broker(clock=clock) as broker, Producer(broker.registry) as producer, Admin(broker.registry) as admin:
        admin.create_topic("t", 1)
        producer.send_batch([Message("t", b"x")] * 10)
        clock.advance(30_000)
        with PullConsumer(broker.registry, group="g") as consumer:
            (queue,) = consumer.queues("t")
            for offset in (0, 4, 4, 2, 9, 10):
                consumer.commit({queue: offset})
        found = figures(broker.http)
        assert found["acknowledge_seconds_count", 'kind="log"'] == 1  # the clock stands: once in 10 ms
        assert 30 <= found["acknowledge_seconds_sum", 'kind="log"'] < 31
        assert found["consumer_lag_messages", 'topic="t",group="g"'] == 0


def test_the_log_and_what_waits() -> None:
    clock = FakeClock()
    with Broker(clock=clock) as broker, Producer(broker.registry) as producer:
        producer.send(Message("t", os.urandom(5000)))
        producer.send(Message("t", b"later", deliver_at_ms=clock.now_ms() + 60_000))
        found = figures(broker.http)
        assert 5000 < found["storage_size_bytes", ""] == found["storage_written_bytes_total", ""]
        assert found["storage_dispatch_behind_bytes", ""] == 0
        assert found["storage_replay_bytes", ""] <= found["storage_size_bytes", ""]
        assert found["timer_dequeue_lag_messages", ""] == 0
        assert found["timer_enqueue_lag_messages", ""] in (0, 1)
        assert found["processor_watermark", 'processor="pull"'] == 0
        with PullConsumer(broker.registry, group="g") as consumer:
            consumer.assign("t")
            consumer.seek_to_end()
            consumer.getmany(timeout_s=0.5)
        assert ("processor_watermark", 'processor="flush"') in found


def test_topics_that_go_while_metrics_are_written() -> None:
    """Between two pieces of the answer others have the loop: topics, channels and groups come and go there."""
    with Broker(max_topic_creations_per_second=100_000) as broker, Admin(broker.registry) as admin:
        over = threading.Event()
        errors: list[object] = []

        def change() -> None:
            number = 0
            while not over.is_set():
                number += 1
                try:
                    ask(broker.http, "POST", f"/topic/create?topic=q{number % 50}")
                    ask(broker.http, "POST", f"/channel/create?topic=q{number % 50}&channel=c{number}")
                    ask(broker.http, "POST", f"/topic/delete?topic=q{(number + 25) % 50}")
                    admin.create_topic(f"t{number % 7}", 1)
                    admin.delete_topic(f"t{(number + 3) % 7}")
                except (NotFound, NoRoute):
                    continue
                except Exception as error:
                    errors.append(error)
                    return

        for n in range(300):
            admin.create_topic(f"log-{n}", 1)
        threads = [threading.Thread(target=change) for _ in range(2)]
        for thread in threads:
            thread.start()
        try:
            for _ in range(40):
                for path in ("/metrics", "/stats?format=json", "/api/snapshot"):
                    answer = ask(broker.http, "GET", path)
                    assert answer.status == 200, (path, answer.body)
        finally:
            over.set()
            for thread in threads:
                thread.join()
        assert not errors
        assert figures(broker.http)["faults_total", ""] == 0


def test_a_route_that_is_asked_for_the_first_time_meanwhile() -> None:
    """The samples of /metrics are made in pieces, and others are served between two."""
    took = {"/ping": Histogram()}
    samples = site_samples(took)
    first = next(samples)
    took["/stats"] = Histogram()
    lines = [line for _, line in (first, *samples)]
    assert 'penstock_http_request_seconds_count{route="/ping"} 0' in lines
