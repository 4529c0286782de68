"""The commands `nsqd` and `nsqlookupd`: their command line, their log lines, our broker and registry inside.

The flags are the tables of `fronts.flags`, in the syntax of Go's flag package: `-name value`, `--name=value`; a boolean
is `-name` or `-name=false`. Flag beats `-config` file beats default. Only what listening needs is imported before it.
"""

from __future__ import annotations

import gc
import logging
import os
import sys
from collections.abc import Callable, Iterable, Sequence
from typing import TYPE_CHECKING, Any, NoReturn

from penstock.config import BrokerConfig, RegistryConfig
from penstock.errors import PenstockError
from penstock.fronts.flags import LEVELS, NSQD, NSQLOOKUPD, TLS_REQUIRED, TLS_VERSIONS, Option, set_log_level

if TYPE_CHECKING:
    from penstock.app import Server

log = logging.getLogger("penstock.nsqd")

TRUTHS = {"1": True, "t": True, "T": True, "true": True, "TRUE": True, "True": True,
          "0": False, "f": False, "F": False, "false": False, "FALSE": False, "False": False}  # fmt: skip
_UNITS = {"ns": 1e-6, "us": 1e-3, "µs": 1e-3, "μs": 1e-3, "ms": 1, "s": 1e3, "m": 6e4, "h": 36e5}
_LISTS = ("list", "floats")


Values = dict[str, Any]
"""The values of flags, by the name of the setting; each is as its `Option` reads it."""


class Usage(Exception):
    """A command line that cannot be obeyed; the text is what Go's flag package says."""


class Fatal(Usage):
    """Values that are read and cannot be: nsqd says so in its log and ends with 1."""


# -- reading -----------------------------------------------------------------------------------------------------------


def duration_ms(text: str) -> int:
    """`300ms`, `1m30s`, `1.5h` in milliseconds. ValueError."""
    import re

    if text in ("0", "+0", "-0"):
        return 0
    pieces = re.findall(r"([0-9]+\.?[0-9]*|\.[0-9]+)(ns|us|µs|μs|ms|s|m|h)", text)
    if not pieces or "".join(number + unit for number, unit in pieces) != text:
        raise ValueError(text)
    found = round(sum(float(number) * _UNITS[unit] for number, unit in pieces))
    if found * 1_000_000 >= 1 << 63:
        raise ValueError(text)
    return found


def read_value(option: Option, text: str) -> Any:
    """The value of a flag as its kind has it. ValueError."""
    if option.kind == "bool":
        if text not in TRUTHS:
            raise ValueError(text)
        return TRUTHS[text]
    if option.kind == "int":
        number = int(text, 0) if text.lstrip("+-").isalnum() and text.isascii() else int("x")
        if not -(1 << 63) <= number < 1 << 63:
            raise OverflowError(text)
        return number
    if option.kind == "duration":
        return duration_ms(text)
    if option.kind == "floats":
        found = [float(part) for part in text.split(",")]
        for value in found:
            if not 0 < value <= 1:
                wrong = f"invalid E2E processing latency percentile: {value:g} (parse error)"
                raise Fatal(f"failed to instantiate nsqd - {wrong}")
        return found
    if option.kind == "level":
        return _word(text.lower(), LEVELS)
    if option.kind == "version":
        return _word(text.lower(), TLS_VERSIONS)
    if option.kind == "tls":
        text = text.lower()
        return (
            text if text == "tcp-https" else ("true" if TRUTHS.get(text, text == "yes") else _word(text, TLS_REQUIRED))
        )
    return [text] if option.kind == "list" else text


def _word(text: str, words: Iterable[str]) -> str:
    if text not in words:
        raise ValueError(text)
    return text


