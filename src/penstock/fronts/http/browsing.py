"""GET /api/topics/TOPIC/messages: what a topic or channel of either kind holds, as JSON. Nothing is changed by looking."""

from __future__ import annotations

from penstock.broker.broker import Broker
from penstock.broker.browse import Browse, browse_wanted
from penstock.errors import Refused
from penstock.fronts.site import JSON, NAME, V1, Answer, Handler, Request, Site, dumps, json_answer
from penstock.wire.codes import RequestCode, read_fields

_NO_SNIFFING = (b"x-content-type-options", b"nosniff")


class Browsing:
    """The route, with the fields of the request BROWSE as its query."""

    def __init__(self, broker: Broker, site: Site) -> None:
        self.broker = broker
        self.site = site
        self.routes: dict[str, dict[str, Handler]] = {f"/api/topics/{NAME}/messages": {"GET": self._messages}}

    def _messages(self, request: Request) -> Answer:
        topic = self.site.route(request.path)[1]
        try:
            wanted = browse_wanted(read_fields(RequestCode.BROWSE, {**request.query, "topic": topic}))
            answer = json_answer(Browse(self.broker).page(wanted))
        except Refused as refused:  # its text may hold a name that the client made up
            answer = Answer(refused.http, dumps({"message": str(refused)}), (JSON, V1))
        return answer._replace(headers=(*answer.headers, _NO_SNIFFING))
