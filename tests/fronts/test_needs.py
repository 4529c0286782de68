"""The table of rights: every request code against five kinds of people, and every way round a right."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import pytest

from access.people import SECRET, looked, rights_of, user, write
from fronts.frontside import RemotingSide
from penstock.access.rights import LOOK_MS
from penstock.access.users import User
from penstock.broker.clients import NAMED_MAX
from penstock.fronts.needs import BROKER, REGISTRY, at_registry
from penstock.fronts.remoting.front import BrokerSession
from penstock.fronts.requests import CODES
from penstock.fronts.requests.consuming import HEARTBEAT_BYTES_MAX
from penstock.wire.acl import sign
from penstock.wire.codes import RequestCode, header_fields
from penstock.wire.record import BatchItem, encode_batch
from penstock.wire.remoting import RemotingCommand
from penstock.wire.staged import PIECE, PLACE, U32

C = RequestCode
KNOWN = ""  # to be a user is enough
READ = "subscribe:T group:G"

# What a user must have been granted, written down once more: any one of a list is enough, `&` joins what is needed together.
ROWS: dict[int, str] = {
    C.SEND_MESSAGE: "publish:T",
    C.SEND_MESSAGE_V2: "publish:T",
    C.SEND_BATCH_MESSAGE: "publish:T",
    C.SEND_REPLY_MESSAGE: "publish:T_REPLY_TOPIC",
    C.SEND_REPLY_MESSAGE_V2: "publish:T_REPLY_TOPIC",
    C.PULL_MESSAGE: READ,
    C.LITE_PULL_MESSAGE: READ,
    C.QUERY_CONSUMER_OFFSET: READ,
    C.UPDATE_CONSUMER_OFFSET: READ,
    C.HEART_BEAT: READ,
    C.UNREGISTER_CLIENT: "group:G",
    C.GET_CONSUMER_LIST_BY_GROUP: "group:G|monitor",
    C.CONSUMER_SEND_MSG_BACK: READ,
    C.END_TRANSACTION: "publish:T",
    C.LOCK_BATCH_MQ: READ,
    C.UNLOCK_BATCH_MQ: READ,
    C.CHECK_CLIENT_CONFIG: READ,
    C.SEARCH_OFFSET_BY_TIMESTAMP: "publish:T|subscribe:T|monitor",
    C.GET_MAX_OFFSET: "publish:T|subscribe:T|monitor",
    C.GET_MIN_OFFSET: "publish:T|subscribe:T|monitor",
    C.GET_EARLIEST_MSG_STORETIME: "publish:T|subscribe:T|monitor",
    C.QUERY_MESSAGE: "subscribe:T",
    C.VIEW_MESSAGE_BY_ID: "subscribe:T",
    C.GET_CONSUMER_CONNECTION_LIST: "group:G|monitor",
    C.GET_PRODUCER_CONNECTION_LIST: "monitor",
    C.GET_ALL_PRODUCER_INFO: "monitor",
    C.INVOKE_BROKER_TO_RESET_OFFSET: READ,
    C.CLONE_GROUP_OFFSET: "group:G",
    C.GET_CONSUMER_RUNNING_INFO: "group:G|monitor",
    C.CONSUME_MESSAGE_DIRECTLY: READ,
    C.GET_TOPIC_STATS_INFO: "publish:T|subscribe:T|monitor",
    C.GET_CONSUME_STATS: "group:G|monitor",
    C.GET_BROKER_CONSUME_STATS: "monitor",
    C.VIEW_BROKER_STATS_DATA: "monitor",
    C.QUERY_TOPIC_CONSUME_BY_WHO: "publish:T|subscribe:T|monitor",
    C.QUERY_TOPICS_BY_CONSUMER: "group:G|monitor",
    C.QUERY_CONSUME_TIME_SPAN: READ,
    C.GET_BROKER_RUNTIME_INFO: "monitor",
    C.UPDATE_AND_CREATE_TOPIC: "admin",
    C.DELETE_TOPIC_IN_BROKER: "admin",
    C.UPDATE_AND_CREATE_SUBSCRIPTIONGROUP: "admin",
    C.DELETE_SUBSCRIPTIONGROUP: "admin",
    C.GET_ALL_TOPIC_CONFIG: "monitor",
    C.GET_ALL_SUBSCRIPTIONGROUP_CONFIG: "monitor",
    C.GET_ALL_CONSUMER_OFFSET: "monitor",
    C.GET_ALL_DELAY_OFFSET: "monitor",
    C.GET_TOPIC_CONFIG: "publish:T|subscribe:T|monitor",
    C.GET_SUBSCRIPTIONGROUP_CONFIG: "group:G|monitor",
    C.GET_SYSTEM_TOPIC_LIST_FROM_BROKER: KNOWN,
    C.GET_BROKER_CONFIG: "monitor",
    C.UPDATE_BROKER_CONFIG: "admin",
    C.CLEAN_EXPIRED_CONSUMEQUEUE: "admin",
    C.CLEAN_UNUSED_TOPIC: "admin",
    C.DELETE_EXPIRED_COMMITLOG: "admin",
    C.UPDATE_AND_CREATE_ACL_CONFIG: "admin",
    C.DELETE_ACL_CONFIG: "admin",
    C.GET_BROKER_CLUSTER_ACL_INFO: "monitor",
    C.UPDATE_GLOBAL_WHITE_ADDRS_CONFIG: "admin",
    C.GET_BROKER_CLUSTER_ACL_CONFIG: "admin",
    C.INVOKE_BROKER_TO_GET_CONSUMER_STATUS: READ,
    C.QUERY_SUBSCRIPTION_BY_CONSUMER: READ,
    C.QUERY_CORRECTION_OFFSET: READ,
    C.SET_MESSAGE_REQUEST_MODE: "admin",
    C.QUERY_CONSUME_QUEUE: "publish:T|subscribe:T|monitor",
    C.UPDATE_AND_CREATE_TOPIC_LIST: "admin",
    C.UPDATE_AND_CREATE_SUBSCRIPTIONGROUP_LIST: "admin",
    C.UPDATE_AND_GET_GROUP_FORBIDDEN: "admin",
    C.RESUME_CHECK_HALF_MESSAGE: "admin",
    C.DELAYED_LIST: "subscribe:T",
    C.DELAYED_COUNT: "publish:T|subscribe:T|monitor",
    C.DELAYED_CANCEL: "publish:T",
    C.DELAYED_FIRE: "publish:T",
    C.QUEUE_TOPICS: "publish:T|subscribe:T|monitor",
    C.QUEUE_CHANGE: "admin",
    C.TOPIC_PURGE: "admin",
    C.TOPIC_KEEP: "admin",
    C.TOPIC_CONVERT: "admin",
    C.DEAD_REDRIVE: "subscribe:T",
    C.CLIENTS: "monitor",
    C.CLIENT_DISCONNECT: "admin",
    C.CONFIG_RELOAD: "admin",
    C.BROWSE: "subscribe:T",
    C.HA_PROMOTE: "admin",
    C.HA_SWITCH: "admin",
    C.HA_PAUSE: "admin",
    C.HA_FORGET: "admin",
    C.STAGE_OPEN: "group:G",
    C.STAGE_APPEND: "publish:T",
    C.STAGE_SEAL: KNOWN,
    C.STAGE_PUBLISH: "group:G",
    C.STAGE_DROP: "group:G",
}

REGISTRY_ROWS: dict[int, str] = {
    C.PUT_KV_CONFIG: "admin",
    C.GET_KV_CONFIG: KNOWN,
    C.DELETE_KV_CONFIG: "admin",
    C.GET_KVLIST_BY_NAMESPACE: KNOWN,
    C.REGISTER_BROKER: "register",
    C.UNREGISTER_BROKER: "register",
    C.QUERY_DATA_VERSION: "register",
    C.GET_ROUTEINFO_BY_TOPIC: "publish:T|subscribe:T|monitor",
    C.GET_BROKER_CLUSTER_INFO: KNOWN,
    C.GET_ALL_TOPIC_LIST_FROM_NAMESERVER: "monitor",
    C.GET_TOPICS_BY_CLUSTER: "monitor",
    C.GET_SYSTEM_TOPIC_LIST_FROM_NS: KNOWN,
    C.GET_UNIT_TOPIC_LIST: "monitor",
    C.GET_HAS_UNIT_SUB_TOPIC_LIST: "monitor",
    C.GET_HAS_UNIT_SUB_UNUNIT_TOPIC_LIST: "monitor",
    C.DELETE_TOPIC_IN_NAMESRV: "admin",
    C.REGISTER_TOPIC_IN_NAMESRV: "admin",
    C.WIPE_WRITE_PERM_OF_BROKER: "admin",
    C.ADD_WRITE_PERM_OF_BROKER: "admin",
    C.UPDATE_NAMESRV_CONFIG: "admin",
    C.GET_NAMESRV_CONFIG: "monitor",
}
DENIED = ("No default permission for ", "Need admin permission for ", "No accessKey is ", "Check signature failed ")
OTHERS = ("publish:X", "subscribe:X", "group:X", "register")


class Guarded(RemotingSide):
    """A broker with users; `ask_as` sends a signed request."""

    def __init__(self, folder: Path, *users: User) -> None:
        super().__init__(folder, rights_of(folder / "rights", user("root", "admin"), *users))
        self.folder = folder / "rights"
        self.peer = self.session(9)

    def ask_as(self, name: str, code: int, body: bytes = b"", secret: str = "", **ext: object) -> RemotingCommand:
        request = RemotingCommand(code, {key: str(value) for key, value in ext.items()}, body, opaque=77)
        if name:
            sign(request, name, secret or SECRET + name)
        return self.answer_to(request)

    def answer_to(self, request: RemotingCommand, peer: BrokerSession | None = None) -> RemotingCommand:
        """Its answer; one without a code where it is still to come."""
        found = self.say(peer or self.peer, request)
        return next((one for one in found if one.response), RemotingCommand(0))

    def grant(self, *users: User) -> None:
        write(self.folder / "users.toml", user("root", "admin"), *users)
        self.clock.advance(2 * LOOK_MS)
        self.broker.time.update()
        looked(self.front.rights, self.broker.mono_ms)

    def send_as(
        self, name: str, topic: str, body: bytes = b"body", properties: str = "", **more: object
    ) -> RemotingCommand:
        fields = {"a": "P", "b": topic, "c": "TBW102", "d": 1, "e": 0, "f": 0, "g": 5, "h": 0, "i": properties} | more
        return self.ask_as(name, 310, body, **fields)


@pytest.fixture
def side(tmp_path: Path) -> Iterator[Guarded]:
    side = Guarded(tmp_path)
    yield side
    side.close()


def was_denied(answer: RemotingCommand) -> bool:
    return answer.code == 1 and (answer.remark or "").startswith(DENIED)


def place_of(side: Guarded, answer: RemotingCommand) -> int:
    return int(answer.ext["msgId"][16:], 16)


def delayed(side: Guarded, topic: str) -> int:
    """The id of a delayed message of a topic."""
    assert side.send_as("root", topic, properties="DELAY\x015\x02").code == 0
    due = list(side.broker.schedule.entries(0))
    return due[-1].id


HALF = "TRAN_MSG\x01true\x02PGROUP\x01G\x02"
VALUES = {
    "topic": "T", "b": "T", "defaultTopic": "TBW102", "c": "TBW102", "sink": "G", "action": "add", "subscription": "*",
    "edges": "5", "properties": "", "i": "", "msgId": "x", "clientID": "me", "clientId": "me", "token": "0123456789abcdef",
}  # fmt: skip


def request_of(side: Guarded, code: int) -> RemotingCommand:
    """A sound request of this code about topic T and group G."""
    ext = {}
    for name, kind, required in header_fields(code):
        if "roup" in name and not (name == "producerGroup" and code == C.UNREGISTER_CLIENT):
            ext[name] = "G"
        elif required or name in ("topic", "sink", "msgId"):
            ext[name] = VALUES.get(name, "0" if kind in "il" else "false" if kind == "b" else "a")
    body = b""
    if code in (C.SEND_REPLY_MESSAGE, C.SEND_REPLY_MESSAGE_V2):
        ext["b" if "b" in ext else "topic"] = "T_REPLY_TOPIC"
    subscription = {"topic": "T", "subString": "*", "subVersion": 1}
    if code == C.HEART_BEAT:
        consumer = {"groupName": "G", "subscriptionDataSet": [subscription]}
        body = json.dumps({"clientID": "me", "producerDataSet": [], "consumerDataSet": [consumer]}).encode()
    elif code in (C.LOCK_BATCH_MQ, C.UNLOCK_BATCH_MQ):
        queue = {"topic": "T", "brokerName": "b", "queueId": 0}
        body = json.dumps({"consumerGroup": "G", "clientId": "me", "mqSet": [queue]}).encode()
    elif code == C.CHECK_CLIENT_CONFIG:
        body = json.dumps({"clientId": "me", "group": "G", "subscriptionData": subscription}).encode()
    elif code == C.STAGE_APPEND:
        place = PLACE.pack(0, 0, 0, 0)
        body = PIECE.pack(PIECE.size - U32.size + 1 + len(place), 0, 1) + b"T" + place
    elif code in (C.CONSUMER_SEND_MSG_BACK, C.VIEW_MESSAGE_BY_ID):
        ext["offset"] = str(place_of(side, side.send_as("root", "T")))
    elif code == C.CONSUME_MESSAGE_DIRECTLY:
        ext["msgId"] = side.send_as("root", "T").ext["msgId"]
    elif code == C.END_TRANSACTION:
        ext["commitLogOffset"] = str(place_of(side, side.send_as("root", "T", properties=HALF, f=4)))
    elif code in (C.DELAYED_CANCEL, C.DELAYED_FIRE):
        ext["id"] = str(delayed(side, "T"))
    return RemotingCommand(code, ext, body, opaque=77)


def test_no_code_is_without_a_row() -> None:
    assert (
        set(BROKER)
        == set(ROWS)
        == {*CODES, C.SEND_MESSAGE, C.SEND_MESSAGE_V2, C.SEND_BATCH_MESSAGE, C.PULL_MESSAGE, C.LITE_PULL_MESSAGE}
    )
    assert set(REGISTRY) == set(REGISTRY_ROWS)


@pytest.mark.parametrize("code", ROWS, ids=lambda code: C(code).name)
def test_who_may_ask_a_broker(side: Guarded, code: int) -> None:
    asked = request_of(side, code)

    def outcome(name: str, secret: str = "") -> bool:
        request = RemotingCommand(code, dict(asked.ext), asked.body, opaque=77)
        if name:
            sign(request, name, secret or SECRET + name)
        return was_denied(side.answer_to(request))

    wanted = ROWS[code].split()
    side.grant(user("nothing"), user("wrong", *OTHERS))
    assert outcome("")
    assert outcome("root", "wrong-secret")
    assert outcome("stranger")
    assert outcome("nothing") is outcome("wrong") is (ROWS[code] != KNOWN)
    for one in wanted:
        side.grant(user("almost", *OTHERS, *(right.split("|")[0] for right in wanted if right != one)))
        assert outcome("almost")
        for right in one.split("|"):
            others = (other.split("|")[0] for other in wanted if other != one)
            side.grant(user("right", right, *others))
            assert not outcome("right"), right
    assert not outcome("root")


@pytest.mark.parametrize("code", REGISTRY_ROWS, ids=lambda code: C(code).name)
def test_who_may_ask_a_registry(side: Guarded, code: int) -> None:
    needs = list(at_registry(RemotingCommand(code, {"topic": "T"})))
    rights = side.front.rights
    row = REGISTRY_ROWS[code]
    assert rights.missing(None, needs)
    assert not rights.missing(user("root", "admin"), needs)
    assert bool(rights.missing(user("u", "publish:X", "group:X"), needs)) is (row != KNOWN)
    for right in filter(None, row.split("|")):
        assert not rights.missing(user("u", right), needs)


def test_an_unknown_code_is_the_administrators(side: Guarded) -> None:
    side.grant(user("u", "publish:*"))
    assert was_denied(side.ask_as("u", 4242))
    assert side.ask_as("root", 4242).code == 3


def test_nothing_but_the_secret_proves_who_one_is(side: Guarded) -> None:
    """A request that is changed on its way, one signed for another, and one that was sent before by another code."""
    side.grant(user("u", "publish:T"), user("v", "publish:X"))
    request = request_of(side, C.SEND_MESSAGE_V2)
    sign(request, "u", SECRET + "u")
    for change in ({"b": "X"}, {"AccessKey": "v"}, {"Signature": ""}):
        assert was_denied(side.answer_to(RemotingCommand(310, {**request.ext, **change}, request.body, opaque=1)))
    assert was_denied(side.answer_to(RemotingCommand(310, request.ext, b"another body", opaque=1)))
    assert side.answer_to(RemotingCommand(310, request.ext, request.body, opaque=1)).code == 0
    # The code is not covered by the signature: what the other code needs, u has not.
    for code in (C.DELETE_TOPIC_IN_BROKER, C.QUERY_MESSAGE, C.UPDATE_AND_CREATE_TOPIC):
        assert was_denied(side.answer_to(RemotingCommand(code, request.ext, request.body, opaque=1)))


@pytest.mark.parametrize("name", ["%RETRY%other", "%DLQ%other", "SCHEDULE_TOPIC_XXXX", "RMQ_SYS_TRANS_HALF_TOPIC"])
@pytest.mark.parametrize("code", [C.SEND_MESSAGE_V2, C.PULL_MESSAGE, C.QUERY_MESSAGE, C.GET_MAX_OFFSET])
def test_no_right_for_all_topics_reaches_what_is_of_a_group_or_the_brokers(side: Guarded, name: str, code: int) -> None:
    side.grant(user("u", "publish:*", "subscribe:*", "group:G"))
    asked = request_of(side, code)
    ext = asked.ext | {"b" if code == C.SEND_MESSAGE_V2 else "topic": name}
    assert was_denied(side.ask_as("u", code, **ext))


def test_a_message_of_another_topic_comes_by_no_way_round(side: Guarded) -> None:
    """By its id, by giving it back to one's own group, by consuming it directly, by committing another's half."""
    side.grant(user("u", "publish:mine", "subscribe:mine", "group:G"))
    sent = side.send_as("root", "secret", properties="KEYS\x01k\x02")
    at, message_id = place_of(side, sent), sent.ext["msgId"]
    half = place_of(side, side.send_as("root", "secret", properties=HALF, f=4))
    later_id = delayed(side, "secret")
    later = place_of(side, side.send_as("root", "secret", properties="DELAY\x015\x02"))
    back = {"offset": at, "group": "G", "delayLevel": 1, "originMsgId": "x", "originTopic": "mine"}
    end = {
        "producerGroup": "G",
        "tranStateTableOffset": 0,
        "commitLogOffset": half,
        "commitOrRollback": 8,
        "msgId": "x",
        "transactionId": "x",
    }
    key = {"topic": "secret", "key": "k", "maxNum": 9, "beginTimestamp": 0, "endTimestamp": 1 << 60}
    for code, ext in (
        (C.VIEW_MESSAGE_BY_ID, {"offset": at}),
        (C.VIEW_MESSAGE_BY_ID, {"offset": half}),
        (C.VIEW_MESSAGE_BY_ID, {"offset": later}),
        (C.CONSUMER_SEND_MSG_BACK, back),
        (C.CONSUME_MESSAGE_DIRECTLY, {"consumerGroup": "G", "clientId": "me", "msgId": message_id}),
        (C.END_TRANSACTION, end),
        (C.QUERY_MESSAGE, key),
        (C.DELAYED_LIST, {}),
        (C.BROWSE, {"topic": "secret"}),
        (C.DEAD_REDRIVE, {"topic": "secret.c.dead", "to": "mine"}),
        (C.DELAYED_CANCEL, {"id": later_id}),
        (C.DELAYED_FIRE, {"id": later_id}),
        (C.INVOKE_BROKER_TO_RESET_OFFSET, {"topic": "secret", "group": "G", "timestamp": 0, "isForce": "true"}),
        (C.CLONE_GROUP_OFFSET, {"srcGroup": "another", "destGroup": "G", "topic": "secret"}),
    ):
        answer = side.ask_as("u", code, **ext)
        assert was_denied(answer), code
        if "topic" not in ext:  # nor is it told where that message belongs
            assert "secret" not in answer.remark, code
    assert side.send_as("u", "mine").code == 0


def test_a_reply_that_names_two_topics_needs_both(side: Guarded) -> None:
    ours, other = "T_REPLY_TOPIC", "X_REPLY_TOPIC"
    side.grant(user("u", f"publish:{ours}"))
    ext = request_of(side, C.SEND_REPLY_MESSAGE_V2).ext
    for two in ({**ext, "topic": other}, {"topic": other, **ext}, {"topic": ours, **ext, "b": other}):
        assert was_denied(side.ask_as("u", C.SEND_REPLY_MESSAGE_V2, **two))


def test_the_right_to_send_is_none_to_tell_a_client_something(side: Guarded) -> None:
    """A reply goes to whichever client it names: that needs the right for the topic of replies."""
    side.grant(user("u", "publish:T", "publish:D_REPLY_TOPIC"))
    for code, name in ((C.SEND_REPLY_MESSAGE, "topic"), (C.SEND_REPLY_MESSAGE_V2, "b")):
        ext = request_of(side, code).ext
        assert was_denied(side.ask_as("u", code, **{**ext, name: "T"}))
        assert not was_denied(side.ask_as("u", code, **{**ext, name: "D_REPLY_TOPIC"}))
        assert not was_denied(side.ask_as("root", code, **{**ext, name: "T"}))


def test_a_connection_of_several_users_mixes_nobody_up(side: Guarded) -> None:
    """One topic is kept from send to send: another user's send on the same connection is asked anew."""
    side.grant(user("u", "publish:T"), user("v", "publish:X"))
    assert side.send_as("u", "T").code == 0
    assert was_denied(side.send_as("v", "T"))
    assert side.send_as("u", "T").code == 0
    assert side.send_as("v", "X").code == 0
    assert was_denied(side.send_as("", "T"))


