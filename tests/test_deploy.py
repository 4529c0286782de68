"""What is shipped for running it: the names in it are the broker's, and its commands are commands that there are."""

from __future__ import annotations

import configparser
import json
import re
import shlex
import urllib.request
from pathlib import Path

import pytest
import yaml

from commands import read
from penstock import Message, Producer
from penstock.cli.main import set_flags
from penstock.config import BrokerConfig
from penstock.fronts.figures import FAMILIES
from penstock.testing import Broker
from test_docs import OPERATION

ROOT = Path(__file__).parents[1]
DEPLOY = ROOT / "deploy"
RULES = (DEPLOY / "alerts.yml").read_text()
METRIC = re.compile(r"\bpenstock_(\w+)")
LABELS = {"instance", "job", "topic", "group", "channel", "limit", "node", "severity"}


def test_every_metric_that_is_named_is_one() -> None:
    for name in ("alerts.yml", "grafana-dashboard.json"):
        found = set(METRIC.findall((DEPLOY / name).read_text()))
        assert len(found) > 10
        assert not found - set(FAMILIES), name


def test_rules() -> None:
    rules = re.findall(
        r"- alert: (\w+)\n\s+expr: (.+)\n(?:\s+for: (\w+)\n)?\s+labels: (.+)\n\s+annotations: (.+)\n", RULES
    )
    assert len(rules) == RULES.count("- alert: ") >= 10
    assert len({name for name, *_ in rules}) == len(rules)
    page = (ROOT / "docs/howto/troubleshooting.md").read_text()
    anchors = {
        re.sub(r"[^a-z0-9 -]", "", title.lower()).replace(" ", "-") for title in re.findall(r"^## (.+)$", page, re.M)
    }
    for name, expression, _, labels, about in rules:
        assert re.search(r"severity: (page|ticket)", labels), name
        assert re.search(r'summary: "[^"]+"', about), name
        (anchor,) = re.findall(r'runbook: "docs/howto/troubleshooting.md#([\w-]+)"', about)
        assert anchor in anchors, name
        assert set(re.findall(r"\$labels\.(\w+)", about)) <= LABELS, name
        assert METRIC.search(expression), name
        for one in METRIC.findall(expression):
            kind, _ = FAMILIES[one]
            counted = re.search(rf"(rate|increase)\(penstock_{one}\b", expression) is not None
            assert counted == (kind == "counter"), f"{name}: {one} is a {kind}"


def test_the_dashboard() -> None:
    board = json.loads((DEPLOY / "grafana-dashboard.json").read_text())
    panels = board["panels"]
    assert len({panel["id"] for panel in panels}) == len(panels) > 10
    for panel in panels:
        assert panel["title"]
        for target in panel["targets"]:
            for one in METRIC.findall(target["expr"]):
                counted = re.search(rf"(rate|increase)\(penstock_{one}\b", target["expr"]) is not None
                assert counted == (FAMILIES[one][0] == "counter"), (panel["title"], one)
            assert set(re.findall(r"{{(\w+)}}", target["legendFormat"])) <= LABELS


def test_dead_letters_and_the_disk_are_in_the_metrics() -> None:
    with Broker() as broker:
        with Producer(broker.registry) as producer:
            producer.send(Message("%DLQ%billing", b"x"))
        text = urllib.request.urlopen(f"http://{broker.http}/metrics").read().decode()
    assert 'penstock_messages_in_total{topic="%DLQ%billing"} 1' in text
    free, size = (float(re.search(rf"^penstock_disk_{name}_bytes (\S+)$", text, re.M)[1]) for name in ("free", "size"))  # type: ignore[index]
    assert 0 < free <= size


def test_the_unit() -> None:
    unit = configparser.ConfigParser(strict=False, interpolation=None)
    unit.optionxform = str  # type: ignore[assignment,method-assign]
    unit.read_string((DEPLOY / "penstock.service").read_text())
    service = unit["Service"]
    assert (service["Type"], service["User"], service["KillSignal"]) == ("notify", "penstock", "SIGTERM")
    program, *words = shlex.split(service["ExecStart"])
    read(" ".join([Path(program).name, *words]))
    assert "HUP" in service["ExecReload"]


def test_the_image() -> None:
    text = (DEPLOY / "Dockerfile").read_text().replace("\\\n", " ")
    lines = [line.split(None, 1) for line in text.splitlines() if line and not line.startswith("#")]
    assert [rest for word, rest in lines if word == "USER"] == ["penstock"]
    health = next(rest for word, rest in lines if word == "HEALTHCHECK")
    read(" ".join(json.loads(health[health.index("CMD ") + 4 :])))
    (entry,), (command,) = (
        [json.loads(rest) for word, rest in lines if word == wanted] for wanted in ("ENTRYPOINT", "CMD")
    )
    read(" ".join([*entry, *command]))
    assert all(":" in rest.split()[0] for word, rest in lines if word == "FROM")  # a version, not the latest


def test_the_compose_file() -> None:
    services = yaml.safe_load((DEPLOY / "compose.yaml").read_text())["services"]
    assert set(services) == {"penstock", "prometheus", "grafana"}
    words = services["penstock"]["command"]
    read(shlex.join(["penstock", *words]))
    said = [word for word in words if "=" in word]
    assert set(set_flags(tuple(said), "broker", "registry")["broker"]) >= {"insecure", "advertise", "allowed_hosts"}
    assert (DEPLOY / services["penstock"]["build"]["dockerfile"].removeprefix("deploy/")).is_file()
    for service in services.values():
        assert all(port.startswith("127.0.0.1:") for port in service["ports"])
        for volume in service["volumes"]:
            source = volume.split(":")[0]
            assert "/" not in source or (DEPLOY / source).is_file(), source
    for service in (services["prometheus"], services["grafana"]):
        assert re.fullmatch(r"[\w/]+:v?\d+\.\d+\.\d+", service["image"])
    scraped = yaml.safe_load((DEPLOY / "compose/prometheus.yml").read_text())
    ((target,),) = (one["static_configs"][0]["targets"] for one in scraped["scrape_configs"])
    assert target == f"penstock:{BrokerConfig().http_port}"
    assert scraped["scrape_configs"][0]["job_name"] in RULES
    source = yaml.safe_load((DEPLOY / "compose/datasource.yml").read_text())["datasources"][0]
    assert source["url"] == "http://prometheus:9090"
    assert yaml.safe_load((DEPLOY / "compose/dashboards.yml").read_text())["providers"][0]["type"] == "file"


@pytest.mark.parametrize("page", OPERATION)
def test_the_commands_of_the_pages_on_operation(page: str) -> None:
    text = (ROOT / f"docs/howto/{page}.md").read_text()
    lines = [line for block in re.findall(r"^```sh op\n(.*?)^```", text, re.S | re.M) for line in block.splitlines()]
    assert lines
    for line in lines:
        read(line)
