"""/healthz and /ready: whether a restart would help, and whether messages are taken now. Neither needs a login.

`/healthz` is 500 only for what a restart mends: a flush that failed, a step of the loop that fails again and again.
`/ready` is 503 with the reasons while messages are not stored: a full disk, too, a disk that does not answer, or no memory or
descriptor for a file. A slave is ready when it can be read.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

from penstock.broker.broker import Broker
from penstock.broker.reserve import BYTES as ROOM_BYTES
from penstock.errors import StoreError
from penstock.fronts.site import JSON, TEXT, Answer, Handler, Request, dumps
from penstock.log import status
from penstock.version import __version__

HANGING_S = 10.0  # a flush that takes so long is no slow one: a broker of a slow disk must not come and go
_PERCENT = 100


def faults_of(broker: Broker, failing: Mapping[str, str]) -> list[str]:
    """What a restart mends."""
    if not broker.queueing.healthy:
        return [str(broker.queueing.error)]
    if not broker.store.healthy:
        return [broker.store.upkeep.trouble]
    if broker.schedule.error is not None:
        return [f"delayed messages are not written down: {broker.schedule.error}", *failing.values()]
    return list(failing.values())


def hindrances_of(broker: Broker, hanging_s: float = 0.0) -> list[str]:
    """Why messages are not stored now, though nothing is broken. `hanging_s`: for how long a flush has hung; 0: none does."""
    if hanging_s > HANGING_S:
        return [f"the disk does not answer: a flush has taken {hanging_s:.0f} s so far"]
    try:
        used, total = broker.files.usage(broker.folder)
    except StoreError as error:
        return [f"the disk cannot be looked at: {error}"]
    refuse_at = broker.config.disk_used_refuse_percent
    if total and used * _PERCENT >= total * refuse_at:
        return [f"disk full: {used * _PERCENT // total} % are used, messages are refused from {refuse_at} % on"]
    if total - used < ROOM_BYTES:
        return [f"disk full: {total - used} bytes are free"]
    if broker.store.refusal == status.DISK_FULL:
        return [f"disk full: messages are taken again when less than {refuse_at} % are used"]
    if broker.store.refusal == status.NOT_WRITABLE:
        return ["the log is not open for writing"]
    if why := broker.files.refusals.lately():
        return [f"nothing is stored: {why}, says the system; the broker's log has of what"]
    return []


class Health:
    """The routes of one role. `broker`: None for a registry. `failing()`: the steps of the loop that fail. `hanging_s()`: for how
    long a flush has hung; 0: none does.
    """

    def __init__(
        self,
        broker: Broker | None,
        failing: Callable[[], Mapping[str, str]] = dict,
        hanging_s: Callable[[], float] = float,
    ) -> None:
        self._broker = broker
        self._failing = failing
        self._hanging_s = hanging_s
        self.routes: dict[str, dict[str, Handler]] = {"/healthz": {"GET": self._alive}, "/ready": {"GET": self._ready}}

    def faults(self) -> list[str]:
        """What a restart mends."""
        failing = self._failing()
        return list(failing.values()) if self._broker is None else faults_of(self._broker, failing)

    def _alive(self, request: Request) -> Answer:
        faults = self.faults()
        return Answer(500 if faults else 200, "; ".join(faults).encode() or b"OK", (TEXT,))

    def _ready(self, request: Request) -> Answer:
        reasons, broker = self.faults(), self._broker
        told: dict[str, object] = {"role": "registry", "version": __version__}
        if broker is not None:
            reasons = reasons or hindrances_of(broker, self._hanging_s())
            config = broker.config
            told |= {
                "role": config.role if config.role == "slave" else "broker",
                "name": config.broker_name,
                "started": broker.started_ms,
            }
        told = {"ready": not reasons, "reasons": reasons, **told}
        return Answer(503 if reasons else 200, dumps(told), (JSON,))