def test_who_is_known_by_its_address_needs_no_signature_and_is_as_fast_as_before(side: Guarded) -> None:
    side.grant(User("local", addresses=("127.0.0.1",), rights=user("x", "publish:T").rights), user("v", "publish:X"))
    peer = side.session(10)
    for _ in range(3):
        assert side.send(peer, "T", b"body").code == 0
        assert was_denied(side.send(peer, "X", b"body"))
    signed = request_of(side, C.SEND_MESSAGE_V2)
    sign(signed, "v", SECRET + "v")
    assert was_denied(side.answer_to(signed, peer))  # it is v's request now, whoever the connection is
    assert side.send(peer, "T", b"body").code == 0


def test_a_right_that_is_taken_away_is_gone_at_once(side: Guarded) -> None:
    local = {"addresses": ("127.0.0.1",)}
    side.grant(User("local", rights=user("x", "publish:T", "subscribe:T", "group:G").rights, **local))
    peer = side.session(10)
    assert side.send(peer, "T", b"body").code == 0
    pull = {
        "consumerGroup": "G", "topic": "T", "queueId": 0, "queueOffset": 1, "maxMsgNums": 1, "sysFlag": 6, "commitOffset": 0,
        "suspendTimeoutMillis": 30_000, "subscription": "*", "subVersion": 0,
    }  # fmt: skip
    assert side.say(peer, RemotingCommand(11, {name: str(value) for name, value in pull.items()}, opaque=5)) == []
    side.grant(User("local", **local))
    (held,) = side.answers(peer)
    assert held.opaque == 5
    assert held.code != 0
    assert was_denied(side.send(peer, "T", b"body"))
    assert was_denied(side.ask(peer, 11, **pull))


