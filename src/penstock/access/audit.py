"""One line in the log for each act of administration: who, from where, what, with what result. Never a secret or a body."""

from __future__ import annotations

import logging

from penstock.access.users import User

log = logging.getLogger("penstock.audit")

TEXT_MAX = 200


def audit(user: User | None, remote: str, what: str, result: str) -> None:
    """Write the line. `result` is ok, begun (the answer comes when it is stored), or why it was refused."""
    name = "-" if user is None else user.name or "trusted-address"
    log.info(
        "admin user=%s peer=%s act=%s result=%s",
        name,
        remote,
        ascii(what)[1:-1][:TEXT_MAX],
        ascii(result)[1:-1][:TEXT_MAX],
    )
