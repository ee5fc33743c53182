"""`namespaces compact`: through the gateway that serves the data folder, or without one."""

import sys
from collections.abc import Awaitable, Callable, Generator, Mapping, Sequence
from contextlib import contextmanager
from typing import TypeAlias
from urllib.parse import quote

import anyio
import httpx2
from rich.console import Console
from rich.progress import Progress as Bar
from rich.progress import TimeElapsedColumn

from hms_memory_tool.errors import MemoryFault

from .compaction import Compacted, Progress
from .embedded import embedded
from .engine import Engine
from .folders import Folders
from .local import client_options
from .maintenance import Maintenance
from .ownership import FolderTaken, owned
from .pool import Pool
from .settings import Settings

Compact: TypeAlias = Callable[[str, Progress], Awaitable[Compacted]]
_LINE_SECONDS = 2.0  # between two lines about the same store
_NEVER = 1e9


def compact_stores(
    settings: Settings, engine: Callable[[], Engine], environ: Mapping[str, str], name: str | None
) -> int:
    """Compact one store or all of them, one after the other, and say what came of it.

    Args:
        settings: the data folder, and where its gateway listens if one runs.
        engine: finds the hms-mcp, for when none does.
        environ: what of the engine's settings is forwarded to it.
        name: a namespace or the name of a store; None for all.

    Returns:
        The exit code: 1 if a store could not be compacted.
    """
    folders = Folders(settings.data_dir)
    names = [name] if name is not None else folders.names()
    try:
        with owned(settings.data_dir):
            return anyio.run(_in_process, settings, engine(), environ, folders, names)
    except FolderTaken:
        return anyio.run(_through_gateway, settings, names)


async def _in_process(
    settings: Settings,
    engine: Engine,
    environ: Mapping[str, str],
    folders: Folders,
    names: Sequence[str],
) -> int:
    connect = embedded(engine.path, settings, environ)
    async with Pool(connect, acquire_seconds=settings.open_seconds) as pool:
        maintenance = Maintenance(pool, folders, _NEVER)
        return await _each(names, maintenance.compact)


async def _through_gateway(settings: Settings, names: Sequence[str]) -> int:
    # It takes as long as a store is large.
    async with httpx2.AsyncClient(**client_options(settings), timeout=None) as http:

        async def compact(name: str, progress: Progress) -> Compacted:
            try:
                answer = await http.post(f"/namespaces/{quote(name, safe='')}/compact")
                body = answer.json()
                if answer.is_success:
                    return Compacted(**body)
                detail = str(body["detail"])
            # another program's answer is no JSON, or JSON of another shape
            except (httpx2.HTTPError, ValueError, RecursionError, TypeError, KeyError) as error:
                raise MemoryFault(
                    f"the gateway that uses the data folder does not answer at {http.base_url} "
                    "(--host and --port say where it is)"
                ) from error
            raise MemoryFault(detail)

        return await _each(names, compact)


async def _each(names: Sequence[str], compact: Compact) -> int:
    console = Console(stderr=True)
    failed = 0
    for number, name in enumerate(names, 1):
        with _shown(console, f"{name} ({number} of {len(names)})") as progress:
            try:
                done = await compact(name, progress)
            except MemoryFault as fault:
                failed += 1
                outcome = f"not compacted: {fault}"
            else:
                outcome = (
                    f"{done.memories} memories, {done.before_bytes >> 10} KiB before, "
                    f"{done.after_bytes >> 10} KiB now, {done.seconds:.1f} s"
                )
        sys.stdout.write(f"{name}: {outcome}\n")
        sys.stdout.flush()
    return 1 if failed else 0


@contextmanager
def _shown(console: Console, what: str) -> Generator[Progress]:
    """Show how far it is: a bar on a terminal, a line now and then elsewhere."""
    if console.is_terminal and not console.is_dumb_terminal:
        with Bar(*Bar.get_default_columns(), TimeElapsedColumn(), console=console) as bar:
            task = bar.add_task(what, total=None)
            yield lambda done, total: bar.update(task, completed=done, total=total)
        return
    last = anyio.current_time()

    def report(done: int, total: int) -> None:
        nonlocal last
        if anyio.current_time() - last >= _LINE_SECONDS:
            last = anyio.current_time()
            console.print(f"{what}: {done} of {total} memories", markup=False, highlight=False)

    console.print(f"{what}: begun", markup=False, highlight=False)
    yield report
