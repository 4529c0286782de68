"""The TLS context of our listeners, from the settings that nsqd has for it."""

from __future__ import annotations

import ssl

from penstock.config import BrokerConfig
from penstock.errors import ConfigError

VERSIONS = {
    "tls1.0": ssl.TLSVersion.TLSv1,
    "tls1.1": ssl.TLSVersion.TLSv1_1,
    "tls1.2": ssl.TLSVersion.TLSv1_2,
    "tls1.3": ssl.TLSVersion.TLSv1_3,
}


def server_context(config: BrokerConfig) -> ssl.SSLContext | None:
    """The context, or None when there is no certificate. ConfigError for files and words that cannot be right.

    A client certificate that is required is also verified: Python has no way to take any.
    """
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
    return context
