"""TLS of our listeners: contexts from the settings that nsqd has for them, made anew when the certificate is renewed."""

from __future__ import annotations

import logging
import ssl
import sys
from typing import TypedDict, cast

from msgspec.structs import replace

from penstock.config import BrokerConfig, RegistryConfig
from penstock.errors import ConfigError
from penstock.settingfiles import demand_file
from penstock.words import MS_A_SECOND

log = logging.getLogger("penstock.tls")

VERSIONS = {
    "tls1.0": ssl.TLSVersion.TLSv1,
    "tls1.1": ssl.TLSVersion.TLSv1_1,
    "tls1.2": ssl.TLSVersion.TLSv1_2,
    "tls1.3": ssl.TLSVersion.TLSv1_3,
}
POLICIES = ("", "optional", "require", "require-verify")
MODES = ("off", "optional", "required")


class Tls:
    """The TLS of a role's listeners: `context` is for the next connection, those there are keep theirs."""

    def __init__(self, config: BrokerConfig | RegistryConfig, context: ssl.SSLContext) -> None:
        self._config = config
        self.context = context
        self.handshake_s = config.tls_handshake_timeout_ms / MS_A_SECOND
        self.names_clients = config.tls_client_auth_policy in ("optional", "require-verify")

    def reload(self) -> None:
        """Take the files as they are now. What cannot be used changes nothing; the log says either."""
        config = self._config
        try:
            context = server_context(config)
        except ConfigError as error:
            log.error("the certificate could not be renewed, the old one stays error=%s", error)
            return
        assert context is not None
        self.context = context
        log.info("certificate renewed cert=%s", config.tls_cert)

    def client_name(self, connection: ssl.SSLObject) -> str:
        """The common name in the certificate that the client has shown and that was checked; empty without one, or with
        one that has several."""
        told = (connection.getpeercert() or {}) if self.names_clients else {}
        subject = cast(tuple[tuple[tuple[str, str], ...], ...], told.get("subject", ()))
        names = [value for part in subject for key, value in part if key == "commonName"]
        return names[0] if len(names) == 1 else ""


class Door(TypedDict):
    """How a port is opened: with TLS or without, and with it for plain peers too."""

    tls: Tls | None
    plain: bool


def share_certificate(broker: BrokerConfig, registry: RegistryConfig) -> RegistryConfig:
    """One certificate is enough for a process: a registry without one has the broker's."""
    if registry.tls_cert or registry.tls_key:
        return registry
    names = ("cert", "key", "root_ca_file", "client_auth_policy", "min_version", "handshake_timeout_ms")
    return replace(registry, **{f"tls_{name}": getattr(broker, f"tls_{name}") for name in names})


def server_tls(config: BrokerConfig | RegistryConfig) -> Tls | None:
    """The TLS of a role, None without a certificate. ConfigError for files and words that cannot be right."""
    context = server_context(config)
    return None if context is None else Tls(config, context)


def door(word: str, setting: str, tls: Tls | None) -> Door:
    """How a port is opened whose setting says this. ConfigError for words that mean nothing, or TLS that is required and
    cannot be had.
    """
    if word not in MODES:
        raise ConfigError(f"{setting} cannot be {word!r}", f"It is one of {', '.join(MODES)}.")
    if tls is None and word == "required":
        raise ConfigError(f"{setting} is required and there is no certificate", "Set tls_cert and tls_key.")
    return {"tls": None if word == "off" else tls, "plain": word == "optional"}


