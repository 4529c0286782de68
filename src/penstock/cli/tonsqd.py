"""`penstock export --to nsqd`: the data folder of a stopped broker as one that nsqd starts on."""

from __future__ import annotations

from pathlib import Path

import click

from penstock.cli.tools import print_rows, printable
from penstock.errors import ConfigError

NSQD_BODY_BYTES = 1 << 20  # nsqd's -max-msg-size where none is given


def write(data: str, folder: str, logs: bool, as_json: bool) -> None:
    """Write the folder and say what is in it. ConfigError, Locked."""
    from penstock.broker.broker import Broker
    from penstock.broker.nsq.export import export, unnameable
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
        left = unnameable(broker) if logs else []
    finally:
        broker.close()
    print_rows(rows, as_json)
    if left:
        click.echo(f"penstock: left out, for nsqd takes no such name: {', '.join(map(printable, left))}", err=True)
        click.echo("  `penstock export` and `penstock dlq export` write their messages as JSON lines.", err=True)
    largest = max((row["largest"] for row in rows), default=0)
    if largest > NSQD_BODY_BYTES:
        click.echo(f"penstock: start nsqd with -max-msg-size={largest}: it throws away what is larger", err=True)