def heartbeat(client_id: str, producer: str) -> bytes:
    return json.dumps(
        {"clientID": client_id, "producerDataSet": [{"groupName": producer}], "consumerDataSet": []}
    ).encode()


def test_nobody_takes_the_client_id_of_another_user(side: Guarded) -> None:
    side.grant(user("u", "publish:T"), user("v", "publish:X"))
    assert side.ask_as("u", C.HEART_BEAT, heartbeat("me", "P")).code == 0
    assert side.ask_as("v", C.HEART_BEAT, heartbeat("me", "P")).code == 16
    assert side.ask_as("u", C.HEART_BEAT, heartbeat("me", "P")).code == 0


def test_one_connection_does_not_fill_the_table_of_clients(side: Guarded) -> None:
    """Each heartbeat names others: what it may keep here has an end."""
    side.grant(user("u"))
    codes = [side.ask_as("u", C.HEART_BEAT, heartbeat(f"client-{n}", f"P{n}")).code for n in range(NAMED_MAX + 3)]
    assert codes == [0] * NAMED_MAX + [1] * 3
    assert sum(map(len, side.broker.clients.producers.values())) == NAMED_MAX


def test_a_check_of_a_transaction_goes_to_nobody_who_may_not_publish(side: Guarded) -> None:
    side.grant(user("u", "publish:T"), user("v", "publish:X"))
    half = place_of(side, side.send_as("u", "T", properties="TRAN_MSG\x01true\x02PGROUP\x01P\x02", f=4))
    data = side.broker.store.record_at(half)
    assert data is not None
    ask = side.front.requests.consuming.ask_producer
    assert side.ask_as("v", C.HEART_BEAT, heartbeat("of-v", "P")).code == 0
    assert not ask("P", data, {})
    assert side.ask_as("u", C.HEART_BEAT, heartbeat("of-u", "P")).code == 0
    assert ask("P", data, {})
    side.grant(user("u", "publish:X"))  # before its next heartbeat
    assert not ask("P", data, {})


