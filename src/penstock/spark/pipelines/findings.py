"""What an audit finds: in the words of `penstock.log.verify`, and with the message that is concerned."""

from __future__ import annotations

from dataclasses import asdict, dataclass, field

from penstock.log.verify import Finding

FINDINGS_MAX = 1000  # of a task, and in the result


@dataclass(frozen=True)
class MessageFinding(Finding):
    """A finding about bytes `position` to `end` of the log (-1: about none), and the message there if it is known."""

    position: int = -1
    end: int = -1
    topic: str = ""
    queue: int = -1
    offset: int = -1


@dataclass
class AuditResult:
    """What was looked at and found. `ok`: neither damage nor anything derived that does not fit."""

    store: str
    segments: int = 0
    bytes: int = 0
    records: int = 0
    unchecked: int = 0
    queues: int = 0
    entries: int = 0
    index_entries: int = 0
    seconds: float = 0.0
    findings: list[MessageFinding] = field(default_factory=list)
    more_findings: int = 0
    topics: dict[str, list[int]] = field(default_factory=dict)  # messages, bytes
    per_segment: list[list[int]] = field(default_factory=list)  # first byte, records, damaged bytes

    @property
    def ok(self) -> bool:
        return self.more_findings == 0 and all(one.level == "note" for one in self.findings)

    def take(self, part: PieceAudit) -> None:
        """Add what a task has counted."""
        self.records += part.records
        self.unchecked += part.unchecked
        self.index_entries += part.index_entries
        self.more_findings += part.more
        for topic, (count, size) in part.topics.items():
            held = self.topics.setdefault(topic, [0, 0])
            held[0] += count
            held[1] += size

    def keep_segments(self, count: int) -> None:
        """So many of them were still there at the end."""
        self.segments = count

    def count_queues(self, queues: int, entries: int) -> None:
        """So many consume queues were looked at, with so many entries."""
        self.queues, self.entries = queues, entries

    def tell(self, findings: list[MessageFinding]) -> None:
        """The findings in their order: those that have room, and how many more there are."""
        self.findings = findings[:FINDINGS_MAX]
        self.more_findings += max(len(findings) - FINDINGS_MAX, 0)

    def as_dict(self) -> dict[str, object]:
        """For JSON."""
        return {"ok": self.ok, **asdict(self)}


@dataclass
class PieceAudit:
    """What a task found in one piece. A stretch is [first offset, last offset, physical offset of the first]."""

    base: int  # of the piece's segment
    dropped: bool = False  # the segment was gone before it was read
    records: int = 0
    unchecked: int = 0
    index_entries: int = 0
    stretches: dict[tuple[str, int], list[list[int]]] = field(default_factory=dict)
    findings: list[MessageFinding] = field(default_factory=list)
    more: int = 0
    topics: dict[str, list[int]] = field(default_factory=dict)
    segments: dict[int, list[int]] = field(default_factory=dict)

    def add(self, finding: MessageFinding) -> None:
        if len(self.findings) < FINDINGS_MAX:
            self.findings.append(finding)
        else:
            self.more += 1

    def count(self, *, records: int = 0, unchecked: int = 0, index_entries: int = 0) -> None:
        """So many more were looked at."""
        self.records += records
        self.unchecked += unchecked
        self.index_entries += index_entries
