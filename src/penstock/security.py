"""What our own connections say and ask for: TLS, a client certificate, a user and its secret.

Made from arguments, from a file (TOML), or from the environment, in this order; whoever makes connections takes one of
these and no more. The secret is in no `repr`, and a file that holds one is for its owner alone.
"""

from __future__ import annotations

import os
import ssl
from base64 import b64encode
from collections.abc import Mapping
from dataclasses import dataclass, fields
from functools import lru_cache
from pathlib import Path

from penstock.errors import ConfigError
from penstock.settingfiles import demand_file, text_of
from penstock.wire import acl
from penstock.wire.remoting import RemotingCommand

FILE = "PENSTOCK_SECURITY"
_TRUTHS = {
    "true": True,
    "yes": True,
    "on": True,
    "1": True,
    "false": False,
    "no": False,
    "off": False,
    "0": False,
    "": False,
}
_OTHERS = 0o077  # may do anything with a file


@dataclass(frozen=True, repr=False)
class Security:
    """How a client connects, and who it is.

    `tls_ca` is the file of the authorities that sign servers' certificates (without it those of the system), `tls_cert` and
    `tls_key` the client's own certificate. `insecure_skip_hostname` takes a server's certificate whatever host it is for.
    ConfigError for what does not go together.
    """

    tls: bool = False
    tls_ca: str = ""
    tls_cert: str = ""
    tls_key: str = ""
    insecure_skip_hostname: bool = False
    user: str = ""
    secret: str = ""

    def __post_init__(self) -> None:
        if not self.tls and (self.tls_ca or self.tls_cert or self.tls_key or self.insecure_skip_hostname):
            raise ConfigError("there are settings for TLS, and it is not on", "Set tls = true (PENSTOCK_TLS=true).")
        if self.tls_key and not self.tls_cert:
            raise ConfigError("there is a tls_key without its certificate", "Set tls_cert.")
        if bool(self.user) != bool(self.secret):
            raise ConfigError(
                f"there is a {'user' if self.user else 'secret'} alone", "Set user and secret, or neither."
            )

    def __repr__(self) -> str:
        shown = [f"{f.name}={getattr(self, f.name)!r}" for f in fields(self) if f.name != "secret"]
        return f"Security({', '.join(shown)}{', secret=…' if self.secret else ''})"

    @property
    def context(self) -> ssl.SSLContext | None:
        """For TLS connections; None without."""
        if not self.tls:
            return None
        return _context(self.tls_ca, self.tls_cert, self.tls_key, self.insecure_skip_hostname)

    def sign(self, request: RemotingCommand) -> None:
        """Make it a request of this user, if there is one; it must not be changed any more."""
        if self.user:
            acl.sign(request, self.user, self.secret)

    @property
    def nsq_auth(self) -> bytes:
        """The command that says to an nsqd who we are; empty without a user."""
        secret = f"{self.user}:{self.secret}".encode()
        return b"AUTH\n" + len(secret).to_bytes(4, "big") + secret if self.user else b""

    @property
    def http_headers(self) -> dict[str, str]:
        """What HTTP requests say of us."""
        if not self.user:
            return {}
        return {"Authorization": "Basic " + b64encode(f"{self.user}:{self.secret}".encode()).decode()}


PLAIN = Security()


def security_of(given: Security | str | Path | None, environment: Mapping[str, str] | None = None) -> Security:
    """This one, that of a file, or without either that of the environment. ConfigError."""
    if isinstance(given, Security):
        return given
    environment = os.environ if environment is None else environment
    if given is None:
        given = environment.get(FILE) or None
    return _of_environment(environment) if given is None else _of_file(Path(given))


def secret_of(file: str | Path) -> str:
    """The secret that a file holds, without the end of its line. ConfigError when others may read it too."""
    path = Path(file)
    _check_owner(path)
    try:
        return text_of(path).rstrip("\r\n")
    except (OSError, ValueError) as error:
        raise ConfigError(f"cannot read the secret in {path}: {error}") from None


def _check_owner(path: Path) -> None:
    try:
        mode = path.stat().st_mode
    except OSError as error:
        raise ConfigError(f"cannot read {path}: {error.strerror}") from None
    if os.name == "posix" and mode & _OTHERS:
        raise ConfigError(f"{path} holds a secret, and others than its owner may use it", f"Run: chmod 600 {path}")


def _of_file(path: Path) -> Security:
    import tomllib

    _check_owner(path)
    try:
        told = tomllib.loads(text_of(path))
    except (OSError, ValueError) as error:
        raise ConfigError(f"{path}: {error}") from None
    file = told.pop("secret_file", "")
    if file and "secret" in told:
        raise ConfigError(f"{path}: secret and secret_file exclude each other")
    if file:
        told["secret"] = secret_of(path.parent / str(file))
    kinds = {f.name: type(f.default) for f in fields(Security)}
    for name, value in told.items():
        if name not in kinds:
            raise ConfigError(f"{path}: unknown setting {name}", f"There are {', '.join([*kinds, 'secret_file'])}.")
        if type(value) is not kinds[name]:
            raise ConfigError(f"{path}: {name} cannot be {'what it is' if name == 'secret' else repr(value)}")
    for name in ("tls_ca", "tls_cert", "tls_key"):
        if told.get(name):
            told[name] = str(path.parent / told[name])
    return Security(**told)


def _of_environment(environment: Mapping[str, str]) -> Security:
    def text(name: str) -> str:
        return environment.get(f"PENSTOCK_{name}", "")

    def truth(name: str) -> bool:
        word = text(name).strip().lower()
        if word not in _TRUTHS:
            raise ConfigError(f"PENSTOCK_{name} cannot be {word!r}", "It is true or false.")
        return _TRUTHS[word]

    secret, file = text("SECRET"), text("SECRET_FILE")
    if secret and file:
        raise ConfigError("PENSTOCK_SECRET and PENSTOCK_SECRET_FILE exclude each other")
    return Security(
        truth("TLS"), text("TLS_CA"), text("TLS_CERT"), text("TLS_KEY"), truth("INSECURE_SKIP_HOSTNAME"),
        text("USER"), secret_of(file) if file else secret,
    )  # fmt: skip


@lru_cache(maxsize=16)
def _context(ca: str, cert: str, key: str, skip_hostname: bool) -> ssl.SSLContext:
    for file in (ca, cert, key):
        if file:
            demand_file(file)
    asked = f"tls_ca = {ca!r}"
    try:
        context = ssl.create_default_context(cafile=ca or None)
        context.minimum_version = ssl.TLSVersion.TLSv1_2
        if cert:
            asked = f"tls_cert = {cert!r}{f', tls_key = {key!r}' if key else ''}"
            context.load_cert_chain(cert, key or None)
    except (OSError, ValueError) as error:  # which name no file
        raise ConfigError(f"TLS files cannot be used: {asked}: {error}", "Look at tls_ca, tls_cert, tls_key.") from None
    if skip_hostname:
        context.check_hostname = False
    return context
