"""What the console gives away as a file."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator, Iterator
from itertools import chain, islice

from penstock.client.deadletters import DeadLetters, exported
from penstock.console.pages import BODY_BYTES_MAX, Site, View, asked_messages, fitting
from penstock.console.upstream import Json

EXPORTED_MAX = 100_000  # messages
_AT_ONCE = 20  # with whole bodies


async def export_messages(view: View) -> AsyncIterator[str]:
    """The messages that a filter shows, and all that follow, as JSON lines with whole bodies (1 MiB): an object as the
    JSON of the page has it. Without a `from` it is the last ones alone, as there.
    """
    path, asked = await asked_messages(view, _AT_ONCE if view.get("from") else view.number("limit", 50, 500))
    asked["bodyBytes"] = BODY_BYTES_MAX
    page = await view.site.upstream.get(path, asked)

    async def lines(page: Json) -> AsyncIterator[str]:
        left = EXPORTED_MAX
        while True:
            for row in fitting(view, page["rows"])[:left]:
                left -= 1
                yield json.dumps(row, ensure_ascii=False) + "\n"
            if not page["next"] or not left or asked.get("from") == "last":
                return
            page = await view.site.upstream.get(path, asked | {"after": page["next"]})

    return lines(page)


def export_dead(site: Site, group: str, text: str) -> Iterator[str]:
    """The dead letters that match as JSON lines, as `penstock dlq export` writes them. NotFound before the first one."""
    lines = _lines(site, group, text)
    first = list(islice(lines, 1))  # what is refused is refused now
    return chain(first, lines)


def _lines(site: Site, group: str, text: str) -> Iterator[str]:
    with DeadLetters(site.registry, security=site.security) as letters:
        for message, redriven in letters.letters(group, text):
            yield json.dumps(exported(message, redriven=redriven), ensure_ascii=False) + "\n"
