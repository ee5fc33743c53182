"""How stores grow with compaction and without, or what a compaction of a large one costs.

Run it in a clone, on Linux: `uv run --group bench python benchmarks/growth.py`. It prints tables in
Markdown. Each figure has its ratio to another of the same run: compare those, the figures
themselves depend on the machine.
"""

import argparse
import os
import platform
import sys
from pathlib import Path

import anyio

import edited
import large
from hms_memory_gateway.engine import Engine, default_cache, ensure, progress_for
from plot import draw


def main() -> None:
    """Measure, and print the tables."""
    arguments = _arguments()
    engine = ensure(os.environ, default_cache(), progress_for(sys.stderr))
    sys.stdout.write(f"{_machine(engine)}\n\n")
    sys.stdout.flush()
    anyio.run(_measure, engine, arguments, backend_options={"use_uvloop": True})


async def _measure(engine: Engine, arguments: argparse.Namespace) -> None:
    if arguments.large is not None:
        sys.stdout.write(large.in_words(await large.measure(engine, arguments.large)))
        return
    growth = await edited.measure(engine, arguments.files, sorted(arguments.edits))
    sys.stdout.write(f"{arguments.files} files of 1.4 KB.\n\n{edited.in_words(growth)}")
    if arguments.plot:
        draw(growth, arguments.plot)


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument(
        "--edits", type=int, nargs="+", default=[1_000, 5_000, 20_000], help="numbers of edits"
    )
    parser.add_argument("--files", type=int, default=50, help="files that are edited")
    parser.add_argument("--plot", type=Path, help="an SVG to write")
    parser.add_argument(
        "--large", type=int, metavar="FILES", help="compact one store of so many files instead"
    )
    return parser.parse_args()


def _machine(engine: Engine) -> str:
    load = os.getloadavg()[0]
    python = platform.python_version()
    return (
        f"hms-mcp {engine.version}, Python {python}, {os.cpu_count()} cores, "
        f"load {load:.1f} at the start"
    )


if __name__ == "__main__":
    main()
