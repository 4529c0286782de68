"""Bodies of etcd's gateway: as etcd 3.4 writes them, and what is none."""

from __future__ import annotations

import json

import pytest

from penstock.errors import WireError
from penstock.wire import etcd
from penstock.wire.etcd import Entry, Holds, Put, Unchanged

HEAD = '{"cluster_id":"324952591200643719","member_id":"3319814642761637952","revision":"7","raft_term":"2"}'


def test_requests() -> None:
    assert etcd.grant(5) == b'{"TTL":"5"}'
    assert etcd.lease(1 << 62) == b'{"ID":"4611686018427387904"}'
    assert json.loads(etcd.below("/p/")) == {"key": "L3Av", "range_end": "L3Aw"}
    body = json.loads(
        etcd.change([Unchanged("a", 0), Unchanged("b", 9), Holds("c", b"5")], [Put("k", b"v", 3), Put("l", b"")])
    )
    assert body["compare"] == [
        {"key": "YQ==", "target": "CREATE", "result": "EQUAL", "create_revision": "0"},
        {"key": "Yg==", "target": "MOD", "result": "EQUAL", "mod_revision": "9"},
        {"key": "Yw==", "target": "VALUE", "result": "EQUAL", "value": "NQ=="},
    ]
    assert body["success"] == [
        {"request_put": {"key": "aw==", "value": "dg==", "lease": "3"}},
        {"request_put": {"key": "bA==", "value": "", "lease": "0"}},
    ]


def test_answers_of_etcd() -> None:
    assert etcd.read_grant(f'{{"header":{HEAD},"ID":"2324035560742257669","TTL":"5"}}'.encode()) == 2324035560742257669
    assert etcd.read_keep(f'{{"result":{{"header":{HEAD},"ID":"123","TTL":"5"}}}}'.encode(), 123)
    assert not etcd.read_keep(f'{{"result":{{"header":{HEAD},"ID":"123"}}}}'.encode(), 123)
    row = '{"key":"L3A=","create_revision":"2","mod_revision":"3","version":"1","value":"YQ==","lease":"8"}'
    assert etcd.read_entries(f'{{"header":{HEAD},"kvs":[{row}],"count":"1"}}'.encode()) == {"/p": Entry(b"a", 3, 8)}
    assert etcd.read_entries(f'{{"header":{HEAD}}}'.encode()) == {}
    assert etcd.read_change(f'{{"header":{HEAD},"succeeded":true,"responses":[]}}'.encode()) == 7
    assert etcd.read_change(f'{{"header":{HEAD}}}'.encode()) == 0
    trailer = b'{"error":"e","message":"etcdserver: requested lease not found","code":5}Grpc-Trailer-Content-Type: x'
    assert etcd.read_error(trailer) == (5, "etcdserver: requested lease not found")
    assert etcd.read_error(b"<html>") == (0, "")
    assert etcd.read_login(b'{"token":"abc.7"}') == "abc.7"


@pytest.mark.parametrize(
    "text",
    [
        "", "[]", "7", "{}", "nul", "{" * 100_000, '{"header":{}}', '{"header":7}', '{"header":{"cluster_id":"0"}}',
        '{"header":{"cluster_id":"x"}}', f'{{"header":{HEAD},"kvs":7}}', f'{{"header":{HEAD},"kvs":[7]}}',
        f'{{"header":{HEAD},"kvs":[{{"key":"%"}}]}}', f'{{"header":{HEAD},"kvs":[{{"mod_revision":5}}]}}',
        f'{{"header":{HEAD},"kvs":[],"more":true}}', f'{{"header":{HEAD},"ID":"-1"}}', f'{{"header":{HEAD},"ID":"{"9" * 99}"}}',
        f'{{"header":{HEAD},"succeeded":"yes"}}', '{"result":7}', f'{{"result":{{"header":{HEAD},"ID":"1","TTL":"5"}}}}',
        '{"token":7}', '{"token":"a\\r\\nX: y"}',
    ],
)  # fmt: skip
def test_answers_that_cannot_be_right(text: str) -> None:
    """None of the readers takes one of them for its own, but for those in which what it looks for is only absent."""
    data, taken = text.encode(), 0
    readers = [
        etcd.read_grant, lambda d: etcd.read_keep(d, 2), etcd.read_entries, etcd.read_change, etcd.read_login,
    ]  # fmt: skip
    for read in readers:
        try:
            taken += bool(read(data))
        except WireError:
            continue
    assert not taken
