"""Which dead letters one call sends again, and the group whose committed offset notes how far that came.

penstock-redrive             all
penstock-redrive_BASE64      those with a text in the body or in why they died, or as a key or their id
penstock-redrive|BASE64      the one with an id
penstock-redrive-BASE64      as with _, but for why they died: as earlier versions matched
"""

from __future__ import annotations

import base64
import binascii
from dataclasses import dataclass
from typing import Final

from penstock.message import ReceivedMessage
from penstock.wire import names

GROUP: Final = "penstock-redrive"
MATCH_BYTES_MAX: Final = 150  # a group's name has 255
TEXT, ID, FORMER = "_", "|", "-"


def matches(message: ReceivedMessage, text: str) -> bool:
    """Whether the text is in the message's body or in why it died, or one of its keys or its id; the empty one is in all."""
    told = message.properties
    return (
        _former(message, text)
        or text in told.get(names.DEAD_REASON, "")
        or text in told.get(names.DEAD_DETAIL, "")
    )  # fmt: skip


def _former(message: ReceivedMessage, text: str) -> bool:
    return not text or text in message.keys or text.encode() in message.body or text == message.msg_id


@dataclass(frozen=True)
class Rule:
    """Which: all where there is no text."""

    text: str = ""
    kind: str = TEXT

    def matches(self, message: ReceivedMessage) -> bool:
        """Whether this dead letter is one of them."""
        if self.kind == ID:
            return message.msg_id == self.text
        return _former(message, self.text) if self.kind == FORMER else matches(message, self.text)

    @property
    def group(self) -> str:
        """The group that notes how far they were sent again. ValueError when the text is too long."""
        data = self.text.encode()
        if len(data) > MATCH_BYTES_MAX:
            raise ValueError(f"the text to match has {len(data)} bytes, at most {MATCH_BYTES_MAX}")
        return f"{GROUP}{self.kind}{base64.urlsafe_b64encode(data).decode().rstrip('=')}" if data else GROUP


def rule_of(group: str) -> Rule | None:
    """The rule of such a group; None for any other."""
    if group == GROUP:
        return Rule()
    kind, word = group.removeprefix(GROUP)[:1], group.removeprefix(GROUP)[1:]
    if not group.startswith(GROUP) or kind not in (TEXT, ID, FORMER):
        return None
    try:
        text = base64.urlsafe_b64decode(word + "=" * (-len(word) % 4)).decode()
    except (binascii.Error, UnicodeDecodeError):
        return None
    rule = Rule(text, kind)
    return rule if text and len(text.encode()) <= MATCH_BYTES_MAX and rule.group == group else None
