"""OPEN, APPEND, SEAL, PUBLISH and DROP: the five calls of staged writes, byte by byte in docs/protocol.md."""

from __future__ import annotations

import json

from penstock import msgid
from penstock.broker.clients import Peer
from penstock.broker.runs import Run
from penstock.broker.sinks import LAYOUT_TOPICS_MAX, Sink
from penstock.broker.staging import Token, Wanted
from penstock.delivery.waiters import Outcome
from penstock.errors import Refused, StoreError, WireError
from penstock.fronts.requests.calls import Answer, Calls
from penstock.wire import fastjson
from penstock.wire.codes import Fields, RequestCode, ResponseCode, read_fields
from penstock.wire.fastjson import JsonObject
from penstock.wire.names import SINK_TOPIC
from penstock.wire.remoting import RemotingCommand


class StageCalls(Calls):
    """The part of the requests' table that stages and publishes."""

    TABLE = {
        RequestCode.STAGE_OPEN: "stage_open",
        RequestCode.STAGE_APPEND: "stage_append",
        RequestCode.STAGE_SEAL: "stage_seal",
        RequestCode.STAGE_PUBLISH: "stage_publish",
        RequestCode.STAGE_DROP: "stage_drop",
    }

    def stage_open(self, session: Peer, request: RemotingCommand) -> Answer:
        """Without a token: what is known of the sink, and with `coordinator` the run is noted. With one: begin to stage, or go on
        after a lost connection."""
        fields = read_fields(request.code, request.ext)
        staging = self.broker.staging
        sink, query, run = fields["sink"], fields["query"], fields["run"]
        who = Run(sink, query, run, fields["coordinator"] or "", bool(fields["reset"]), bool(fields["once"]))
        if not fields["token"]:
            known = staging.ask(sink, query, run, bool(fields["reset"])) if not who.coordinator else staging.note(who)
            last, coordinator = (-1, "") if known is None else (known.last, known.coordinator)
            body = b"" if known is None else _told(known)
            reply = request.reply(ext={"number": "0", "batch": str(last), "coordinator": coordinator}, body=body)
            if who.coordinator:
                session.answer_when_stored(self.broker.topics.by_name[SINK_TOPIC], reply)
                return None
            return reply
        batch = -1 if fields["batch"] is None else fields["batch"]
        number, known = staging.open_token(Token(who, fields["token"], batch, msgid.pack_host(session.remote)))
        ext = {"number": str(number), "batch": str(known.last), "coordinator": known.coordinator}
        return request.reply(ext=ext)

    def stage_append(self, session: Peer, request: RemotingCommand) -> Answer:
        fields = read_fields(request.code, request.ext)
        number = self.broker.staging.append(fields["token"], fields["number"], request.body)
        return request.reply(ext={"number": str(number)})

    def stage_seal(self, session: Peer, request: RemotingCommand) -> Answer:
        fields = read_fields(request.code, request.ext)

        def answer(error: BaseException | None) -> None:
            session.push(request.reply() if error is None else _failed(request, error))

        wait = fields["level"] != "os"
        self.broker.staging.seal(
            fields["token"], fields["rows"], fields["bytes"], fields["sums"], answer if wait else None
        )
        return None if wait else request.reply()

    def stage_publish(self, session: Peer, request: RemotingCommand) -> Answer:
        fields = read_fields(request.code, request.ext)
        wanted = _wanted(fields, request.body)
        staging = self.broker.staging

        def publish(error: BaseException | None) -> None:
            try:
                if error is not None:
                    raise error
                now, sink = staging.publish(wanted)
            except (Refused, StoreError) as refused:
                session.push(_failed(request, refused))
                return
            ext = {"batch": str(sink.last), "already": str(not now).lower()}
            answer = dict(sink.answer)
            if wanted.batch != sink.last:  # of an older one only this matters still
                answer = {name: value for name, value in answer.items() if name == "planned"}
            reply = request.reply(ext=ext, body=json.dumps(answer).encode())
            staging.when_visible(lambda: self._published(session, request, reply))

        staging.when_flushed(staging.ready(wanted) or [], publish)
        return None

    def _published(self, session: Peer, request: RemotingCommand, reply: RemotingCommand) -> None:
        """Answer a publish when it is on the disk, and on those of all slaves in sync: nobody is to publish it again."""
        copies, store = self.broker.copies, self.broker.store

        def told(outcome: Outcome) -> None:
            if outcome == Outcome.REACHED or not self.broker.staging.mirrors.others:
                session.answer_when_stored(self.broker.topics.by_name[SINK_TOPIC], reply)
            else:
                why = "published, and not every slave in sync has it yet: ask again"
                session.push(request.reply(ResponseCode.SERVICE_NOT_AVAILABLE, remark=why))

        if not self.broker.staging.mirrors.others:
            told(Outcome.REACHED)
            return
        store.want_flush()
        deadline_ms = self.broker.mono_ms + self.broker.config.ha_answer_ms
        copies.waiting_flushed.wait(store.end_position, session, told, deadline_ms)

    def stage_drop(self, session: Peer, request: RemotingCommand) -> Answer:
        fields = read_fields(request.code, request.ext)
        tokens = _tokens(_object(request.body).get("tokens", []))
        count = self.broker.staging.drop(fields["sink"], fields["run"], list(tokens))
        return request.reply(ext={"count": str(count)})


def _told(known: Sink) -> bytes:
    """What is asked for before rows are staged: over which brokers they were dealt out, when the last batch was planned, and
    which run writes.
    """
    told: dict[str, object] = {"run": known.run} | ({"layout": known.layout} if known.layout else {})
    if "planned" in known.answer:
        told["planned"] = known.answer["planned"]
    return json.dumps(told).encode()


def _failed(request: RemotingCommand, error: BaseException) -> RemotingCommand:
    code = error.remoting if isinstance(error, Refused) else 14
    return request.reply(code, remark=str(error))


def _wanted(fields: Fields, body: bytes) -> Wanted:
    value = _object(body)
    brokers = value.get("brokers") or {}
    layout = value.get("layout") or {}
    if not isinstance(brokers, dict) or not isinstance(layout, dict) or fields["batch"] < 0:
        raise Refused("a publish names a batch from 0 on, and tokens by broker")
    if len(layout) > LAYOUT_TOPICS_MAX:
        layout = {}  # a hint, of a size that is not worth keeping
    planned = value.get("planned")
    if planned is not None and type(planned) is not int:
        raise Refused("a batch was planned at a time in ms")
    return Wanted(
        fields["sink"], fields["query"], fields["run"], fields["batch"], fields["coordinator"],
        _tokens(value.get("tokens", [])), {str(name): list(_tokens(tokens)) for name, tokens in brokers.items()},
        bool(fields["reset"]), bool(fields["once"]),
        {str(topic): list(_tokens(names)) for topic, names in layout.items()}, planned,
    )  # fmt: skip


def _object(body: bytes) -> JsonObject:
    try:
        value = fastjson.loads(body or b"{}")
    except WireError:
        value = None
    if not isinstance(value, dict):
        raise Refused("the body is no JSON object")
    return value


def _tokens(value: object) -> tuple[str, ...]:
    if not isinstance(value, list) or not all(isinstance(token, str) for token in value):
        raise Refused("tokens are a list of texts")
    return tuple(value)
