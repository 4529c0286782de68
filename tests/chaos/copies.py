"""What a replica set has twice: records that are damaged on one side (H-11), and staged rows whose master is killed (H-14).

H-11    every message is read, at the master and at the slave, whatever bits were flipped in one of the copies
H-14    what was sealed is published by whoever is the master; what was answered as published is there; each row once
"""

from __future__ import annotations

import random
import struct
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

import penstock
from chaos.replicas import make_faulty, objection
from fronts.raw_peer import RawPeer
from ha_parts import SMALL, Process, eventually
from penstock.client.staging import Sealed, SinkRun, StageClient, Stager
from penstock.errors import ClientError
from penstock.log import sidelayout
from penstock.log.comparing import compare
from penstock.log.verify import verify
from penstock.wire.record import BatchItem, encode_batch, iter_records
from registration.test_roles import Pair

Tell = Callable[[str], None]
TOPIC = "orders"
RUN = SinkRun("sink", "query", "run")
QUEUES, ROWS, MESSAGES = 2, 200, 150
READ_S = 60


class Set(Pair):
    """Two nodes, perhaps with a planted defect; `first` is the master."""

    def __init__(self, folder: Path, defect: str) -> None:
        super().__init__(folder, topic=f'[{{"name":"{TOPIC}","queues":{QUEUES}}}]')
        self.nodes = {"a": self.a, "b": self.b}
        self.first = "a"
        for name, node in self.nodes.items():
            if defect:
                make_faulty(node, folder / f"{name}.disk", defect)

    @property
    def other(self) -> str:
        return "b" if self.first == "a" else "a"

    def master(self) -> Process:
        return self.nodes[self.first]

    def kill_and_promote(self) -> None:
        """The master is killed at once, the other one takes its place."""
        self.master().kill()
        self.first = self.other
        eventually(lambda: self.ha("promote", "--node", self.first).returncode == 0, 60)
        eventually(lambda: self.rows().get(self.first, {}).get("role") == "master", 60)

    def heal(self) -> None:
        """Both are there again."""
        self.nodes[self.other].start()
        self.in_sync(self.first, self.other)


def read(process: Process) -> list[bytes]:
    """All bodies, as this node gives them to a reader that goes on where it is told."""
    found = []
    with RawPeer(process.addresses["remoting"]) as peer:
        for queue_id in range(QUEUES):
            offset, idle_at = 0, time.monotonic() + READ_S
            while time.monotonic() < idle_at:
                answer = peer.pull(TOPIC, queue_id, offset, sysFlag=6, suspendTimeoutMillis=15_000)
                if answer.code == 0:
                    found += [record.body for record in iter_records(answer.body)]
                offset = int(answer.ext["nextBeginOffset"])
                if offset >= int(answer.ext["maxOffset"]):
                    break
    return sorted(found)


