"""The commands `nsqd` and `nsqlookupd`: Go's flag syntax, TOML, the lines that harnesses wait for, exit codes."""

from __future__ import annotations

import contextlib
import json
import os
import re
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from http_rows import ask

from penstock.cli.nsqd import Usage, duration_ms, nsqd_config, nsqlookupd_config, options_of, parse, usage
from penstock.fronts.flags import NSQD, NSQLOOKUPD, nsqd_value

SRC = Path(__file__).parents[2] / "src"


@pytest.mark.parametrize(
    ("text", "ms"),
    [("300ms", 300), ("2s", 2000), ("1m30s", 90_000), ("1h", 3_600_000), ("1.5h", 5_400_000), ("0", 0), ("250us", 0)],
)
def test_durations(text: str, ms: int) -> None:
    assert duration_ms(text) == ms


@pytest.mark.parametrize("text", ["", "1", "1x", "s", "-1s", "1 s", "1s1"])
def test_what_is_no_duration(text: str) -> None:
    with pytest.raises(ValueError):
        duration_ms(text)


def test_flags_as_go_reads_them() -> None:
    assert parse(NSQD, ["-tcp-address", "a:1", "--http-address=b:2", "-deflate=false", "--snappy", "-verbose"]) == {
        "tcp-address": "a:1",
        "http-address": "b:2",
        "deflate": False,
        "snappy": True,
        "verbose": True,
    }
    several = parse(
        NSQD,
        ["-lookupd-tcp-address=a:1", "-lookupd-tcp-address", "b:2", "-e2e-processing-latency-percentile=1.0,0.99",
         "-e2e-processing-latency-percentile", "0.5"],
    )  # fmt: skip
    assert several == {"lookupd-tcp-address": ["a:1", "b:2"], "e2e-processing-latency-percentile": [1.0, 0.99, 0.5]}
    assert parse(NSQD, ["-mem-queue-size=0x10", "rest", "-version"]) == {"mem-queue-size": 16}
    assert parse(NSQD, ["-tls-required", "-tls-cert=x"][1:]) == {"tls-cert": "x"}


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["-nope"], "flag provided but not defined: -nope"),
        (["--nope=1"], "flag provided but not defined: -nope"),
        (["-tcp-address"], "flag needs an argument: -tcp-address"),
        (["---x"], "bad flag syntax: ---x"),
        (["-=x"], "bad flag syntax: -=x"),
        (["-mem-queue-size", "many"], 'invalid value "many" for flag -mem-queue-size: parse error'),
        (["-msg-timeout=5"], 'invalid value "5" for flag -msg-timeout: parse error'),
        (["-deflate=maybe"], 'invalid value "maybe" for flag -deflate: parse error'),
        (["-log-level=loud"], 'invalid value "loud" for flag -log-level: parse error'),
        (["-tls-min-version=tls9"], 'invalid value "tls9" for flag -tls-min-version: parse error'),
        (["-e2e-processing-latency-percentile=1.5"], "parse error"),
    ],
)
def test_bad_command_lines(arguments: list[str], words: str) -> None:
    with pytest.raises(Usage, match=re.escape(words)):
        parse(NSQD, arguments)


def test_flag_beats_file_beats_default(tmp_path: Path) -> None:
    file = tmp_path / "nsqd.toml"
    file.write_text(
        'mem_queue_size = 5\nmax_msg_size = 7\nmsg_timeout = "5s"\nnsqlookupd_tcp_addresses = ["a:1", "b:2"]\nid = 3\n'
        'tls_required = false\nlog_level = "WARN"\ne2e_processing_latency_percentiles = [1.0, 0.5]\nsomething_else = 1\n'
    )
    values = options_of(NSQD, ["-config", str(file), "-mem-queue-size=6", "-http-address="])
    config = nsqd_config(values)
    assert (config.mem_queue_size, config.max_msg_size, config.msg_timeout_ms, config.max_body_size) == (
        6, 7, 5_000, 5_242_880,
    )  # fmt: skip
    assert (config.lookupd_tcp_address, config.node_id, config.log_level) == ("a:1;b:2", 3, "warn")
    assert (config.nsq_host, config.nsq_port, config.http_port, config.remoting_port) == ("0.0.0.0", 4150, -1, -1)
    assert nsqd_value(config, "e2e_processing_latency_percentiles", 0) == [1.0, 0.5]
    assert nsqd_value(config, "msg_timeout", 0) == 5_000_000_000
    assert nsqd_value(config, "tcp_address", 0) == "0.0.0.0:4150"


