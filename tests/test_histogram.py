"""`histogram`: counted by upper bound, and written as Prometheus reads it."""

from __future__ import annotations

import re
import urllib.request

from penstock import Message, Producer
from penstock.histogram import BOUNDS_S, Attempts, Histogram
from penstock.testing import Broker
from polling import eventually


def test_each_falls_into_its_bucket() -> None:
    took = Histogram()
    for seconds in (0.0, 0.000_1, 0.000_11, 0.02, 10.0, 11.0):
        took.add(seconds)
    found = dict(took.buckets())
    assert (found["0.0001"], found["0.00025"], found["0.01"], found["0.025"]) == (2, 3, 3, 4)
    assert (found["10.0"], found["+Inf"], took.count) == (5, 6, 6)
    assert abs(took.sum_s - 21.02021) < 1e-9
    assert list(BOUNDS_S) == sorted(BOUNDS_S)


def test_flushes_are_in_the_metrics() -> None:
    with Broker(level="disk") as broker, Producer(broker.registry) as producer:

        def flushes() -> int:
            text = urllib.request.urlopen(f"http://{broker.http}/metrics").read().decode()
            assert "# TYPE penstock_disk_job_seconds histogram" in text
            rising = [
                int(n)
                for n in re.findall(r'^penstock_disk_job_seconds_bucket{job="flush",le="[^"]+"} (\d+)$', text, re.M)
            ]
            assert rising == sorted(rising)
            assert len(rising) == len(BOUNDS_S) + 1
            (count,) = re.findall(r'^penstock_disk_job_seconds_count{job="flush"} (\d+)$', text, re.M)
            (total,) = re.findall(r'^penstock_disk_job_seconds_sum{job="flush"} (\S+)$', text, re.M)
            assert int(count) == rising[-1]
            assert (float(total) > 0) == (rising[-1] > 0)
            return rising[-1]

        before = flushes()
        for _ in range(5):
            producer.send(Message("t", b"x"))
        eventually(lambda: flushes() > before)


def test_attempts() -> None:
    """Those of the first attempt are what is left of all that were finished."""
    one, other = Attempts(), Attempts()
    for attempts in (2, 3, 4, 17):
        one.add(attempts)
    one.finished(10)
    other.join(one)
    other.join(one)
    assert other.buckets() == [
        ("1.0", 12),
        ("2.0", 14),
        ("3.0", 16),
        ("5.0", 18),
        ("10.0", 18),
        ("16.0", 18),
        ("+Inf", 20),
    ]
    assert (one.count, one.sum, other.count, other.sum) == (10, 32, 20, 64)
    assert [tuple(row.values()) for row in one.spread()] == [
        ("1", 6), ("2", 1), ("3", 1), ("4 to 5", 1), ("6 to 10", 0), ("11 to 16", 0), ("more than 16", 1),
    ]  # fmt: skip