def parse(options: Sequence[Option], arguments: Sequence[str]) -> Values:
    """Flag name → value, of the flags that were given. Usage."""
    known = {option.flag: option for option in options}
    found: Values = {}
    rest = list(arguments)
    while rest:
        word = rest.pop(0)
        if len(word) < 2 or word[0] != "-" or word == "--":
            break  # as in Go, what follows is no flag
        name, equals, text = word[2 if word.startswith("--") else 1 :].partition("=")
        if not name or name[0] in "-=":
            raise Usage(f"bad flag syntax: {word}")
        if name in ("h", "help"):
            raise Usage("")
        option = known.get(name)
        if option is None:
            raise Usage(f"flag provided but not defined: -{name}")
        if not equals:
            if option.kind == "bool":
                text = "true"
            elif rest:
                text = rest.pop(0)
            else:
                raise Usage(f"flag needs an argument: -{name}")
        try:
            value = read_value(option, text)
        except OverflowError:
            raise Usage(f'invalid value "{text}" for flag -{name}: value out of range') from None
        except ValueError:
            raise Usage(f'invalid value "{text}" for flag -{name}: parse error') from None
        found[name] = [*found.get(name, ()), *value] if option.kind in _LISTS else value
    return found


def read_file(options: Sequence[Option], path: str) -> Values:
    """The same from a TOML file; names that are no options are passed over, as nsqd does. Usage."""
    import tomllib

    try:
        with open(path, "rb") as file:
            table = tomllib.load(file)
    except OSError as error:
        raise Fatal(f"failed to load config file {path} - open {path}: {(error.strerror or '').lower()}") from None
    except tomllib.TOMLDecodeError as error:
        raise Fatal(f"failed to load config file {path} - {error}") from None
    found: Values = {}
    for option in options:
        if option.name not in table:
            continue
        value = table[option.name]
        try:
            if option.kind in _LISTS and isinstance(value, list):
                found[option.flag] = [one for part in value for one in read_value(option, str(part))]
            else:
                found[option.flag] = read_value(option, str(value).lower() if isinstance(value, bool) else str(value))
        except (ValueError, OverflowError):
            raise Fatal(f"failed to load config file {path} - {option.name} cannot be {value!r}") from None
    return found


def options_of(options: Sequence[Option], arguments: Sequence[str]) -> Values:
    """Every option's value: flag, else file, else default. Usage."""
    flags = parse(options, arguments)
    file = read_file(options, flags["config"]) if flags.get("config") else {}
    return {option.flag: option.default for option in options} | file | flags


def usage(name: str, options: Sequence[Option]) -> str:
    """What -help prints."""
    lines = [f"Usage of {name}:"]
    for option in options:
        word = {"bool": "", "duration": " duration", "int": " int", "text": " string"}.get(option.kind, " value")
        default = option.default
        shown = "" if default in ("", (), False, 0) else f" (default {_go(option)})"
        lines += [f"  -{option.flag}{word}", f"    \t{option.about}{shown}"]
    return "\n".join(lines)


def _go(option: Option) -> str:
    if option.kind == "duration":
        return f"{option.default}ms" if option.default % 1000 else f"{option.default // 1000}s"
    return f'"{option.default}"' if option.kind == "text" else str(option.default).lower()


# -- our settings ------------------------------------------------------------------------------------------------------


def _split(address: str) -> tuple[str, int]:
    """Host and port of an address; a path is a Unix socket, nothing is no listener. Usage."""
    if not address:
        return "", -1
    if ":" not in address or "/" in address:
        return (address if "/" in address else f"./{address}"), -1
    host, _, port = address.rpartition(":")
    if not port.isdecimal() or int(port) > 65_535:
        raise Fatal(f"failed to instantiate nsqd - listen ({address}) failed - address {port}: invalid port")
    return host.strip("[]") or "0.0.0.0", int(port)


def settings(options: Sequence[Option], values: Values) -> Values:
    """The options in our words."""
    found: Values = {}
    for option in options:
        value = values[option.flag]
        if option.flag.endswith("-address") and option.setting in ("nsq", "http", "https", "lookup", "lookup_http"):
            found[f"{option.setting}_host"], found[f"{option.setting}_port"] = _split(value)
        elif option.setting:
            found[option.setting] = ";".join(map(str, value)) if option.kind in _LISTS else value
    return found


