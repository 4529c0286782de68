"""`penstock export --to nsqd`: the data folder of a stopped broker as one that nsqd starts on."""

from __future__ import annotations

from pathlib import Path

import click

from penstock.cli.tools import print_rows
from penstock.errors import ConfigError

NSQD_BODY_BYTES = 1 << 20  # nsqd's -max-msg-size where none is given


def write(data: str, folder: str, logs: bool, as_json: bool) -> None:
    """Write the folder and say what is in it. ConfigError, Locked."""
    from penstock.broker.broker import Broker
    from penstock.broker.nsq.export import export
    from penstock.config import BrokerConfig
    from penstock.disk.files import Files

    if not (Path(data) / "store.json").is_file():
        raise ConfigError(f"{data} is no data folder of a broker", "Name it with --data.")
    files = Files()
    broker = Broker(BrokerConfig(data=data), files=files)
    broker.open()
    try:
        broker.time.update()
        rows = [one._asdict() for one in export(broker, files, Path(folder), logs=logs)]
    finally:
        broker.close()
    print_rows(rows, as_json)
    largest = max((row["largest"] for row in rows), default=0)
    if largest > NSQD_BODY_BYTES:
        click.echo(f"penstock: start nsqd with -max-msg-size={largest}: it throws away what is larger", err=True)
