"""Prometheus and promtool as Debian has them: they take `/metrics` in both formats, our configuration and our alert rules; a rule
fires on a broker that gives it reason to.
"""

from __future__ import annotations

import json
import shutil
import subprocess
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from urllib.parse import quote

import pytest
import yaml

from fronts.http_rows import ask
from peers.conftest import CACHE, install
from penstock import Message, Producer, PullConsumer
from penstock.testing import Broker
from polling import eventually
from ports import free_port

DEPLOY = Path(__file__).parents[2] / "deploy"
UNPACK = "cd FOLDER && apt-get download -q prometheus && dpkg -x prometheus_*.deb . && rm prometheus_*.deb"


@pytest.fixture(scope="session")
def programs() -> Path:
    return install(CACHE / "prometheus-debian", ["dpkg", "--version"], ["sh", "-c", UNPACK]) / "usr/bin"


@pytest.fixture(scope="module")
def broker() -> Iterator[Broker]:
    """With a topic that has a consumer group behind, a channel, dead letters and what is delayed."""
    with Broker() as broker, Producer(broker.registry) as producer:
        for topic in ("orders", "%DLQ%billing"):
            producer.send(Message(topic, b"x"))
        producer.send(Message("orders", b"later", delay_level=18))
        ask(broker.http, "POST", "/pub?topic=q", b"x")
        ask(broker.http, "POST", "/channel/create?topic=q&channel=c")
        yield broker


def checked(*command: object) -> str:
    done = subprocess.run([*map(str, command)], capture_output=True, timeout=120)
    told = (done.stdout + done.stderr).decode()
    assert done.returncode == 0, told
    return told


def test_rules_and_configuration(programs: Path, tmp_path: Path) -> None:
    """In the folder that the compose file makes of them."""
    for source in (DEPLOY / "compose/prometheus.yml", DEPLOY / "alerts.yml"):
        shutil.copy(source, tmp_path)
    rules = (DEPLOY / "alerts.yml").read_text().count("- alert: ")
    assert f"{rules} rules found" in checked(programs / "promtool", "check", "config", tmp_path / "prometheus.yml")


def test_when_rules_fire(programs: Path, tmp_path: Path) -> None:
    """By series that promtool makes up: what must be told is, what is well is not."""
    series = {
        'penstock_healthy{job="penstock",instance="a"}': "0x10",
        'up{job="penstock",instance="a"}': "1x10",
        'penstock_start_time_seconds{job="penstock",instance="a"}': "1x10",
        'penstock_disk_free_bytes{instance="a"}': "5x10",
        'penstock_disk_size_bytes{instance="a"}': "100x10",
        'penstock_messages_in_total{instance="a",topic="%DLQ%g"}': "0+1x10",
        'penstock_messages_in_total{instance="a",topic="orders"}': "0+100x10",
        'penstock_consumer_lag_seconds{instance="a",topic="orders",group="g"}': "400x10",
        'penstock_consumer_lag_seconds{instance="a",topic="orders",group="well"}': "3x10",
        'penstock_delayed_late_seconds{instance="a"}': "0x10",
    }
    fires = {
        "PenstockCannotWrite": 1, "PenstockDiskFull": 1, "PenstockDeadLetters": 1, "PenstockConsumersBehind": 1,
        "PenstockDown": 0, "PenstockDelayedLate": 0, "PenstockLimitReached": 0, "PenstockNoCopy": 0,
    }  # fmt: skip
    rules = {one["alert"]: one for one in yaml.safe_load((DEPLOY / "alerts.yml").read_text())["groups"][0]["rules"]}
    expressions = [
        {"expr": f'count(ALERTS{{alertname="{name}",alertstate="firing"}}) or vector(0)', "eval_time": "9m",
         "exp_samples": [{"labels": "{}", "value": count}]}
        for name, count in fires.items()
    ]  # fmt: skip
    assert set(fires) <= set(rules)
    shutil.copy(DEPLOY / "alerts.yml", tmp_path)
    test = {
        "rule_files": ["alerts.yml"], "evaluation_interval": "1m",
        "tests": [{"interval": "1m", "promql_expr_test": expressions,
                   "input_series": [{"series": name, "values": values} for name, values in series.items()]}],
    }  # fmt: skip
    (tmp_path / "test.yml").write_text(yaml.safe_dump(test))
    checked(programs / "promtool", "test", "rules", tmp_path / "test.yml")


def test_metrics_are_as_promtool_wants_them(programs: Path, broker: Broker) -> None:
    """Names, types, units and help of every family, on a broker and on a registry."""
    for address in (broker.http, broker.lookup_http):
        text = ask(address, "GET", "/metrics").body
        told = subprocess.run([programs / "promtool", "check", "metrics"], input=text, capture_output=True, timeout=120)
        wrong = [line for line in told.stderr.decode().splitlines() if "counter metrics should have" not in line]
        assert wrong == [], address


