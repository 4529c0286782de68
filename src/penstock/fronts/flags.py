"""The options of nsqd and nsqlookupd as data: flag, name in files and over HTTP, kind, default, where we keep it.

Command lines, `-config` files and `/config/<name>` are all read from these two tables.
"""

from __future__ import annotations

import hashlib
import logging
import socket
import zlib
from typing import Any, NamedTuple

from penstock.config import BrokerConfig, parts

LEVELS = {"debug": 1, "info": 2, "warn": 3, "error": 4, "fatal": 5}
TLS_REQUIRED = {"false": 0, "tcp-https": 1, "true": 2}
TLS_VERSIONS = {"tls1.0": 0x301, "tls1.1": 0x302, "tls1.2": 0x303, "tls1.3": 0x304}


class Option(NamedTuple):
    """One option. `setting` is the name in our configuration, empty when there is nothing to set."""

    flag: str
    kind: str  # text int duration bool list floats level tls version
    default: Any
    setting: str
    about: str
    config_name: str = ""

    @property
    def name(self) -> str:
        """As in files and over HTTP."""
        return self.config_name or self.flag.replace("-", "_")


NSQD = (
    Option("auth-http-address", "list", (), "auth_http_address",
           "<addr>:<port> or a full url to query auth server (may be given multiple times)", "auth_http_addresses"),
    Option("auth-http-request-method", "text", "get", "auth_http_request_method", "HTTP method for auth requests"),
    Option("broadcast-address", "text", "", "broadcast_address", "address registered with lookupd (default: host name)"),
    Option("broadcast-http-port", "int", 0, "broadcast_http_port", "HTTP port registered with lookupd"),
    Option("broadcast-tcp-port", "int", 0, "broadcast_tcp_port", "TCP port registered with lookupd"),
    Option("config", "text", "", "", "path to config file"),
    Option("data-path", "text", ".", "data", "path to store disk-backed messages"),
    Option("deflate", "bool", True, "deflate", "enable deflate feature negotiation"),
    Option("e2e-processing-latency-percentile", "floats", (), "e2e_processing_latency_percentile",
           "quantiles (0, 1.0] of message processing time to track (several, or comma separated)",
           "e2e_processing_latency_percentiles"),
    Option("e2e-processing-latency-window-time", "duration", 600_000, "e2e_processing_latency_window_time_ms",
           "time these quantiles look back"),
    Option("enable-experiment", "list", (), "", "accepted, without effect"),
    Option("http-address", "text", "0.0.0.0:4151", "http", "<addr>:<port> or <path> of a Unix socket; empty: none"),
    Option("http-client-connect-timeout", "duration", 2_000, "http_client_connect_timeout_ms",
           "timeout for HTTP connect"),
    Option("http-client-request-timeout", "duration", 5_000, "http_client_request_timeout_ms",
           "timeout for HTTP request"),
    Option("https-address", "text", "0.0.0.0:4152", "https", "<addr>:<port> for HTTPS clients"),
    Option("log-level", "level", "info", "log_level", "debug, info, warn, error, or fatal"),
    Option("log-prefix", "text", "[nsqd] ", "", "log message prefix"),
    Option("lookupd-tcp-address", "list", (), "lookupd_tcp_address", "lookupd TCP address (may be given multiple times)",
           "nsqlookupd_tcp_addresses"),
    Option("max-body-size", "int", 5_242_880, "max_body_size", "maximum size of a single command body"),
    Option("max-bytes-per-file", "int", 104_857_600, "max_bytes_per_file", "bytes per diskqueue file before rolling"),
    Option("max-channel-consumers", "int", 0, "max_channel_consumers", "maximum consumers of a channel (0: unlimited)"),
    Option("max-deflate-level", "int", 6, "max_deflate_level", "max deflate level a client can negotiate"),
    Option("max-heartbeat-interval", "duration", 60_000, "max_heartbeat_interval_ms",
           "maximum time between heartbeats a client can ask for"),
    Option("max-msg-size", "int", 1_048_576, "max_msg_size", "maximum size of a single message in bytes"),
    Option("max-msg-timeout", "duration", 900_000, "max_msg_timeout_ms", "maximum time before a message times out"),
    Option("max-output-buffer-size", "int", 65_536, "max_output_buffer_size", "maximum output buffer of a client"),
    Option("max-output-buffer-timeout", "duration", 30_000, "max_output_buffer_timeout_ms",
           "maximum time between flushes a client can ask for"),
    Option("max-rdy-count", "int", 2_500, "max_rdy_count", "maximum RDY count for a client"),
    Option("max-req-timeout", "duration", 3_600_000, "max_req_timeout_ms", "maximum requeuing timeout of a message"),
    Option("mem-queue-size", "int", 10_000, "mem_queue_size", "messages to keep in memory (per topic/channel)"),
    Option("min-output-buffer-timeout", "duration", 25, "min_output_buffer_timeout_ms",
           "minimum time between flushes a client can ask for"),
    Option("msg-timeout", "duration", 60_000, "msg_timeout_ms", "time to wait before auto-requeing a message"),
    Option("node-id", "int", -1, "node_id", "unique part of message IDs, 0 to 1023 (default: hash of host name)", "id"),
    Option("output-buffer-timeout", "duration", 250, "output_buffer_timeout_ms", "time between flushes to clients"),
    Option("queue-scan-selection-count", "int", 20, "", "accepted, without effect: timers are exact"),
    Option("queue-scan-worker-pool-max", "int", 4, "", "accepted, without effect: timers are exact"),
    Option("snappy", "bool", True, "snappy", "enable snappy feature negotiation"),
    Option("statsd-address", "text", "", "statsd_address", "UDP <addr>:<port> of a statsd daemon for pushing stats"),
    Option("statsd-exclude-ephemeral", "bool", False, "statsd_exclude_ephemeral", "leave ephemeral names out"),
    Option("statsd-interval", "duration", 60_000, "statsd_interval_ms", "time between pushes to statsd"),
    Option("statsd-mem-stats", "bool", True, "statsd_mem_stats", "send memory and GC stats to statsd"),
    Option("statsd-prefix", "text", "nsq.%s", "statsd_prefix", "prefix of statsd keys (%s for host replacement)"),
    Option("statsd-udp-packet-size", "int", 508, "statsd_udp_packet_size", "size in bytes of statsd UDP packets"),
    Option("sync-every", "int", 2_500, "sync_every", "messages per diskqueue fsync"),
    Option("sync-timeout", "duration", 2_000, "sync_timeout_ms", "time per diskqueue fsync"),
    Option("tcp-address", "text", "0.0.0.0:4150", "nsq", "<addr>:<port> or <path> of a Unix socket"),
    Option("tls-cert", "text", "", "tls_cert", "path to certificate file"),
    Option("tls-client-auth-policy", "text", "", "tls_client_auth_policy", "'require' or 'require-verify'"),
    Option("tls-key", "text", "", "tls_key", "path to key file"),
    Option("tls-min-version", "version", "tls1.0", "tls_min_version", "tls1.0, tls1.1, tls1.2 or tls1.3"),
    Option("tls-required", "tls", "false", "tls_required", "require TLS for clients (true, false, tcp-https)"),
    Option("tls-root-ca-file", "text", "", "tls_root_ca_file", "path to certificate authority file"),
    Option("topology-region", "text", "", "topology_region", "region told to lookupd"),
    Option("topology-zone", "text", "", "topology_zone", "zone told to lookupd"),
    Option("verbose", "bool", False, "", "[deprecated] has no effect, use --log-level"),
    Option("version", "bool", False, "", "print version string"),
    Option("worker-id", "bool", False, "", "[deprecated] use --node-id"),
)  # fmt: skip

