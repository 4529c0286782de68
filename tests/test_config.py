"""Settings: file, environment, flags, and what cannot be obeyed."""

from __future__ import annotations

from pathlib import Path

import pytest

from penstock.config import BrokerConfig, load
from penstock.errors import ConfigError


def broker(flags: dict[str, object] | None = None, file: Path | None = None, **environment: str) -> BrokerConfig:
    return load(BrokerConfig, "broker", str(file) if file else None, flags or {}, environment)


def test_the_last_one_wins(tmp_path: Path) -> None:
    file = tmp_path / "p.toml"
    file.write_text('[broker]\nlevel = "disk"\nbroker_name = "f"\n[[topic]]\nname = "bank*"\nlevel = "disk"\n')
    config = broker({"level": "os"}, file, PENSTOCK_BROKER__BROKER_NAME="e", PENSTOCK_BROKER__LEVEL="disk")
    assert (config.level, config.broker_name) == ("os", "e")
    assert config.topic == ({"name": "bank*", "level": "disk"},)


def test_sizes_durations_truths() -> None:
    config = broker(
        {"mapped_file_size_commit_log": "64MiB", "register_broker_period_ms": "1m30s", "long_polling_enable": "off"}
    )
    assert config.mapped_file_size_commit_log == 64 << 20
    assert config.register_broker_period_ms == 90_000
    assert config.long_polling_enable is False
    assert broker({"register_broker_period_ms": "250ms"}).register_broker_period_ms == 250


@pytest.mark.parametrize(
    ("flags", "words"),
    [
        ({"levle": "os"}, "level"),
        ({"remoting_port": "many"}, "number"),
        ({"long_polling_enable": "perhaps"}, "true or false"),
        ({"topic": "bank*"}, '"name": "bank*"'),
    ],
)
def test_errors_say_what_to_do(flags: dict[str, object], words: str) -> None:
    with pytest.raises(ConfigError) as caught:
        broker(flags)
    assert words in caught.value.hint


@pytest.mark.parametrize("line", ["data = 5", "data = true", "broker_name = 1.5", "level = inf", "admin_token = 1_000"])
def test_a_text_is_in_quotes(tmp_path: Path, line: str) -> None:
    """data = 5 would make a folder of that name."""
    file = tmp_path / "p.toml"
    file.write_text(f"[broker]\n{line}\n")
    with pytest.raises(ConfigError, match="cannot be") as caught:
        broker(file=file)
    assert "in quotes" in caught.value.hint
    file.write_text("[broker]\ntls_required = true\ne2e_processing_latency_percentile = 0.99\n")
    assert (broker(file=file).tls_required, broker(file=file).e2e_processing_latency_percentile) == ("True", "0.99")


def test_rules_of_topics_come_from_anywhere(tmp_path: Path) -> None:
    file = tmp_path / "p.toml"
    file.write_text('[broker]\ntopic = [{name = "bank*"}]\n')
    rules = ({"name": "bank*"},)
    assert broker(file=file).topic == rules
    assert broker(PENSTOCK_BROKER__TOPIC='[{"name": "bank*"}]').topic == rules
    for wrong in ("topic = 5", 'topic = ["bank*"]', 'topic = "bank*"'):
        file.write_text(f"[broker]\n{wrong}\n")
        with pytest.raises(ConfigError, match="not a list of rules"):
            broker(file=file)
    with pytest.raises(ConfigError, match="not a list of rules"):
        broker(PENSTOCK_BROKER__TOPIC="[" * 100_000)


def test_unknown_names_in_a_file_and_in_the_environment(tmp_path: Path) -> None:
    file = tmp_path / "p.toml"
    file.write_text("[brokers]\n")
    with pytest.raises(ConfigError, match="unknown table"):
        broker(file=file)
    file.write_text("[broker\n")
    with pytest.raises(ConfigError):
        broker(file=file)
    with pytest.raises(ConfigError, match="unknown setting"):
        broker(PENSTOCK_BROKER__LEVLE="os")


@pytest.mark.parametrize("name", ["max_topics", "max_groups", "max_channels_per_topic", "max_in_flight_per_channel"])
def test_none_at_all_is_no_limit(name: str) -> None:
    """Of other limits 0 means any number, so 0 here is a slip that would refuse everything."""
    with pytest.raises(ConfigError, match=f"{name} cannot be 0") as caught:
        broker({name: "0"})
    assert caught.value.hint.startswith("It is 1 to ")
    assert getattr(broker({name: "1"}), name) == 1


def test_properties_that_clients_add_themselves_have_room() -> None:
    """An id and the name of the cluster: with less every message of our own client would be refused."""
    for least in ("0", "1", "99"):
        with pytest.raises(ConfigError, match=f"max_properties_size cannot be {least}") as caught:
            broker({"max_properties_size": least})
        assert caught.value.hint == "It is 100 to 32767."
    assert broker({"max_properties_size": "100"}).max_properties_size == 100


def test_a_header_in_json_holds_its_fields() -> None:
    """They are an object within it: at a depth of 1 no client is heard."""
    with pytest.raises(ConfigError, match="max_json_depth cannot be 1"):
        broker({"max_json_depth": "1"})
    assert broker({"max_json_depth": "2"}).max_json_depth == 2
