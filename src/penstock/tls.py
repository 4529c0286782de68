"""The TLS context of our listeners, from the settings that nsqd has for it."""

from __future__ import annotations

import ctypes
import ssl
import sys

from penstock.config import BrokerConfig
from penstock.errors import ConfigError

VERSIONS = {
    "tls1.0": ssl.TLSVersion.TLSv1,
    "tls1.1": ssl.TLSVersion.TLSv1_1,
    "tls1.2": ssl.TLSVersion.TLSv1_2,
    "tls1.3": ssl.TLSVersion.TLSv1_3,
}


def server_context(config: BrokerConfig) -> ssl.SSLContext | None:
    """The context, or None when there is no certificate. ConfigError for files and words that cannot be right."""
    if not config.tls_cert and not config.tls_key:
        if config.tls_required != "false" or config.tls_client_auth_policy:
            raise ConfigError("TLS is required and there is no certificate", "Set tls_cert and tls_key.")
        return None
    if config.tls_min_version not in VERSIONS:
        raise ConfigError(
            f"tls_min_version cannot be {config.tls_min_version!r}", f"It is one of {', '.join(VERSIONS)}."
        )
    if config.tls_client_auth_policy not in ("", "require", "require-verify"):
        raise ConfigError(
            f"tls_client_auth_policy cannot be {config.tls_client_auth_policy!r}", "It is require or require-verify."
        )
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    # What the setting allows below 1.2 the library may still refuse; it warns about the names.
    context.minimum_version = max(VERSIONS[config.tls_min_version], ssl.TLSVersion.TLSv1_2)
    try:
        context.load_cert_chain(config.tls_cert, config.tls_key or None)
        if config.tls_root_ca_file:
            context.load_verify_locations(config.tls_root_ca_file)
        elif config.tls_client_auth_policy:
            context.load_default_certs(ssl.Purpose.CLIENT_AUTH)
    except (OSError, ssl.SSLError) as error:
        raise ConfigError(
            f"TLS files cannot be used: {error}", "Look at tls_cert, tls_key, tls_root_ca_file."
        ) from None
    if config.tls_client_auth_policy:
        context.verify_mode = ssl.CERT_REQUIRED
    if config.tls_client_auth_policy == "require":
        _take_any_certificate(context)
    return context


# int (*)(X509_STORE_CTX *, void *): 1 says that the peer's certificate is good.
_Verify = ctypes.CFUNCTYPE(ctypes.c_int, ctypes.c_void_p, ctypes.c_void_p)
_ANY = _Verify(lambda store, argument: 1)


def _take_any_certificate(context: ssl.SSLContext) -> None:
    """A client must show a certificate and prove that it has the key; who signed it does not matter, as at nsqd.

    Python's ssl has no word for this, OpenSSL has: the context object holds the address of OpenSSL's own behind its head.
    ConfigError where that library's functions cannot be reached: silently asking for more, or for less, is not an option.
    """
    try:
        library = ctypes.CDLL(sys.modules["_ssl"].__file__)
        get_mode, set_callback = library.SSL_CTX_get_verify_mode, library.SSL_CTX_set_cert_verify_callback
        address = ctypes.c_void_p.from_address(id(context) + object.__basicsize__)
        get_mode.argtypes, get_mode.restype = [ctypes.c_void_p], ctypes.c_int
        set_callback.argtypes, set_callback.restype = [ctypes.c_void_p, _Verify, ctypes.c_void_p], None
        if not address.value or get_mode(address) & 3 != 3:  # VERIFY_PEER | FAIL_IF_NO_PEER_CERT, as was set above
            raise OSError("the context is of another shape")
        set_callback(address, _ANY, None)
    except (OSError, AttributeError, TypeError) as error:
        raise ConfigError(
            f"tls_client_auth_policy=require cannot be had with this Python's OpenSSL: {error}",
            "Set require-verify, with tls_root_ca_file for the certificates to be taken.",
        ) from None
