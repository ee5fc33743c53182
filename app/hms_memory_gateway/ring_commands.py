"""`hms-memory-gateway ring`: write the ring for HAProxy, and say what a change of it moves."""

import argparse
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from .namespaces import store_name
from .problems import CallerFault
from .ring import Change, RingInvalid, backends, bucket_map


def add_ring(commands: "argparse._SubParsersAction[argparse.ArgumentParser]") -> None:
    """Add the command `ring` to those of a command line."""
    ring = commands.add_parser("ring", help="divide the namespaces among gateways behind HAProxy")
    actions = ring.add_subparsers(title="commands", metavar="", required=True)
    write = actions.add_parser("write", help="write buckets.map and gateways.cfg for HAProxy")
    write.add_argument("folder", type=Path, help="where to write them")
    write.add_argument("gateways", nargs="+", metavar="NAME=HOST:PORT", help="all gateways")
    write.set_defaults(run=_write)
    show = actions.add_parser(
        "moves",
        help="say which namespaces change owner",
        description="Reads namespaces, one a line, as they are sent in X-Memory-Namespace. Prints "
        "those that change owner: namespace, old owner, new owner and the folder of the store.",
    )
    show.add_argument("--from", dest="before", nargs="+", metavar="NAME", required=True)
    show.add_argument("--to", dest="after", nargs="+", metavar="NAME", required=True)
    show.set_defaults(run=_show_moves)


def _write(given: Mapping[str, Any]) -> int:
    folder: Path = given["folder"]
    pairs = [one.partition("=")[::2] for one in given["gateways"]]
    texts = {
        "buckets.map": bucket_map([name for name, _ in pairs]),
        "gateways.cfg": backends(dict(pairs)),
    }
    try:
        folder.mkdir(parents=True, exist_ok=True)
        for name, text in texts.items():
            (folder / name).write_text(text)
    except OSError as error:
        sys.stderr.write(f"{error.filename} cannot be written ({error.strerror}).\n")
        return 1
    return 0


def _show_moves(given: Mapping[str, Any]) -> int:
    change = Change(given["before"], given["after"])
    read = moved = 0
    for number, line in enumerate(sys.stdin.buffer, 1):
        if not line.strip():
            continue
        try:
            store = store_name([line.rstrip(b"\r\n")], None)
        except CallerFault as fault:
            raise RingInvalid(f"Line {number} is not a namespace. {fault}") from None
        read += 1
        if move := change.move(line.decode().strip()):
            moved += 1
            sys.stdout.write(f"{move.namespace}\t{move.before}\t{move.after}\t{store}\n")
    sys.stderr.write(f"{moved:,} of {read:,} namespaces change owner\n")
    return 0
