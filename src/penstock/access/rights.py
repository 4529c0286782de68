"""The one place that says who a peer is and whether it may: asked by every front, for whatever comes by any door.

    who      a certificate's name ▸ a user without a secret, by address ▸ what the request itself says and proves
    may it   `demand(user, needs)`: asked when a session's topic or group changes, and for each request that is no send or pull

Without users everything is allowed, and nobody but this machine can connect. From the first user on nothing is that was
not granted. The file is looked at twice a second; `changed` are told of a new one, once it is at rest: of one that is
half written, a user may be there and what binds it not yet. One that is broken, or gone, changes nothing: the users stay
those that were.
"""

from __future__ import annotations

import errno
import logging
import os
import re
from collections.abc import Callable, Iterable
from functools import partial
from pathlib import Path
from threading import Thread
from typing import NamedTuple, NoReturn

from penstock.access.logins import FailedLogins
from penstock.access.needs import ADMIN, Need
from penstock.access.plainacl import parse, read_acl
from penstock.access.users import Right, User, Verb, address_matches, read_users, token_digest
from penstock.errors import BAD_SIGNATURE, NO_ADMIN, NO_RIGHT, NO_USER, ConfigError, Refused
from penstock.faults import Told
from penstock.limits import Limits
from penstock.settingfiles import text_of
from penstock.wire.acl import ACCESS_KEY, is_signed
from penstock.wire.remoting import RemotingCommand

log = logging.getLogger("penstock.access")

LOOK_MS = 400
REST_MS = 100  # so long a file must stay as it is before it counts
GRAIN_MS = 2_100  # what is written later has another time, on any file system
LARGE_BYTES = 64 << 10  # from this size on a file is read beside the loop
READING_MS = 20
_MEMBER = re.compile(r".+-[0-9]+")
TRUSTED = User(
    "", rights=(Right(Verb.ADMIN),)
)  # whoever comes from an address that plain_acl.yml trusts with everything
_NOBODY = User("nobody", secret="there is no such user")


class Stamp(NamedTuple):
    """What tells one state of a file from another."""

    inode: int
    size: int
    modified_ns: int
    changed_ns: int  # its mode and owner, too: a file that is refused for those is read when they are right


def _read_file(path: Path) -> tuple[dict[str, User], tuple[str, ...]]:
    """Users, and addresses that are trusted with everything. ConfigError, OSError."""
    if path.stat().st_mode & 0o077:
        raise ConfigError(f"others can read {path}, which holds secrets", f"chmod 600 {path}")
    try:
        text = text_of(path)
    except UnicodeDecodeError as error:
        raise ConfigError(f"cannot read {path}: {error}") from None
    try:
        if path.suffix in (".yml", ".yaml"):
            users, trusted = read_acl(parse(text))
        else:
            users, trusted = read_users(text), ()
    except ConfigError as error:
        raise ConfigError(f"{path}: {error}", error.hint) from None
    return users, trusted


class _Reading(Thread):
    """A large file is read: some 40 µs for each user, which nobody has to wait for."""

    def __init__(self, path: Path, stamp: Stamp, before: Stamp | None) -> None:
        super().__init__(daemon=True, name="users")
        self._path = path
        self.stamp, self.before = stamp, before
        self.again = stamp == before  # whether it is as it was
        self.users: dict[str, User] = {}
        self.trusted: tuple[str, ...] = ()
        self.error: ConfigError | OSError | None = ConfigError(f"{path} was not read to its end")

    def begin(self) -> None:
        """In a thread, or in the caller's where the system gives none: a right that was taken away counts, whoever waits."""
        try:
            self.start()
        except RuntimeError:
            self.run()

    def run(self) -> None:
        try:
            self.users, self.trusted = _read_file(self._path)
        except (ConfigError, OSError) as error:
            self.error = error
        else:
            self.error = None


