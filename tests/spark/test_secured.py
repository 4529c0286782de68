"""Source and sink with TLS: a table written to a broker that takes nothing else, and read back; the secret stays hidden."""

from __future__ import annotations

import socket
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("pyspark")

from access.people import SECRET as SECRET_OF
from access.people import user, write
from certificates import Authority, Certificate
from penstock.client.blocking import Producer
from penstock.client.staging import StageClient
from penstock.embedded import ThreadedBroker
from penstock.errors import ConfigError, ConnectionLost, NotTrusted
from penstock.message import Message
from penstock.security import Security
from penstock.spark.read import options as readoptions
from penstock.spark.read.source import connection
from penstock.spark.tools.plainly import plainly
from penstock.spark.write import options as writeoptions
from penstock.testing import Broker

SECRET = "s3cret-of-spark"
MODES = {"remoting_tls": "required", "registry_tls": "required"}


@pytest.fixture
def secret_file(tmp_path: Path) -> str:
    file = tmp_path / "secret"
    file.write_text(SECRET + "\n")
    file.chmod(0o600)
    return str(file)


@pytest.mark.spark
@pytest.mark.filterwarnings("ignore")
def test_there_and_back(spark: Any, authority: Authority, server_certificate: Certificate, secret_file: str) -> None:
    with ThreadedBroker(**server_certificate.settings, **MODES) as broker:
        options = {
            "registry": broker.registry, "tls": "true", "tlsCa": str(authority.cert), "user": "spark",
            "secretFile": secret_file,
        }  # fmt: skip
        frame = spark.range(300).selectExpr("cast(id as string) as value")
        frame.repartition(3).write.format("penstock").options(**options).mode("append").save("t")
        read = spark.read.format("penstock").options(**options).load("t")
        assert sorted(int(bytes(row["value"])) for row in read.collect()) == list(range(300))
        plan = read._jdf.queryExecution().toString() + read._jdf.queryExecution().explainString(
            spark._jvm.org.apache.spark.sql.execution.ExplainMode.fromString("extended")
        )
        assert SECRET not in plan
        assert "Batch" in plan


def test_topic_and_group_are_all_that_a_reader_needs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Everything is asked as the group that was granted, also what the broker's own files are compared with."""
    from pyspark.sql.types import LongType, StructField, StructType

    from penstock.spark.pipelines import archive
    from penstock.spark.read.source import Source

    users = write(
        tmp_path / "users.toml", user("root", "admin"), user("spark", "subscribe:t", "group:spark-penstock-source"),
        user("archive", "subscribe:t", "group:penstock-archive"),
    )  # fmt: skip
    with Broker(tmp_path / "data", users=str(users)) as broker:
        with Producer(broker.registry, security=Security(user="root", secret=SECRET_OF + "root")) as producer:
            producer.send_batch([Message("t", b"%d" % n) for n in range(20)], queue=producer.queues("t")[0])
        monkeypatch.setenv("PENSTOCK_USER", "spark")
        monkeypatch.setenv("PENSTOCK_SECRET", SECRET_OF + "spark")
        source = Source({"registry": broker.registry, "path": "t", "store": str(tmp_path / "data")})
        reader = source.reader(StructType([StructField("offset", LongType())]))
        found = [n for part in reader.partitions() for batch in reader.read(part) for n in batch[0].to_pylist()]
        assert found == list(range(20))
        monkeypatch.setenv("PENSTOCK_USER", "archive")
        monkeypatch.setenv("PENSTOCK_SECRET", SECRET_OF + "archive")
        assert archive.run(None, "t", tmp_path / "archive", registry=broker.registry).rows == 20


@pytest.mark.parametrize("parse", [readoptions.parse, writeoptions.parse], ids=["source", "sink"])
def test_options_come_before_the_environment(
    parse: Any, monkeypatch: pytest.MonkeyPatch, secret_file: str, authority: Authority
) -> None:
    of = {"path": "t"}
    assert parse(of).security == Security()
    monkeypatch.setenv("PENSTOCK_USER", "env")
    monkeypatch.setenv("PENSTOCK_SECRET", "of the environment")
    assert parse(of).security == Security(user="env", secret="of the environment")
    mine = parse({**of, "USER": "me", "secretFile": secret_file, "tls": "true", "tlsCa": str(authority.cert)})
    assert mine.security == Security(True, str(authority.cert), user="me", secret=SECRET)
    assert SECRET not in repr(mine)
    with pytest.raises(ConfigError, match="unknown option") as caught:
        parse({**of, "secret": SECRET})
    assert SECRET not in f"{caught.value}{caught.value.hint}"
    with pytest.raises(ConfigError, match="not on"):
        parse({**of, "tlsCa": "x"})


