"""Source and sink with TLS: a table written to a broker that takes nothing else, and read back; the secret stays hidden."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("pyspark")

from certificates import Authority, Certificate
from penstock.embedded import ThreadedBroker
from penstock.errors import ConfigError
from penstock.security import Security
from penstock.spark.read import options as readoptions
from penstock.spark.write import options as writeoptions

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
