"""The signature of a request, against one made with openssl, and what it covers."""

from __future__ import annotations

from penstock.wire.acl import is_signed, sign, signature
from penstock.wire.remoting import RemotingCommand


def request(**fields: str) -> RemotingCommand:
    return RemotingCommand(310, {"b": "Topic", "a": "group", "i": "", **fields}, b"body")


def test_the_values_by_ascending_name_and_the_body() -> None:
    # printf 'RocketMQgroupTopicbody' | openssl dgst -sha1 -hmac 12345678 -binary | base64
    fields = {"b": "Topic", "a": "group", "AccessKey": "RocketMQ", "Signature": "x", "_UNIQUE_KEY_QUERY": "true"}
    assert signature("12345678", fields, b"body") == "+LboCFOtKdK9RXvDIlcjt/3JnlY="


def test_a_signed_request_is_the_users_until_a_field_or_the_body_changes() -> None:
    signed = request()
    sign(signed, "user", "secret-secret")
    assert is_signed(signed, "secret-secret")
    assert not is_signed(signed, "secret-secreT")
    changed = RemotingCommand(310, {**signed.ext, "b": "Other"}, signed.body)
    assert not is_signed(changed, "secret-secret")
    assert not is_signed(RemotingCommand(310, signed.ext, b"bodY"), "secret-secret")
    assert is_signed(RemotingCommand(11, signed.ext, signed.body), "secret-secret")  # the code is not covered


def test_a_request_without_a_signature_or_with_one_that_is_no_text_is_nobodys() -> None:
    assert not is_signed(request(), "")
    assert not is_signed(request(Signature="ä\ud800"), "secret")
