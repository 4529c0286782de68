"""Settings that cannot hold: `config check` and a start refuse the same ones, with what to do, and never with a traceback."""

from __future__ import annotations

import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from click.testing import CliRunner

from access.people import user, write
from penstock.cli.main import main
from penstock.config import BrokerConfig, RegistryConfig, bounds, defaults, load
from penstock.errors import ConfigError
from penstock.fronts.soundness import check_files, check_settings

BROKEN = {
    "level is a number": "[broker]\nlevel = 3",
    "a port that is none": "[broker]\nremoting_port = 70000",
    "a port far below": "[broker]\nremoting_port = -5",
    "a number without end": "[broker]\nmax_topics = 99999999999999999999999999",
    "no number": "[broker]\nmax_message_size = nan",
    "a truth for a number": "[broker]\nmax_message_size = true",
    "a size that no body has": '[broker]\nmax_message_size = "64GiB"',
    "no connection ever": "[broker]\nmax_connections = 0",
    "an age without end": '[broker]\nidle_timeout_ms = "99999999999999d"',
    "an hour that is none": "[broker]\ndelete_when = 24",
    "more than all of the disk": "[broker]\ndisk_used_force_percent = 101",
    "a list for a text": '[broker]\nallowed_hosts = ["x"]',
    "a zero byte": '[broker]\nhost = "\\u0000"',
    "two lines": '[broker]\nbroker_name = "a\\nb"',
    "no name": '[broker]\nbroker_name = ""',
    "no topic's name": '[broker]\nbroker_name = "host.domain"',
    "no room for what follows the name": f'[broker]\ncluster_name = "{116 * "c"}"',
    "a master that is found as a slave": "[broker]\nbroker_id = 3",
    "a path for a name": '[broker]\nbroker_name = "../b"',
    "a port for two": "[broker]\nha_port = 10911",
    "every address, and no users": '[broker]\nhost = ""',
    "no address": '[broker]\nhost = "999.1.1.1"',
    "an address with a port": '[broker]\nhost = "127.0.0.1:80"',
    "others reach it": '[broker]\nhost = "0.0.0.0"',
    "half an address": '[broker]\nregistry = "[::1"',
    "no port": '[broker]\nstatsd_address = "x"',
    "a role": '[broker]\nrole = "king"',
    "a delay": '[broker]\nmessage_delay_level = "1s -2s"',
    "a quantile": '[broker]\ne2e_processing_latency_percentile = "99"',
    "a word of the log": '[broker]\nlog_level = "loud"',
    "a form of the log": '[broker]\nlog_format = "xml"',
    "a word of the registry's log": '[registry]\nlog_level = "loud"',
    "a certificate": '[broker]\ntls_cert = "/nothing/there"',
    "TLS without one": '[broker]\nremoting_tls = "required"',
    "an engine": '[broker]\nengine = "zk://a"',
    "no table": "broker = 3",
    "a list of brokers": "[[broker]]",
    "a table of topics": "[topic]",
    "topics that are no tables": "topic = [3]",
    "a topic without name": "[[topic]]",
    "a topic that is a number": "[[topic]]\nname = 3",
    "queues below none": '[[topic]]\nname = "x"\nqueues = -1',
    "queues that are a truth": '[[topic]]\nname = "x"\nqueues = true',
    "a level that is a list": '[[topic]]\nname = "x"\nlevel = ["os"]',
    "twice": '[broker]\nlevel = "os"\nlevel = "os"',
    "too deep": "x = " + "[" * 100_000,
}


@pytest.mark.parametrize("name", BROKEN)
def test_what_cannot_hold(name: str, tmp_path: Path) -> None:
    file = tmp_path / "p.toml"
    file.write_text(BROKEN[name])
    done = CliRunner().invoke(main, ["config", "check", "--config", str(file)])
    assert isinstance(done.exception, SystemExit), done.exception
    assert done.exit_code == 2, done.output
    assert done.stderr.startswith("penstock: ")
    assert done.stdout == ""


def test_what_is_no_text(tmp_path: Path) -> None:
    file = tmp_path / "p.toml"
    file.write_bytes(b'[broker]\nhost = "\xff"\n')
    for path in (file, tmp_path, tmp_path / "none", Path(sys.executable)):
        done = CliRunner().invoke(main, ["config", "check", "--config", str(path)])
        assert isinstance(done.exception, SystemExit), (path, done.exception)
        assert done.exit_code == 2, (path, done.output)


def test_a_start_says_the_same(tmp_path: Path) -> None:
    """Whatever `config check` refuses ends `penstock up` with 2 before it has opened anything."""

    def start(name: str) -> tuple[str, int, str]:
        file = tmp_path / f"{name}.toml".replace(" ", "-")
        file.write_text(BROKEN[name])
        role = "registry" if BROKEN[name].startswith("[registry]") else "up"
        command = [sys.executable, "-m", "penstock.cli", role, "--config", str(file), "--data", str(tmp_path / "data")]
        ports = ("registry", "lookup", "lookup-http", *(("nsq", "http") if role == "up" else ()))
        command += [word for port in ports for word in (f"--{port}-port", "0")]
        done = subprocess.run(command, capture_output=True, text=True, timeout=120)
        return name, done.returncode, done.stderr

    with ThreadPoolExecutor(4) as pool:
        for name, code, said in pool.map(start, BROKEN):
            assert code == 2, (name, said)
            assert "Traceback" not in said, name
    assert not (tmp_path / "data").exists()


def test_defaults_are_sound() -> None:
    for kind in (BrokerConfig, RegistryConfig):
        for name, value in defaults(kind).items():
            if type(value) is int:
                least, most = bounds(name)
                assert least <= value <= most, name
    check_settings(BrokerConfig(), RegistryConfig())
    check_files(BrokerConfig(), RegistryConfig())
    check_settings(None, None)


def test_a_port_of_a_broker_and_a_registry() -> None:
    with pytest.raises(ConfigError, match="registry_port and nsq_port are both 9876"):
        check_settings(BrokerConfig(nsq_port=9876), RegistryConfig())
    check_settings(BrokerConfig(nsq_port=9876, nsq_host="127.0.0.2"), RegistryConfig())
    check_settings(BrokerConfig(nsq_port=0, http_port=0), RegistryConfig(lookup_port=-1, lookup_http_port=-1))


def test_each_number_has_an_end(tmp_path: Path) -> None:
    for section, kind in (("broker", BrokerConfig), ("registry", RegistryConfig)):
        for name, value in defaults(kind).items():
            if type(value) is int:
                for number in (bounds(name)[0] - 1, bounds(name)[1] + 1, 10**30):
                    with pytest.raises(ConfigError, match=name):
                        load(kind, section, None, {name: number}, {})  # type: ignore[type-var]


def test_users_of_the_data_folder(tmp_path: Path) -> None:
    """A broker that others reach starts where there are users: the check looks for them where the start does."""
    file, data = tmp_path / "p.toml", tmp_path / "data"
    file.write_text('[broker]\nhost = "0.0.0.0"\n[registry]\nhost = "0.0.0.0"\n')
    assert CliRunner().invoke(main, ["config", "check", "--config", str(file), "--set", "insecure=true"]).exit_code == 0
    data.mkdir()
    words = ["config", "check", "--config", str(file), "--data", str(data)]
    assert CliRunner().invoke(main, words).exit_code == 2
    write(data / "users.toml", user("root", "admin"))
    done = CliRunner().invoke(main, words)
    assert done.exit_code == 0, done.output
    (data / "users.toml").write_text("[[user]]\nname = 3\n")
    assert CliRunner().invoke(main, words).exit_code == 2