def test_addresses() -> None:
    config = nsqd_config(options_of(NSQD, ["-tcp-address=/tmp/x.sock", "-http-address=:80", "-https-address=[::1]:5"]))
    assert (config.nsq_host, config.http_host, config.http_port) == ("/tmp/x.sock", "0.0.0.0", 80)
    assert (config.https_host, config.https_port) == ("::1", 5)
    registry = nsqlookupd_config(options_of(NSQLOOKUPD, ["-tcp-address=127.0.0.1:1", "-tombstone-lifetime=5s"]))
    assert (registry.lookup_host, registry.lookup_port, registry.lookup_http_port) == ("127.0.0.1", 1, 4161)
    assert (registry.registry_port, registry.tombstone_lifetime_ms) == (-1, 5_000)
    for bad in (["-tcp-address=x:y"], ["-node-id=1024"], ["-max-deflate-level=10"]):
        with pytest.raises(Usage):
            nsqd_config(options_of(NSQD, bad))


def test_a_client_policy_means_that_tls_is_required() -> None:
    assert nsqd_config(options_of(NSQD, ["-tls-client-auth-policy=require"])).tls_required == "true"


def test_every_option_leads_somewhere() -> None:
    config = nsqd_config(options_of(NSQD, []))
    for option in NSQD:
        if option.name not in ("config", "version", "verbose", "worker_id"):
            json.dumps(nsqd_value(config, option.name, 1))
        assert f"  -{option.flag}" in usage("nsqd", NSQD)


# -- real processes


def command(name: str, *arguments: str) -> list[str]:
    return [sys.executable, "-c", f"from penstock.cli.nsqd import {name}; {name}()", *arguments]


@contextlib.contextmanager
def running(name: str, *arguments: str, ports: bool = True) -> Iterator[tuple[subprocess.Popen[str], dict[str, str]]]:
    """The process and its addresses by TCP, HTTP …; the lines it logs are read until all are there."""
    free = ["-tcp-address=127.0.0.1:0", "-http-address", "127.0.0.1:0"] if ports else []
    process = subprocess.Popen(
        command(name, *free, *arguments), stderr=subprocess.PIPE, text=True, env={**os.environ, "PYTHONPATH": str(SRC)}
    )
    assert process.stderr is not None
    found: dict[str, str] = {}
    try:
        while len(found) < 2:
            line = process.stderr.readline()
            assert line, "the end of its log"
            match = re.search(r" INFO: (TCP|HTTPS?): listening on (\S+)$", line)
            if match:
                assert re.match(rf"\[{name}\] \d{{4}}/\d\d/\d\d \d\d:\d\d:\d\d\.\d{{6}} INFO: ", line)
                assert match[1] not in found
                found[match[1]] = match[2]
        yield process, found
    finally:
        process.kill()
        process.stderr.close()
        process.wait()


def run(name: str, *arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        command(name, *arguments),
        capture_output=True,
        text=True,
        timeout=30,
        env={**os.environ, "PYTHONPATH": str(SRC)},
    )


def test_version_and_bad_flags() -> None:
    for name in ("nsqd", "nsqlookupd"):
        told = run(name, "-version")
        assert re.fullmatch(name + r" v\d+\.\d+\.\d+ \(built w/[a-z0-9.-]+\)\n", told.stdout)
        assert told.returncode == 0
        told = run(name, "--nope")
        assert told.stderr.startswith(f"flag provided but not defined: -nope\nUsage of {name}:\n  -")
        assert (told.stdout, told.returncode) == ("", 2)