def test_a_prometheus_scrapes_and_a_rule_fires(programs: Path, broker: Broker, tmp_path: Path) -> None:
    config = yaml.safe_load((DEPLOY / "compose/prometheus.yml").read_text())
    config["global"] = {"scrape_interval": "1s", "evaluation_interval": "1s"}
    targets = [broker.http, broker.lookup_http]
    config["scrape_configs"][0]["static_configs"] = [{"targets": targets}]
    (tmp_path / "prometheus.yml").write_text(yaml.safe_dump(config))
    shutil.copy(DEPLOY / "alerts.yml", tmp_path)
    address = f"127.0.0.1:{free_port()}"
    command = [
        programs / "prometheus", f"--config.file={tmp_path}/prometheus.yml", f"--storage.tsdb.path={tmp_path}/tsdb",
        f"--web.listen-address={address}",
    ]  # fmt: skip

    def api(path: str) -> Any:
        with urllib.request.urlopen(f"http://{address}/api/v1/{path}", timeout=30) as answer:
            return json.load(answer)["data"]

    def up() -> bool:
        try:
            found = api("query?query=up")["result"]
        except OSError:
            return False
        return [row["value"][1] for row in found] == ["1", "1"]

    with subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL) as prometheus:
        try:
            eventually(up)
            assert {one["health"] for one in api("targets")["activeTargets"]} == {"up"}
            with Producer(broker.registry) as producer:

                def fires() -> bool:
                    producer.send(Message("%DLQ%billing", b"x"))
                    alerts = {one["labels"]["alertname"] for one in api("alerts")["alerts"] if one["state"] == "firing"}
                    return "PenstockDeadLetters" in alerts

                eventually(fires)
            names = set(api("label/__name__/values"))
            assert {"penstock_acknowledge_seconds_bucket", "penstock_finish_attempts_count"} <= names
            rules = api("rules")["groups"][0]["rules"]
            assert {rule["health"] for rule in rules} == {"ok"}
        finally:
            prometheus.terminate()


def test_each_query_of_the_dashboard(programs: Path, tmp_path: Path) -> None:
    """Asked of a Prometheus that runs our configuration and scrapes a broker with a group and a channel: each is taken, and the
    configuration gives the two of them one label.
    """
    config = yaml.safe_load((DEPLOY / "compose/prometheus.yml").read_text())
    config["global"] = {"scrape_interval": "1s", "evaluation_interval": "1s"}
    shutil.copy(DEPLOY / "alerts.yml", tmp_path)
    address = f"127.0.0.1:{free_port()}"
    panels = json.loads((DEPLOY / "grafana-dashboard.json").read_text())["panels"]
    queries = [target["expr"] for panel in panels for target in panel["targets"]]

    def ask_it(query: str) -> list[Any]:
        text = quote(query.replace("$instance", ".*").replace("$__rate_interval", "1m"))
        with urllib.request.urlopen(f"http://{address}/api/v1/query?query={text}", timeout=30) as answer:
            told = json.load(answer)
        assert told["status"] == "success", query
        return list(told["data"]["result"])

    with Broker() as broker, Producer(broker.registry) as producer:
        config["scrape_configs"][0]["static_configs"] = [{"targets": [broker.http]}]
        (tmp_path / "prometheus.yml").write_text(yaml.safe_dump(config))
        producer.send(Message("orders", b"x" * 100))
        ask(broker.http, "POST", "/channel/create?topic=orders&channel=both")  # of a log topic, which has groups, too
        ask(broker.http, "POST", "/pub?topic=jobs", b"y" * 100)
        ask(broker.http, "POST", "/channel/create?topic=jobs&channel=mail")
        with PullConsumer(broker.registry, group="billing") as consumer:
            consumer.assign("orders", start="first")
            eventually(lambda: bool(consumer.getmany(0.1)))
            consumer.commit()
        command = [
            programs / "prometheus", f"--config.file={tmp_path}/prometheus.yml", f"--storage.tsdb.path={tmp_path}/tsdb",
            f"--web.listen-address={address}",
        ]  # fmt: skip
        log = (tmp_path / "log").open("wb")
        with log, subprocess.Popen(command, stdout=log, stderr=log) as prometheus:
            try:

                def groups() -> set[str]:
                    try:
                        return {row["metric"].get("group", "") for row in ask_it("penstock_throughput_out_bytes_total")}
                    except OSError:
                        return set()

                eventually(lambda: {"billing", "mail", "both"} <= groups())
                assert ask_it('{channel!=""}') == []
                for query in queries:
                    ask_it(query)
            finally:
                prometheus.terminate()
        told = (tmp_path / "log").read_text()
        assert "duplicate" not in told
        assert "same timestamp" not in told