NSQLOOKUPD = (
    Option("broadcast-address", "text", "", "broadcast_address", "address of this lookupd node (default: host name)"),
    Option("config", "text", "", "", "path to config file"),
    Option("http-address", "text", "0.0.0.0:4161", "lookup_http", "<addr>:<port> to listen on for HTTP clients"),
    Option("inactive-producer-timeout", "duration", 300_000, "inactive_producer_timeout_ms",
           "time a producer stays in the active list since its last ping"),
    Option("log-level", "level", "info", "log_level", "debug, info, warn, error, or fatal"),
    Option("log-prefix", "text", "[nsqlookupd] ", "", "log message prefix"),
    Option("tcp-address", "text", "0.0.0.0:4160", "lookup", "<addr>:<port> to listen on for TCP clients"),
    Option("tombstone-lifetime", "duration", 45_000, "tombstone_lifetime_ms",
           "time a producer stays tombstoned if it goes on registering"),
    Option("verbose", "bool", False, "", "[deprecated] has no effect, use --log-level"),
    Option("version", "bool", False, "", "print version string"),
)  # fmt: skip

_NSQD = {option.name: option for option in NSQD if option.name not in ("config", "version", "verbose", "worker_id")}


def nsqd_value(config: BrokerConfig, name: str, node_id: int) -> object:
    """The value of an nsqd option as `/config/<name>` shows it: durations in nanoseconds. KeyError: no such option."""
    option = _NSQD[name]
    if option.setting in ("nsq", "http", "https"):
        host = getattr(config, f"{option.setting}_host") or config.host
        return host if "/" in host else join(host, getattr(config, f"{option.setting}_port"))
    value = getattr(config, option.setting) if option.setting else option.default
    if name == "id":
        return node_id
    if option.kind == "duration":
        return value * 1_000_000
    if option.kind == "list":
        return parts(value) if isinstance(value, str) else list(value)
    if option.kind == "floats":
        return sorted((float(part) for part in parts(value)), reverse=True)
    tables = {"level": LEVELS, "tls": TLS_REQUIRED, "version": TLS_VERSIONS}
    return tables[option.kind][value] if option.kind in tables else value


def set_log_level(name: str) -> None:
    """What is logged from now on, in nsqd's words."""
    levels = (logging.DEBUG, logging.INFO, logging.WARNING, logging.ERROR, logging.CRITICAL)
    logging.getLogger("penstock").setLevel(levels[LEVELS[name] - 1])


def node_id(setting: int, hostname: str) -> int:
    """nsqd's number of this machine, 0 to 1023: what is set, else made from the host name."""
    return (
        setting if setting >= 0 else zlib.crc32(hashlib.md5(hostname.encode(), usedforsecurity=False).digest()) % 1024
    )


def broadcast_address(config: BrokerConfig) -> str:
    """The address we are told to others by: what is set, else the one we listen on, else the name of this machine."""
    host = config.nsq_host or config.host
    return config.broadcast_address or (socket.gethostname() if is_every_address(host) or "/" in host else host)


def is_every_address(host: str) -> bool:
    """Whether who binds to it listens on all addresses of this machine: to others it names none."""
    return host in ("", "0.0.0.0", "::")


def join(host: str, port: int) -> str:
    """host:port, with brackets where the host is IPv6."""
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"