class Rights:
    """See the module. `path` is the file of users: TOML, or a plain_acl.yml by its suffix; None for none ever."""

    def __init__(
        self, path: Path | None = None, failed_logins_per_minute: int = 5, limits: Limits | None = None
    ) -> None:
        limits = limits or Limits()
        self.path = path
        self.users: dict[str, User] = {}
        self.trusted: tuple[str, ...] = ()  # addresses
        self._by_address: list[User] = []
        self._by_token: dict[str, User] = {}
        self.failed_logins = FailedLogins(failed_logins_per_minute, partial(limits.count, "logins"))
        self.times_read = 0
        self.denied = 0  # requests without the right
        self.changed: list[Callable[[], None]] = []
        self._on = False
        self._stamp: Stamp | None = None
        self._seen: Stamp | None = None  # at the last look
        self._reading: _Reading | None = None
        self._told = Told()
        self._look_ms = 0
        self._again_ms = 0  # when it is read again though nothing seems to have changed; 0: not
        self._mono_ms = 0
        if path is not None:
            try:
                self._stamp = self._look(path)
                if self._stamp is not None:
                    self._read(path)
            except OSError as error:
                raise ConfigError(f"cannot read {path}: {error.strerror}") from None
            self._seen = self._stamp
            self._again_ms = 1

    @property
    def on(self) -> bool:
        """Whether there are users: from then on it stays."""
        return self._on

    # -- the file ------------------------------------------------------------------------------------------------

    @staticmethod
    def _look(path: Path) -> Stamp | None:
        try:
            found = path.stat()
        except FileNotFoundError:
            return None
        return Stamp(found.st_ino, found.st_size, found.st_mtime_ns, found.st_ctime_ns)

    def _read(self, path: Path) -> None:
        """ConfigError, OSError: nothing has changed."""
        self._take(*_read_file(path))

    def _take(self, users: dict[str, User], trusted: tuple[str, ...]) -> None:
        self.users, self.trusted = users, trusted
        self._by_address = [user for user in users.values() if user.addresses and not user.secret and not user.tokens]
        self._by_token = {token: user for user in users.values() for token in user.tokens}
        self._on = self._on or bool(users or trusted)
        self.times_read += 1

    def tick(self, mono_ms: int) -> int:
        """Read the file again when it is another one; when to be called next. A large one is read by a thread: what it says holds
        from the call on that finds it read.
        """
        self._mono_ms = mono_ms
        if self.path is None:
            return mono_ms + 60_000
        if self._reading is not None:
            if self._reading.is_alive():
                return mono_ms + READING_MS
            reading, self._reading = self._reading, None
            if reading.stamp == self._stamp:  # nobody has read a newer one meanwhile
                self._finish(reading)
        if mono_ms >= self._look_ms:
            self._look_ms = mono_ms + LOOK_MS
            if not self._is_at_rest(self.path):
                self._look_ms = mono_ms + REST_MS
                return self._look_ms
            if self._begin_reading(self.path) or self._read_once_more(self.path, mono_ms):
                return mono_ms + READING_MS
            self.look_again()
        return self._look_ms

    def _is_at_rest(self, path: Path) -> bool:
        """Whether the file is as it was read, or as it was at the last look."""
        try:
            stamp = self._look(path)
        except OSError:
            return True  # which `look_again` tells
        seen, self._seen = self._seen, stamp
        return stamp in (self._stamp, seen)

    def _begin_reading(self, path: Path) -> bool:
        """Whether a large file has changed, and is being read now."""
        try:
            stamp = self._look(path)
        except OSError:
            return False
        if stamp is None or stamp == self._stamp or stamp.size < LARGE_BYTES:
            return False
        self._reading = _Reading(path, stamp, self._stamp)
        self._stamp, self._again_ms = stamp, 1
        self._reading.begin()
        return True

    def _read_once_more(self, path: Path, mono_ms: int) -> bool:
        """Whether a file that was read a while ago is being read again. Of two changes that follow each other so fast that the
        file system gives them one time, the second one is not seen else, where it has the length of the first.
        """
        if self._again_ms == 1:
            self._again_ms = mono_ms + GRAIN_MS
        if self._stamp is None or not 0 < self._again_ms <= mono_ms:
            return False
        self._again_ms = 0
        self._reading = _Reading(path, self._stamp, self._stamp)
        self._reading.begin()
        return True

    @property
    def modified_ms(self) -> int:
        """When the file was written."""
        return 0 if self._stamp is None else self._stamp.modified_ns // 1_000_000

    def look_again(self) -> None:
        """Read the file if it is another one than before."""
        path, before = self.path, self._stamp
        if path is None:
            return
        try:
            stamp = self._look(path)
            if stamp == self._stamp:
                return
            self._stamp, self._again_ms = stamp, 1
            if stamp is None:
                log.error("the file of users is gone: users and rights stay as they were file=%s", path)
                return
            self._read(path)
        except (ConfigError, OSError) as error:
            self._not_used(error, before)
            return
        self._changed()

    def _finish(self, reading: _Reading) -> None:
        if reading.again and (
            reading.error is not None or (reading.users, reading.trusted) == (self.users, self.trusted)
        ):
            return
        if reading.error is not None:
            self._not_used(reading.error, reading.before)
            return
        self._take(reading.users, reading.trusted)
        self._changed()

    def _not_used(self, error: ConfigError | OSError, before: Stamp | None) -> None:
        """A wrong file is looked at when it is another one; one that the system did not let us read, at every look."""
        again = isinstance(error, OSError)
        if again:
            self._stamp = before
        if not again or self._told.is_news(str(error), self._mono_ms):
            log.error("the file of users cannot be used: users and rights stay as they were error=%s %s",
                      error, getattr(error, "hint", ""))  # fmt: skip

    def _changed(self) -> None:
        self._told.over()
        log.info("users read file=%s users=%d", self.path, len(self.users))
        for told in self.changed:
            told()

    # -- who -----------------------------------------------------------------------------------------------------

    def _is_trusted(self, host: str) -> bool:
        """Whether whoever comes from there may everything."""
        return any(address_matches(pattern, host) for pattern in self.trusted)

    def by_connection(self, remote: str, certificate: str) -> User | None:
        """The user of a connection, before it has said anything: by its certificate, or by its address."""
        host = host_of(remote)
        if self._is_trusted(host):
            return TRUSTED
        if certificate:
            user = self.users.get(certificate)
            return user if user is not None and user.comes_from(host) else None
        return next((user for user in self._by_address if user.comes_from(host)), None)

    def _login(self, name: str, proves: Callable[[User], bool], remote: str, known: User | None) -> User | None:
        """The user of this name, if it proves to be it and comes from where it may; None otherwise, in the same time.

        Who is logged in already (`known`) is not refused for the failures of others.
        """
        host = host_of(remote)
        logged_in = known is not None and known.name == name
        if not logged_in and self.failed_logins.too_many(host, name, self._mono_ms):
            return None
        user = self.users.get(name)
        proven = proves(_NOBODY if user is None else user)
        if user is not None and proven and user.comes_from(host):
            return user
        self.failed_logins.failed(host, name, self._mono_ms)
        log.warning("login failed user=%s peer=%s", ascii(name)[:100], remote)
        return None

    def of_request(self, request: RemotingCommand, remote: str, known: User | None) -> User:
        """Who wrote a remoting request that names a user. Refused when it does not prove it; from an address that is trusted
        nobody has to, as at RocketMQ.
        """
        name, host = request.ext.get(ACCESS_KEY, ""), host_of(remote)
        user = self.users.get(name)
        if self._is_trusted(host) or (
            user is not None and user.trusted_from and address_matches(user.trusted_from, host)
        ):
            return TRUSTED
        user = self._login(name, lambda user: bool(user.secret) & is_signed(request, user.secret), remote, known)
        if user is None:
            raise Refused(BAD_SIGNATURE + name, nsq="E_AUTH_FAILED", http=401)
        return user

    def of_password(self, name: str, secret: str, remote: str, known: User | None = None) -> User | None:
        """The user with this name and secret."""
        return self._login(name, lambda user: user.has_secret(secret), remote, known)

    def of_token(self, token: str, remote: str) -> User | None:
        """The user whose token this is."""
        host = host_of(remote)
        if self.failed_logins.too_many(host, "", self._mono_ms):
            return None
        user = self._by_token.get(token_digest(token))
        if user is not None and user.comes_from(host):
            return user
        self.failed_logins.failed(host, "", self._mono_ms)
        log.warning("login failed by token peer=%s", remote)
        return None

    def as_now(self, user: User | None) -> User | None:
        """A user that was met earlier, with the rights it has by now; None when it is gone."""
        return user if user is None or user is TRUSTED else self.users.get(user.name)

    # -- may it --------------------------------------------------------------------------------------------------

    def missing(self, user: User | None, needs: Iterable[Need]) -> Need | None:
        """The first need that this user has no right for."""
        return next(
            (
                need
                for need in needs
                if user is None or (need.verbs and not any(user.may(v, need.name) for v in need.verbs))
            ),
            None,
        )

    def demand(self, user: User | None, needs: Iterable[Need], code: int = 0) -> None:
        """Refused when there are users and this one may not."""
        if not self._on:
            return
        need = self.missing(user, needs)
        if need is not None:
            self._deny(user, need, code)

    def _deny(self, user: User | None, need: Need, code: int) -> NoReturn:
        self.denied += 1
        if user is None:
            raise Refused(NO_USER, nsq="E_AUTH_FIRST", http=401)
        if need == ADMIN:
            remark = f"{NO_ADMIN}{code}, but accessKey={user.name} is not"
        else:
            remark = NO_RIGHT + need.described()
        raise Refused(remark, nsq="E_UNAUTHORIZED", http=403)


