"""`penstock export --to nsqd` as it is typed."""

from __future__ import annotations

import json
from pathlib import Path

from click.testing import CliRunner

from penstock import Admin, Message, Producer
from penstock.cli.main import main
from penstock.cli.tonsqd import NSQD_BODY_BYTES
from penstock.testing import Broker


def test_a_stopped_broker_is_written(tmp_path: Path) -> None:
    data, folder = str(tmp_path / "data"), str(tmp_path / "nsqd")

    def typed(*words: str) -> tuple[int, str]:
        done = CliRunner().invoke(main, ["export", "--to", "nsqd", *words])
        assert done.exception is None or isinstance(done.exception, SystemExit), done.exception
        return done.exit_code, done.output

    assert typed("--data", data, folder)[0] == 2  # nothing is there
    with (
        Broker(data, max_msg_size=2 << 20) as broker,
        Admin(broker.registry) as admin,
        Producer(broker.registry) as producer,
    ):
        admin.change_queue("work", "add")
        admin.change_queue("work", "add", channel="c")
        producer.send(Message("work", b"x" * (NSQD_BODY_BYTES + 1)))
        admin.create_topic("%DLQ%g", 1)
        producer.send(Message("%DLQ%g", b"dead"))
        code, said = typed("--data", data, folder)
        assert (code, "lock" in said or "process" in said) == (2, True), said  # it runs
    code, said = typed("--data", data, folder, "--json")
    assert code == 0
    row = json.loads(said.splitlines()[0])
    assert row == {"topic": "work", "channel": "c", "messages": 1, "largest": NSQD_BODY_BYTES + 1}
    assert f"-max-msg-size={NSQD_BODY_BYTES + 1}" in said
    assert typed("--data", data, folder)[0] == 2  # not over it
    code, said = typed("--data", data, folder + "-logs", "--logs")
    assert (code, "left out, for nsqd takes no such name: %DLQ%g" in said) == (0, True)
    with Broker(data) as broker, Admin(broker.registry) as admin:  # and our folder is as it was
        assert admin.queue_topics("work")[0]["channels"][0]["depth"] == 1