def test_acts_of_administration_are_written_down(side: Guarded, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level("INFO", "penstock.audit")
    side.grant(user("u"))
    side.ask_as("u", C.DELETE_TOPIC_IN_BROKER, topic="T")
    side.ask_as("root", C.CLEAN_UNUSED_TOPIC)
    told = [record.getMessage() for record in caplog.records if record.name == "penstock.audit"]
    assert told[0].startswith(
        "admin user=u peer=127.0.0.1:9 act=DELETE_TOPIC_IN_BROKER topic=T result=refused: Need admin"
    )
    assert told[1] == "admin user=root peer=127.0.0.1:9 act=CLEAN_UNUSED_TOPIC result=ok"


def test_to_move_a_delayed_message_takes_the_rights_of_the_one_that_is_moved(side: Guarded) -> None:
    """Two fields name one: the rights are asked of that which is looked at."""
    side.grant(user("u", "publish:mine"))
    own, others = delayed(side, "mine"), delayed(side, "secret")
    for ext in ({"move": others, "due": 5}, {"id": own, "move": others, "due": 5}, {"id": others, "due": 5}):
        assert was_denied(side.ask_as("u", C.DELAYED_FIRE, **ext)), ext
    assert was_denied(side.ask_as("u", C.DELAYED_CANCEL, id=others, move=own))
    far = side.broker.now_ms + 3_600_000
    moved = side.ask_as("u", C.DELAYED_FIRE, id=others, move=own, due=far)
    assert (moved.code, side.broker.schedule.get(own), side.broker.schedule.get(others) is None) == (0, None, False)
    for wrong in ({"due": far}, {"move": others}, {"move": ""}, {}):
        assert side.ask_as("root", C.DELAYED_FIRE, **wrong).code == 1, wrong
    assert side.broker.schedule.get(others) is not None


def test_a_number_means_the_same_to_who_asks_for_rights_and_who_carries_out(side: Guarded) -> None:
    """With zeros before it, and as -0, it names the same message."""
    first = place_of(side, side.send_as("root", "secret"))
    side.grant(user("u", "publish:mine", "subscribe:mine", "group:G"))
    half = place_of(side, side.send_as("root", "secret", properties=HALF, f=4))
    at = place_of(side, side.send_as("root", "secret"))
    later = delayed(side, "secret")
    end = {"producerGroup": "G", "tranStateTableOffset": 0, "commitOrRollback": 8, "msgId": "x"}
    assert first == 0
    for number in ("-0", f"{at:019}"):
        assert was_denied(side.ask_as("u", C.VIEW_MESSAGE_BY_ID, offset=number))
        assert was_denied(side.ask_as("u", C.CONSUMER_SEND_MSG_BACK, offset=number, group="G", delayLevel=1))
    assert was_denied(side.ask_as("u", C.END_TRANSACTION, commitLogOffset=f"{half:019}", **end))
    assert was_denied(side.ask_as("u", C.DELAYED_CANCEL, id=f"{later:019}"))
    assert was_denied(side.ask_as("u", C.DELAYED_FIRE, move=f"{later:019}", due=5))
    assert not was_denied(side.ask_as("u", C.VIEW_MESSAGE_BY_ID, offset="1_0"))


def test_the_table_of_locks_is_of_queues_that_there_are(side: Guarded) -> None:
    """It is one for all groups; and a single queue for a list would be locked unasked."""
    side.send_as("root", "T", d=4)
    side.grant(user("u", "subscribe:T", "group:G"))
    here = {"topic": "T", "brokerName": side.broker.config.broker_name, "queueId": 1}
    others = [here | {"queueId": n} for n in range(-1, 2_000) if n != 1] + [here | {"brokerName": "b"}]

    def lock(queues: object) -> RemotingCommand:
        told = {"consumerGroup": "G", "clientId": "me", "mqSet": queues}
        return side.ask_as("u", C.LOCK_BATCH_MQ, json.dumps(told).encode())

    count = side.broker.topics.get(b"T").queue_count  # type: ignore[union-attr]
    assert len(json.loads(lock([here, *others]).body)["lockOKMQSet"]) == side.broker.locks.count == count
    assert was_denied(lock([here | {"topic": "secret"}]))
    assert lock(here | {"topic": "secret"}).code == 1
    assert side.broker.locks.count == count


def test_a_heartbeat_has_a_limit_and_a_form(side: Guarded) -> None:
    long = json.dumps({"clientID": "me", "producerDataSet": [], "more": "a" * HEARTBEAT_BYTES_MAX}).encode()
    assert side.ask_as("root", C.HEART_BEAT, long).code == 1
    for wrong in (5, "x", {"groupName": "G"}, [5]):
        for told in ({"consumerDataSet": wrong}, {"producerDataSet": wrong}):
            answer = side.ask_as("root", C.HEART_BEAT, json.dumps({"clientID": "me", **told}).encode())
            assert "the log of the server" not in (answer.remark or "")
    assert (side.broker.clients.consumers, side.broker.clients.producers) == ({}, {})


def test_who_says_to_be_anothers_producer_takes_none_of_its_messages_away(side: Guarded) -> None:
    """A reader sees the producer of a message. What it sends ahead in its name must not be taken for what that one sends next."""
    side.grant(user("u", "publish:mine", "subscribe:T"))
    for sequence, batch in (("00000000000000aa.7.1", False), ("00000000000000ab.7.1", True)):
        properties = f"PSEQ\x01{sequence}\x02"
        body = encode_batch([BatchItem(b"body")]) if batch else b"body"
        assert side.send_as("u", "mine", body, properties, m=str(batch).lower()).code == 0
        answer = side.send_as("root", "T", body, properties, m=str(batch).lower())
        assert (answer.code, answer.remark) == (13, f"send 7 of producer {sequence[:16]} went to another topic")