def server_context(config: BrokerConfig | RegistryConfig) -> ssl.SSLContext | None:
    """The context, or None when there is no certificate. ConfigError for files and words that cannot be right."""
    if not config.tls_cert and not config.tls_key:
        if getattr(config, "tls_required", "false") != "false" or config.tls_client_auth_policy:
            raise ConfigError("TLS is required and there is no certificate", "Set tls_cert and tls_key.")
        return None
    if config.tls_min_version not in VERSIONS:
        raise ConfigError(
            f"tls_min_version cannot be {config.tls_min_version!r}", f"It is one of {', '.join(VERSIONS)}."
        )
    policy = config.tls_client_auth_policy
    if policy not in POLICIES:
        raise ConfigError(
            f"tls_client_auth_policy cannot be {policy!r}", "It is optional, require or require-verify, or empty."
        )
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    # What the setting allows below 1.2 the library may still refuse; it warns about the names.
    context.minimum_version = max(VERSIONS[config.tls_min_version], ssl.TLSVersion.TLSv1_2)
    context.options |= ssl.OP_NO_COMPRESSION | ssl.OP_NO_RENEGOTIATION
    _demand_files(config)
    try:
        context.load_cert_chain(config.tls_cert, config.tls_key or None, password=_no_password)
        if config.tls_root_ca_file:
            context.load_verify_locations(config.tls_root_ca_file)
        elif policy:
            context.load_default_certs(ssl.Purpose.CLIENT_AUTH)
    except (OSError, ssl.SSLError, ValueError) as error:
        raise ConfigError(
            f"TLS files cannot be used: {error}", "Look at tls_cert, tls_key, tls_root_ca_file."
        ) from None
    if policy:
        context.verify_mode = ssl.CERT_OPTIONAL if policy == "optional" else ssl.CERT_REQUIRED
    if policy == "require":
        _take_any_certificate(context)
    return context


def peer_context(config: BrokerConfig) -> ssl.SSLContext | None:
    """For our connections to other nodes of the replica set; None where they are plain. It shows our certificate, and wants
    one of the other's address that tls_root_ca_file has signed, or an authority of the system. ConfigError.
    """
    if config.ha_tls != "required":
        return None
    _demand_files(config)
    try:
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
        context.minimum_version = max(VERSIONS[config.tls_min_version], ssl.TLSVersion.TLSv1_2)
        if config.tls_root_ca_file:
            context.load_verify_locations(config.tls_root_ca_file)
        else:
            context.load_default_certs()
        context.load_cert_chain(config.tls_cert, config.tls_key or None, password=_no_password)
    except (OSError, ssl.SSLError, ValueError, KeyError) as error:
        raise ConfigError(
            f"TLS files cannot be used: {error}", "Look at tls_cert, tls_key, tls_root_ca_file."
        ) from None
    return context


def _demand_files(config: BrokerConfig | RegistryConfig) -> None:
    """ConfigError for what OpenSSL would wait for, or read without end."""
    for file in (config.tls_cert, config.tls_key, config.tls_root_ca_file):
        if file:
            demand_file(file)


def _no_password() -> str:
    """A process has nobody to ask for the password of a key."""
    raise ValueError("the key is encrypted")


_kept: list[object] = []  # callbacks that OpenSSL may call for as long as the process lives


def _take_any_certificate(context: ssl.SSLContext) -> None:
    """A client must show a certificate and prove that it has the key; who signed it does not matter, as at nsqd.

    Python's ssl has no word for this, OpenSSL has: the context object holds the address of OpenSSL's own behind its head.
    ConfigError where that library's functions cannot be reached: silently asking for more, or for less, is not an option.
    """
    import ctypes

    # int (*)(X509_STORE_CTX *, void *): 1 says that the peer's certificate is good.
    kind = ctypes.CFUNCTYPE(ctypes.c_int, ctypes.c_void_p, ctypes.c_void_p)
    if not _kept:
        _kept.append(kind(lambda store, argument: 1))
    try:
        library = ctypes.CDLL(sys.modules["_ssl"].__file__)
        get_mode, set_callback = library.SSL_CTX_get_verify_mode, library.SSL_CTX_set_cert_verify_callback
        address = ctypes.c_void_p.from_address(id(context) + object.__basicsize__)
        get_mode.argtypes, get_mode.restype = [ctypes.c_void_p], ctypes.c_int
        set_callback.argtypes, set_callback.restype = [ctypes.c_void_p, kind, ctypes.c_void_p], None
        if not address.value or get_mode(address) & 3 != 3:  # VERIFY_PEER | FAIL_IF_NO_PEER_CERT, as was set above
            raise OSError("the context is of another shape")
        set_callback(address, _kept[0], None)
    except (OSError, AttributeError, TypeError) as error:
        raise ConfigError(
            f"tls_client_auth_policy=require cannot be had with this Python's OpenSSL: {error}",
            "Set require-verify, with tls_root_ca_file for the certificates to be taken.",
        ) from None