def nsq(address: str, data: bytes) -> bytes:
    """What a V2 connection answers first."""
    host, _, port = address.rpartition(":")
    with socket.create_connection((host, int(port)), 10) as peer:
        peer.sendall(b"  V2" + data)
        return peer.recv(4096)


def test_nsqd_serves_stops_and_goes_on(tmp_path: Path) -> None:
    with running("nsqd", f"-data-path={tmp_path}", "-mem-queue-size=7") as (process, at):
        assert ask(at["HTTP"], "GET", "/ping", host="a.name.of.ours:4151").answer == "OK"
        assert ask(at["HTTP"], "GET", "/config/mem_queue_size").answer == "7"
        assert ask(at["HTTP"], "PUT", "/config/log_level", b"debug").answer == "1"
        assert ask(at["HTTP"], "POST", "/channel/create?topic=t&channel=c").answer == "TOPIC_NOT_FOUND"
        ask(at["HTTP"], "POST", "/topic/create?topic=t")
        ask(at["HTTP"], "POST", "/channel/create?topic=t&channel=c")
        assert nsq(at["TCP"], b"PUB t\n\0\0\0\1x") == b"\0\0\0\6\0\0\0\0OK"
        info = json.loads(ask(at["HTTP"], "GET", "/info").body)
        assert info["broadcast_address"] == socket.gethostname()
        process.send_signal(signal.SIGTERM)
        assert process.wait(20) == 0
    assert json.loads((tmp_path / "nsqd.dat").read_text())["topics"][0]["name"] == "t"
    with running("nsqd", f"-data-path={tmp_path}") as (process, at):
        (topic,) = json.loads(ask(at["HTTP"], "GET", "/stats?format=json").body)["topics"]
        assert topic["channels"][0]["depth"] == 1
        second = run("nsqd", "-tcp-address=127.0.0.1:0", "-http-address=127.0.0.1:0", f"-data-path={tmp_path}")
        assert second.returncode == 1
        assert "FATAL: failed to run nsqd - " in second.stderr


def test_killed_and_started_on_the_same_ports(tmp_path: Path) -> None:
    with running("nsqd", f"-data-path={tmp_path}") as (_, at):
        peer = socket.create_connection(("127.0.0.1", int(at["TCP"].rpartition(":")[2])), 10)
        peer.sendall(b"  V2PUB t\n\0\0\0\1x")
        assert peer.recv(100)
    same = [f"-tcp-address={at['TCP']}", f"-http-address={at['HTTP']}", f"-data-path={tmp_path}"]
    with peer, running("nsqd", *same, ports=False) as (_, again):
        assert again == at
        (topic,) = json.loads(ask(at["HTTP"], "GET", "/stats?format=json").body)["topics"]
        assert topic["depth"] == 1