@pytest.mark.parametrize("parse", [readoptions.parse, writeoptions.parse], ids=["source", "sink"])
def test_what_is_missing_is_said_in_the_words_of_the_options(
    parse: Any, monkeypatch: pytest.MonkeyPatch, secret_file: str, authority: Authority, client_certificate: Certificate
) -> None:
    ca, cert, key = str(authority.cert), str(client_certificate.cert), str(client_certificate.key)
    on = {"tls": "true"}
    for given, says, helps in (
        ({"user": "me"}, "option user = 'me': there is no secret", "secretFile"),
        ({"secretFile": secret_file}, f"option secretFile = '{secret_file}': there is no user", "option user"),
        ({"tlsCa": ca}, f"option tlsCa = '{ca}': TLS is not on", "tls = true"),
        ({"insecureSkipHostname": "true"}, "option insecureSkipHostname = True: TLS is not on", "tls = true"),
        ({**on, "tlsKey": key}, f"option tlsKey = '{key}': there is no certificate", "tlsCert"),
        (
            {**on, "tlsCa": "/nowhere"},
            "option tlsCa = '/nowhere': TLS files cannot be used: tls_ca = '/nowhere'",
            "tls_ca",
        ),
        ({**on, "tlsCa": key}, f"option tlsCa = '{key}': TLS files cannot be used", "tls_ca"),
        (
            {**on, "tlsCert": "/nowhere", "tlsKey": key},
            "option tlsCert = '/nowhere': TLS files cannot be used",
            "tls_key",
        ),
        (
            {**on, "tlsCert": cert, "tlsKey": "/nowhere"},
            f"option tlsCert = '{cert}': TLS files cannot be used",
            "tls_key",
        ),
    ):
        with pytest.raises(ConfigError) as caught:
            parse({"path": "t", **given})
        assert str(caught.value).startswith(says)
        assert helps in caught.value.hint
        assert "PENSTOCK_" not in f"{caught.value}{caught.value.hint}"
    assert parse({"path": "t", **on, "tlsCa": ca, "tlsCert": cert, "tlsKey": key}).security.context is not None
    assert parse({"path": "t", "tls": "false", "insecureSkipHostname": "false"}).security == Security()
    monkeypatch.setenv("PENSTOCK_USER", "env")
    monkeypatch.setenv("PENSTOCK_SECRET", "of env")
    with pytest.raises(ConfigError, match=r"^option user = 'me': there is no secret of this user: .* that of env$"):
        parse({"path": "t", "user": "me"})
    assert parse({"path": "t", "user": "env"}).security == Security(user="env", secret="of env")
    assert parse({"path": "t", "secretFile": secret_file}).security == Security(user="env", secret=SECRET)
    monkeypatch.delenv("PENSTOCK_USER")
    monkeypatch.delenv("PENSTOCK_SECRET")
    monkeypatch.setenv("PENSTOCK_TLS", "true")
    monkeypatch.setenv("PENSTOCK_TLS_CERT", cert)
    monkeypatch.setenv("PENSTOCK_TLS_KEY", key)
    assert parse({"path": "t", "tlsCa": ca}).security == Security(True, ca, cert, key)
    with pytest.raises(ConfigError, match="option tls = 'false': there are settings for TLS in the environment"):
        parse({"path": "t", "tls": "false"})


def test_a_certificate_of_an_authority_that_is_not_trusted_names_the_option(
    authority: Authority, server_certificate: Certificate, client_certificate: Certificate
) -> None:
    with Broker(**server_certificate.settings, **MODES) as broker:
        given = {"registry": broker.registry, "path": "t", "tls": "true", "tlsCa": str(client_certificate.cert)}
        with pytest.raises(NotTrusted, match="option tlsCa names the file of the authorities"):
            plainly(lambda: connection(readoptions.parse(given)).topics())()


@pytest.mark.parametrize("server", ["required", "off"])
def test_a_broker_that_has_tls_otherwise_names_the_option(
    authority: Authority, server_certificate: Certificate, server: str
) -> None:
    """It only ends the connection: `closed by the peer`, and whether a broker was there at all, was all that was said."""
    modes = {"remoting_tls": server, "registry_tls": server}
    with Broker(**(server_certificate.settings if server == "required" else {}), **modes) as broker:
        given = {"registry": broker.registry, "path": "t"}
        if server == "off":
            given |= {"tls": "true", "tlsCa": str(authority.cert)}
        with pytest.raises(ConnectionLost, match=r"takes TLS alone, or none, .* the option tls$"):
            plainly(lambda: connection(readoptions.parse(given)).topics())()


def test_a_certificate_that_is_not_trusted_is_not_waited_for(
    authority: Authority,
    server_certificate: Certificate,
    client_certificate: Certificate,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """As a broker that is away it was, for two minutes; of two registries the other one may be there again."""
    from pyspark.sql.types import LongType, StructField, StructType

    from penstock.spark.read import patience
    from penstock.spark.read.source import Source

    with Broker(**server_certificate.settings, **MODES) as broker:
        given = {"registry": broker.registry, "path": "t", "tls": "true", "tlsCa": str(client_certificate.cert)}
        waited: list[float] = []
        monkeypatch.setattr(patience.time, "sleep", waited.append)
        with pytest.raises(NotTrusted):
            Source(given).reader(StructType([StructField("offset", LongType())])).partitions()
        sink = writeoptions.parse(given)
        with StageClient(sink.registry, patience_s=60, security=sink.security) as staging, pytest.raises(NotTrusted):
            staging.queues_to_write("t")
        assert waited == []
        with socket.create_server(("127.0.0.1", 0)) as closed:
            away = f"127.0.0.1:{closed.getsockname()[1]}"
        for both in (f"{away};{broker.registry}", f"{broker.registry};{away}"):
            with pytest.raises(ConnectionLost) as lost:
                connection(readoptions.parse({**given, "registry": both})).topics()
            assert not isinstance(lost.value, NotTrusted)
