"""`security`: where it comes from, what does not go together, and that the secret stays where it is."""

from __future__ import annotations

import pickle
from pathlib import Path

import pytest

from certificates import Authority, Certificate
from penstock.errors import ConfigError
from penstock.security import PLAIN, Security, secret_of, security_of
from penstock.wire.acl import is_signed
from penstock.wire.remoting import RemotingCommand

ANNA = Security(user="anna", secret="s3cret-of-anna")


def private(path: Path, text: str, mode: int = 0o600) -> Path:
    path.write_text(text)
    path.chmod(mode)
    return path


def test_the_secret_is_shown_nowhere() -> None:
    for shown in (repr(ANNA), str(ANNA), f"{ANNA}", repr([ANNA])):
        assert "s3cret" not in shown
        assert "anna" in shown
    with pytest.raises(ConfigError) as caught:
        Security(secret="s3cret")
    assert "s3cret" not in f"{caught.value}{caught.value.hint}"


def test_it_travels_to_tasks(authority: Authority) -> None:
    whole = Security(True, str(authority.cert), user="anna", secret="s")
    assert whole.context is not None
    assert pickle.loads(pickle.dumps(whole)) == whole
    assert hash(pickle.loads(pickle.dumps(whole))) == hash(whole)


def test_the_environment(tmp_path: Path) -> None:
    assert security_of(None, {}) == PLAIN
    assert security_of(None, {"PENSTOCK_TLS": "no"}) == PLAIN
    named = {f"PENSTOCK_TLS{end}": word for end, word in (("", "true"), ("_CA", "a"), ("_CERT", "b"), ("_KEY", "c"))}
    found = security_of(None, named | {"PENSTOCK_USER": "u", "PENSTOCK_SECRET": "s"})
    assert found == Security(True, "a", "b", "c", False, "u", "s")
    file = private(tmp_path / "secret", "of a file\n")
    found = security_of(None, {"PENSTOCK_USER": "u", "PENSTOCK_SECRET_FILE": str(file)})
    assert (found.user, found.secret) == ("u", "of a file")
    assert security_of(ANNA, named) is ANNA
    skip = {"PENSTOCK_TLS": "1", "PENSTOCK_INSECURE_SKIP_HOSTNAME": "yes"}
    assert security_of(None, skip).insecure_skip_hostname


def test_a_file(tmp_path: Path) -> None:
    private(tmp_path / "secret", "deep")
    file = private(tmp_path / "penstock.toml", 'tls = true\ntls_ca = "ca.pem"\nuser = "u"\nsecret_file = "secret"\n')
    expected = Security(True, str(tmp_path / "ca.pem"), user="u", secret="deep")
    assert security_of(str(file)) == security_of(file) == expected
    assert security_of(None, {"PENSTOCK_SECURITY": str(file), "PENSTOCK_TLS": "false"}) == expected


@pytest.mark.parametrize("mode", [0o640, 0o604, 0o620, 0o660])
def test_a_file_that_others_may_read_is_refused(tmp_path: Path, mode: int) -> None:
    for text, read in (("s", secret_of), ("user = 'u'\nsecret = 's'", security_of)):
        with pytest.raises(ConfigError, match="others than its owner") as caught:
            read(private(tmp_path / "file", text, mode))
        assert "chmod 600" in str(caught.value.hint)


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("tls = ", "Invalid"), ("tsl = true", "unknown setting tsl"), ("tls = 1", "tls cannot be 1"),
        ("user = 'u'", "a user alone"), ("secret = 's3cret'", "a secret alone"), ("tls_ca = 'x'", "not on"),
        ("tls = true\ntls_key = 'x'", "without its certificate"), ("secret = 3333", "secret cannot be what it is"),
        ("user='u'\nsecret='a'\nsecret_file='b'", "exclude each other"),
    ],
)  # fmt: skip
def test_what_does_not_go_together(tmp_path: Path, text: str, why: str) -> None:
    with pytest.raises(ConfigError, match=why) as caught:
        security_of(private(tmp_path / "file", text))
    assert "s3cret" not in str(caught.value)
    assert "3333" not in str(caught.value)


def test_words_and_files_that_are_not_there(tmp_path: Path) -> None:
    for environment in (
        {"PENSTOCK_TLS": "perhaps"}, {"PENSTOCK_USER": "u"}, {"PENSTOCK_SECRET": "a", "PENSTOCK_SECRET_FILE": "b"},
        {"PENSTOCK_SECURITY": str(tmp_path / "nowhere")}, {"PENSTOCK_USER": "u", "PENSTOCK_SECRET_FILE": "/nowhere"},
    ):  # fmt: skip
        with pytest.raises(ConfigError):
            security_of(None, environment)
    with pytest.raises(ConfigError, match="TLS files"):
        _ = Security(True, str(tmp_path / "nowhere")).context


def test_what_is_said(client_certificate: Certificate) -> None:
    request = RemotingCommand(10, {"a": "b"}, b"body")
    PLAIN.sign(request)
    assert request.ext == {"a": "b"}
    ANNA.sign(request)
    ANNA.sign(request)  # for another try
    assert is_signed(request, ANNA.secret)
    assert not is_signed(request, "another")
    assert ANNA.nsq_auth == b"AUTH\n\0\0\0\x13anna:s3cret-of-anna"
    assert PLAIN.nsq_auth == b""
    assert ANNA.http_headers == {"Authorization": "Basic YW5uYTpzM2NyZXQtb2YtYW5uYQ=="}
    assert PLAIN.http_headers == {}
    own = Security(True, tls_cert=str(client_certificate.cert), tls_key=str(client_certificate.key)).context
    assert own is not None
    assert own.check_hostname
    skipped = Security(True, insecure_skip_hostname=True).context
    assert skipped is not None
    assert not skipped.check_hostname