def flip(folder: Path, chance: random.Random, end: int) -> str:
    """One bit of the log or of its sums."""
    first = chance.randrange(0, end, SMALL["mapped_file_size_commit_log"])
    first -= first % SMALL["mapped_file_size_commit_log"]
    limit = min(end - first, SMALL["mapped_file_size_commit_log"])
    if chance.random() < 0.3:
        path = folder / "checksums" / f"{first:020d}"
        used = len(path.read_bytes().rstrip(b"\0"))
        at = chance.randrange(sidelayout.HEAD_BYTES, used)
    else:
        path = folder / "commitlog" / f"{first:020d}"
        at = chance.randrange(limit * 3 // 4)  # not the blank that ends a segment
    data = bytearray(path.read_bytes())
    data[at] ^= 1 << chance.randrange(8)
    path.write_bytes(data)
    return f"{path.parent.name}/{path.name}@{at}"


def damage(made: Set, rounds: int, chance: random.Random, tell: Tell) -> None:
    """H-11, so many times."""
    sent: list[bytes] = []
    for number in range(rounds):
        with penstock.Producer(made.name_server) as producer:
            for n in range(MESSAGES):
                body = b"%d/%d " % (number, n) + b"d" * chance.randrange(600)
                eventually(lambda body=body: producer.send(penstock.Message(TOPIC, body)).status is not None)  # type: ignore[misc]
                sent.append(body)
        made.in_sync(made.first, made.other)
        for process in (made.nodes[made.other], made.master()):
            process.stop()
        side = chance.choice("ab")
        store = made.nodes[side].folder
        end = verify(store).end
        bits = [flip(store, chance, end) for _ in range(chance.randrange(1, 6))]
        for name in (made.first, made.other):
            made.nodes[name].start()
        made.in_sync(made.first, made.other)
        for name in "ab":
            got = read(made.nodes[name])
            assert got == sorted(sent), (
                f"H-11: {len(sent) - len(got)} messages are missing at {name} after {bits} of {side}"
            )
        tell(f"{number + 1}/{rounds} damage of {side}: {len(bits)} bits, {len(sent)} messages read at both")


def piece(queue_id: int, bodies: list[bytes]) -> bytes:
    messages = encode_batch(BatchItem(body, b"") for body in bodies)
    rest = struct.pack(">BB6siiqI", 0, len(TOPIC), TOPIC.encode(), queue_id, 0, 1_700_000_000_000, len(bodies))
    return struct.pack(">I", len(rest) + len(messages)) + rest + messages


def task(client: StageClient, batch: int, number: int, bodies: list[bytes]) -> Sealed:
    stager = Stager(client, RUN, batch)
    for at in range(0, len(bodies), 50):
        stager.add("broker-a", piece(number % QUEUES, bodies[at : at + 50]), len(bodies[at : at + 50]))
    return stager.seal()


def staged(made: Set, rounds: int, chance: random.Random, tell: Tell) -> None:
    """H-14, so many times: the master is killed behind a SEAL, or behind the answer of a PUBLISH, as often as that."""
    answers = [n % 2 == 0 for n in range(rounds)]
    chance.shuffle(answers)
    with StageClient(made.name_server, patience_s=60) as client:
        published: list[bytes] = []
        for batch, answered in enumerate(answers):
            made.in_sync(made.first, made.other)
            rows = [[b"%d/%d/%d " % (batch, n, row) + b"r" * 200 for row in range(ROWS)] for n in range(3)]
            sealed = [task(client, batch, n, bodies) for n, bodies in enumerate(rows)]
            if answered:
                client.publish(RUN, batch, sealed)
            made.kill_and_promote()
            new = sorted(row for bodies in rows for row in bodies)
            if answered:
                got = read(made.master())
                assert got == sorted(published + new), f"H-14: {len(new)} rows were published, {len(got)} are there"
            try:
                again = client.publish(RUN, batch, sealed)
            except ClientError as error:
                raise AssertionError(f"H-14: what was sealed cannot be published: {error}") from error
            assert again.already is answered, "H-14: published twice"
            published += new
            assert read(made.master()) == sorted(published), "H-14: not each row once"
            made.heal()
            tell(
                f"{batch + 1}/{rounds} killed behind {'PUBLISH' if answered else 'SEAL'}: {len(published)} rows, each once"
            )


def run(
    part: Callable[[Set, int, random.Random, Tell], None], rounds: int, tell: Tell, *, seed: int, defect: str = ""
) -> None:
    """One of the two; the logs are one at the end."""
    chance = random.Random(seed)
    with tempfile.TemporaryDirectory(prefix="penstock-chaos-") as name:
        made = Set(Path(name), defect)
        try:
            made.start()
            part(made, rounds, chance, tell)
        finally:
            made.stop()
        if not defect:
            told = compare(*(made.folder / one for one in "ab"))
            assert told.same == told.shared, f"the logs differ: {told}"
            assert all(verify(made.folder / one).ok for one in "ab"), "a store that is not sound"


DEFECTS: dict[str, Callable[[Set, int, random.Random, Tell], None]] = {
    "damage passed over": damage, "sealed alone": staged, "published alone": staged,
}  # fmt: skip


def find(defect: str, *, seed: int = 0, rounds: int = 10) -> str:
    """What the oracle says of brokers with a planted defect."""
    return objection(lambda tell: run(DEFECTS[defect], rounds, tell, seed=seed, defect=defect))


def campaign(times: int, tell: Tell, seed: int) -> None:
    """`./run chaos ha`; `times` 0: the short one."""
    run(damage, 20 * times or 2, tell, seed=seed)
    run(staged, 20 * times or 2, tell, seed=seed)
    for defect in DEFECTS:
        tell(f"planted: {defect:20} {find(defect, seed=seed)[:90]}")