def users_file(setting: str, data: str) -> Path:
    """The file of users that settings name: `users.toml` in the data folder where they name none."""
    return Path(setting) if setting else Path(data) / "users.toml"


def _unnamed(folder: Path) -> list[Path]:
    """Where the file is when nobody names it: in the data folder, or that of the first of several brokers, in which the others'
    are (`broker-a-2`, `replica-2`).
    """
    found = [folder / "users.toml"]
    while _MEMBER.fullmatch(folder.name):
        folder = folder.parent
        found.append(folder / "users.toml")
    return found


def check_folder(data: str) -> None:
    """ConfigError for a data folder that is, or lies below, a file, or whose links go round."""
    try:
        os.stat(data)
    except OSError as error:
        if error.errno == errno.ELOOP:
            raise ConfigError(
                f"data: {data} cannot be a folder: {error.strerror}", "Name another place with --data."
            ) from None
    blocked = next((part for part in (Path(data), *Path(data).parents) if part.is_file()), None)
    if blocked is not None:
        raise ConfigError(f"data: {data} cannot be a folder: {blocked} is a file", "Name another place with --data.")


def read_rights(setting: str, data: str, failed_logins_per_minute: int = 5, limits: Limits | None = None) -> Rights:
    """The users that settings name. ConfigError for a file of them that cannot be used. One that is named may be made later; till
    then nobody is asked who he is, which is told.
    """
    path = users_file(setting, data)
    check_folder(data)  # else the file of users, which nobody has named, is what could not be opened
    if setting and path not in _unnamed(Path(data)) and not path.exists():
        log.warning(
            "users names a file that is not there: everything is allowed until it is (penstock user add) path=%s", path
        )
    return Rights(path, failed_logins_per_minute, limits)


def host_of(remote: str) -> str:
    """The host of `address:port`; of a Unix socket, this machine."""
    host = remote.rpartition(":")[0].strip("[]")
    return host or "127.0.0.1"