def nsqd_config(values: Values) -> BrokerConfig:
    """The broker that these options make: queue topics only, nsqd's open manners."""
    import socket

    found = settings(NSQD, values)
    if not 0 <= found["node_id"] < 1024 and found["node_id"] != -1:
        raise Fatal("failed to instantiate nsqd - --node-id must be [0,1024)")
    if not 1 <= found["max_deflate_level"] <= 9:
        raise Fatal("failed to instantiate nsqd - --max-deflate-level must be [1,9]")
    if not os.path.isdir(found["data"] or "."):
        raise Fatal(f"failed to instantiate nsqd - failed to lock data-path: open {found['data']}: no such directory")
    if found["tls_client_auth_policy"] and found["tls_required"] == "false":
        found["tls_required"] = "true"
    found["broadcast_address"] = found["broadcast_address"] or socket.gethostname()
    return BrokerConfig(
        **found, remoting_port=-1, insecure=True, host="0.0.0.0", allowed_hosts="*", open_config=True
    )  # fmt: skip


def nsqlookupd_config(values: Values) -> RegistryConfig:
    """The registry that these options make: without a name server."""
    found = settings(NSQLOOKUPD, values)
    return RegistryConfig(**found, registry_port=-1, insecure=True, host="0.0.0.0", allowed_hosts="*")


# -- running -----------------------------------------------------------------------------------------------------------


def _log_to(prefix: str, level: str) -> None:
    """Log lines as nsqd writes them: `[nsqd] 2026/11/20 13:44:00.248453 INFO: …`."""
    from datetime import datetime

    words = {"CRITICAL": "FATAL"}

    class Lines(logging.Handler):
        def emit(self, record: logging.LogRecord) -> None:
            now = datetime.now().strftime("%Y/%m/%d %H:%M:%S.%f")
            word = words.get(record.levelname, record.levelname)
            sys.stderr.write(f"{prefix}{now} {word}: {record.getMessage()}\n")
            sys.stderr.flush()

    root = logging.getLogger()
    root.handlers[:] = [Lines()]
    set_log_level(level)


def _run(
    name: str,
    options: Sequence[Option],
    server: Callable[[Values], tuple[BrokerConfig | None, RegistryConfig | None]],
    listeners: Sequence[tuple[str, str]],
) -> NoReturn:
    from penstock.fronts.figures import version_line

    gc.disable()  # nothing of what a start makes is garbage; `serve` goes on collecting
    try:
        values = options_of(options, sys.argv[1:])
        if values["version"]:
            print(version_line(name), flush=True)
            sys.exit(0)
        broker, registry = server(values)
    except Fatal as error:
        _log_to(f"[{name}] ", "info")
        log.critical(str(error))
        sys.exit(1)
    except Usage as error:
        text = f"{error}\n" if str(error) else ""
        sys.stderr.write(f"{text}{usage(name, options)}\n")
        sys.exit(2 if text else 0)
    _log_to(values["log-prefix"], values["log-level"])
    log.info(version_line(name))
    try:
        _serve(broker, registry, listeners)
    except (PenstockError, OSError) as failure:
        log.critical("failed to run %s - %s", name, failure)
        sys.exit(1)
    except Exception as failure:  # a harness that reads the log gets a line it can read
        log.critical("failed to run %s - %r", name, failure)
        sys.exit(1)
    sys.exit(0)


def _serve(broker: BrokerConfig | None, registry: RegistryConfig | None, listeners: Sequence[tuple[str, str]]) -> None:
    from penstock.serve import prepare, serve

    prepare()

    def ready(server: Server) -> None:
        for key, word in listeners:
            if key in server.addresses:
                log.info("%s: listening on %s", word, server.addresses[key])

    serve(broker, registry, ready)


def nsqd() -> NoReturn:
    """The command `nsqd`."""
    _run(
        "nsqd", NSQD, lambda values: (nsqd_config(values), None), (("nsq", "TCP"), ("http", "HTTP"), ("https", "HTTPS"))
    )


def nsqlookupd() -> NoReturn:
    """The command `nsqlookupd`."""
    _run(
        "nsqlookupd", NSQLOOKUPD, lambda values: (None, nsqlookupd_config(values)),
        (("lookup", "TCP"), ("lookup_http", "HTTP")),
    )  # fmt: skip
