"""`wire.codes`: header fields as data, read strictly."""

import pytest

from penstock.errors import Refused
from penstock.wire.codes import HEADER_TEXTS, SEND_V2_NAMES, RequestCode, header_fields, read_fields, read_int


def test_every_request_has_its_fields() -> None:
    assert set(HEADER_TEXTS) == set(RequestCode)
    assert {field.name for field in header_fields(RequestCode.SEND_MESSAGE_V2)} == set(SEND_V2_NAMES)
    assert {field.name for field in header_fields(RequestCode.SEND_MESSAGE)} == set(SEND_V2_NAMES.values())


def test_values() -> None:
    fields = read_fields(
        12, {"topic": "T", "key": "k", "maxNum": "32", "beginTimestamp": "-1", "endTimestamp": "9", "x": "y"}
    )
    assert fields == {
        "topic": "T",
        "key": "k",
        "maxNum": 32,
        "beginTimestamp": -1,
        "endTimestamp": 9,
        "_UNIQUE_KEY_QUERY": None,
    }
    assert read_fields(317, {"isOrder": "TRUE"}) == {"isOrder": True}
    assert read_fields(317, {"isOrder": "1"}) == {"isOrder": False}


def test_missing() -> None:
    with pytest.raises(Refused, match="the custom field <topic> is null") as caught:
        read_fields(105, {})
    assert caught.value.remoting == 1


@pytest.mark.parametrize("text", ["", "-", "1_0", "+5", " 5", "٣", "5\n", "1.0", "--1", "9" * 20, "²"])
def test_numbers_are_digits(text: str) -> None:
    with pytest.raises(Refused, match="queueId is not a number"):
        read_int("queueId", text)


def test_number_range() -> None:
    assert read_int("x", str(-(2**63))) == -(2**63)
    for text, bits in (("2147483648", 31), ("9223372036854775808", 63)):
        with pytest.raises(Refused, match="out of range"):
            read_int("x", text, bits)
