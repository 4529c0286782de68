"""Where the commands begin: `penstock` (also `python -m penstock.cli`), `nsqd` and `nsqlookupd`."""

import atexit
import gc
from importlib import import_module


def _run(module: str, command: str) -> None:
    gc.disable()  # nothing of what is imported is garbage, and the collector would look at all of it again and again
    found = getattr(import_module(module), command)
    gc.enable()
    atexit.register(gc.freeze)  # nor would it find any when all is over, which costs a verb a sixth of its time
    found()


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
