"""Where the commands begin: `penstock` (also `python -m penstock.cli`), `nsqd` and `nsqlookupd`."""

import atexit
import codecs
import gc
import os
import sys
from importlib import import_module

from penstock.errors import INTERRUPTED


def _open_all() -> None:
    """A caller may have closed standard input or output (`>&-`): then the next file or socket would take its number, and Python
    has none to write to. So we begin again with all three open.
    """
    if sys.stdin is not None and sys.stdout is not None and sys.stderr is not None:
        return
    while (fd := os.open(os.devnull, os.O_RDWR)) <= 2:
        os.set_inheritable(fd, True)
    os.close(fd)
    os.execv(sys.executable, sys.orig_argv)


def _escaped(error: UnicodeError) -> tuple[str | bytes, int]:
    r"""What an encoding has no sign for, as ``\\u00e9``: JSON stays JSON, and a table stays a table."""
    assert isinstance(error, UnicodeEncodeError)
    units = error.object[error.start : error.end].encode("utf-16-be", "surrogatepass")
    return "".join(f"\\u{units[n : n + 2].hex()}" for n in range(0, len(units), 2)), error.end


def _encode_all() -> None:
    """A terminal or pipe whose encoding lacks a sign, or an argument that is no text, must not end a command."""
    codecs.register_error("penstock", _escaped)
    for stream in (sys.stdout, sys.stderr):
        if hasattr(stream, "reconfigure"):
            stream.reconfigure(errors="penstock")


def _run(module: str, command: str) -> None:
    _open_all()
    _encode_all()
    try:
        _begin(module, command)
    finally:
        _drop_unwritten()


def _drop_unwritten() -> None:
    """What cannot be written is told, or nobody reads it: since Python 3.14 the interpreter would try again and exit with 120."""
    try:
        sys.stdout.flush()
    except OSError as error:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        if not isinstance(error, BrokenPipeError) and not getattr(error.__context__, "code", 0):
            sys.exit(f"penstock: {error}")


def _begin(module: str, command: str) -> None:
    gc.disable()  # nothing of what is imported is garbage, and the collector would look at all of it again and again
    try:
        found = getattr(import_module(module), command)
        gc.enable()
        atexit.register(gc.freeze)  # nor would it find any when all is over, which costs a verb a sixth of its time
        found()
    except KeyboardInterrupt:  # before the command has begun, which has its own word for it
        sys.exit(INTERRUPTED)
    except BrokenPipeError:  # `nsqd --version | true`
        from penstock.cli.tools import end_unread

        end_unread()
    except OSError as error:  # --help and --version are printed before a command begins
        sys.exit(f"penstock: {error}")
    except (MemoryError, RuntimeError) as error:
        if not isinstance(error, MemoryError) and "start new thread" not in str(error):
            raise
        sys.exit(f"penstock: {_too_little()}")


def _too_little() -> str:
    """What to do where the system gives no memory, or no room for a thread's stack."""
    import resource

    limit = resource.getrlimit(resource.RLIMIT_AS)[0]
    if limit == resource.RLIM_INFINITY:
        return (
            "the system gives it no more memory, or no more threads\n"
            "  `ulimit -a` shows what this user may have, `pids.max` of its cgroup how many threads all there may have."
        )
    return (
        f"it may have {limit >> 20:,} MiB of address space, which are too few\n"
        "  `ulimit -v unlimited` lifts that: mapped files take addresses, not memory. A limit for memory is a cgroup's."
    )


def main() -> None:
    """The `penstock` command."""
    _run("penstock.cli.main", "main")


def nsqd() -> None:
    """The `nsqd` command."""
    _run("penstock.cli.nsqd", "nsqd")


def nsqlookupd() -> None:
    """The `nsqlookupd` command."""
    _run("penstock.cli.nsqd", "nsqlookupd")


if __name__ == "__main__":
    main()
