"""What the console gives away as a file."""

from __future__ import annotations

import json
from collections.abc import Iterator
from itertools import chain, islice

from penstock.client.deadletters import DeadLetters, exported
from penstock.console.pages import Site


def export_dead(site: Site, group: str, text: str) -> Iterator[str]:
    """The dead letters that match as JSON lines, as `penstock dlq export` writes them. NotFound before the first one."""
    lines = _lines(site, group, text)
    first = list(islice(lines, 1))  # what is refused is refused now
    return chain(first, lines)


def _lines(site: Site, group: str, text: str) -> Iterator[str]:
    with DeadLetters(site.registry, security=site.security) as letters:
        for message, redriven in letters.letters(group, text):
            yield json.dumps(exported(message, redriven=redriven), ensure_ascii=False) + "\n"