def test_a_port_that_is_taken(tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        address = f"127.0.0.1:{taken.getsockname()[1]}"
        told = run("nsqd", f"-tcp-address={address}", "-http-address=127.0.0.1:0", f"-data-path={tmp_path}")
    assert told.returncode == 1
    assert f"cannot listen on {address}" in told.stderr


def test_nsqlookupd_and_nsqd_find_each_other(tmp_path: Path) -> None:
    with running("nsqlookupd", "-broadcast-address=127.0.0.1") as (registry, known):
        with running("nsqd", f"-data-path={tmp_path}", "-broadcast-address=127.0.0.1",
                     "-lookupd-tcp-address", known["TCP"]) as (_, at):  # fmt: skip
            ask(at["HTTP"], "POST", "/topic/create?topic=t")
            found: Any = None
            end = time.monotonic() + 60
            while found is None and time.monotonic() < end:
                told = ask(known["HTTP"], "GET", "/lookup?topic=t")
                if told.status == 200 and json.loads(told.body)["producers"]:
                    found = json.loads(told.body)["producers"][0]
            assert f"127.0.0.1:{found['tcp_port']}" == at["TCP"]
        registry.send_signal(signal.SIGINT)
        assert registry.wait(20) == 0


@pytest.mark.parametrize(
    ("arguments", "status", "said"),
    [
        (
            ["-data-path=nowhere/at/all"],
            1,
            "FATAL: failed to instantiate nsqd - failed to lock data-path: open nowhere/at/all",
        ),
        (["-tcp-address=127.0.0.1:99999"], 1, "listen (127.0.0.1:99999) failed"),
        (["-http-address=127.0.0.1:x"], 1, "listen (127.0.0.1:x) failed"),
        (["-tcp-address=256.1.1.1:99"], 1, "FATAL: failed to run nsqd - cannot listen on 256.1.1.1:99"),
        (["-node-id=5000"], 1, "FATAL: failed to instantiate nsqd - --node-id must be [0,1024)"),
        (["-max-deflate-level=20"], 1, "--max-deflate-level must be [1,9]"),
        (["-e2e-processing-latency-percentile=2"], 1, "invalid E2E processing latency percentile: 2"),
        (["-config=nowhere.toml"], 1, "FATAL: failed to load config file nowhere.toml - open nowhere.toml"),
        (["-tls-cert=nowhere", "-tls-key=nowhere"], 1, "FATAL"),
        (["-tls-client-auth-policy=bogus"], 1, "FATAL"),
        (["-tls-required=true"], 1, "FATAL"),
        (
            ["-max-rdy-count=99999999999999999999"],
            2,
            'invalid value "99999999999999999999" for flag -max-rdy-count: value out',
        ),
        (["-msg-timeout=99999999999h"], 2, "parse error"),
        (["-mem-queue-size=x"], 2, "parse error"),
        (["-heap=1"], 2, "flag provided but not defined: -heap"),
    ],
)
def test_what_nsqd_refuses_is_refused_in_its_way(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, arguments: list[str], status: int, said: str
) -> None:
    monkeypatch.chdir(tmp_path)
    free = ["-tcp-address=127.0.0.1:0", "-http-address=127.0.0.1:0"]
    told = run("nsqd", *free, *arguments)
    assert told.returncode == status
    assert said in told.stderr
    assert "Traceback" not in told.stderr


def test_one_port_for_two_listeners_is_refused(tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
    told = run("nsqd", f"-tcp-address=127.0.0.1:{port}", f"-http-address=127.0.0.1:{port}", f"-data-path={tmp_path}")
    assert told.returncode == 1
    assert "FATAL" in told.stderr


def test_an_address_of_a_lookupd_that_is_none_is_told_and_all_else_works(tmp_path: Path) -> None:
    with running("nsqd", f"-data-path={tmp_path}", "-lookupd-tcp-address=bad") as (_, at):
        assert ask(at["HTTP"], "GET", "/ping").body == b"OK"


def test_debug_is_open_as_at_nsqd(tmp_path: Path) -> None:
    with running("nsqd", f"-data-path={tmp_path}") as (_, at):
        assert ask(at["HTTP"], "POST", "/debug/freememory").status == 200
        assert ask(at["HTTP"], "GET", "/debug/stacks").status == 200
        assert ask(at["HTTP"], "GET", "/debug/nothing").status == 404


def test_nsqd_cannot_mistake_our_table_for_its_own(tmp_path: Path) -> None:
    """Go's decoder takes field names in any case: the table of topics is then a sentence, and nsqd ends."""
    with running("nsqd", f"-data-path={tmp_path}") as (_, at):
        ask(at["HTTP"], "POST", "/pub?topic=t", b"x")
    table = json.loads((tmp_path / "nsqd.dat").read_text())
    assert [topic["name"] for topic in table["topics"]] == ["t"]
    assert isinstance(table["TOPICS"], str)
    with running("nsqd", f"-data-path={tmp_path}") as (_, at):  # we do
        (topic,) = json.loads(ask(at["HTTP"], "GET", "/stats?format=json").body)["topics"]
        assert topic["depth"] == 1
