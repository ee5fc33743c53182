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
from .folders import Folders, FolderUnusable
from .local import client_options
from .maintenance import Maintenance
from .ownership import FolderTaken, owned, published
from .pool import Pool
from .settings import Settings

Compact: TypeAlias = Callable[[str, Progress], Awaitable[Compacted]]
_LINE_SECONDS = 2.0  # between two lines about the same store
_ASK_SECONDS = 5.0
_NEVER = 1e9


def compact_stores(
    settings: Settings, engine: Callable[[], Engine], environ: Mapping[str, str], name: str | None
) -> int:
    """Compact one store or all of them, one after the other, and say what came of it.

    Args:
        settings: the data folder, and the token of its gateway if one runs.
        engine: finds the hms-mcp, for when none does.
        environ: what of the engine's settings is forwarded to it.
        name: a namespace or the name of a store; None for all.

    Returns:
        The exit code: 1 if a store could not be compacted.

    Raises:
        FolderUnusable: the data folder is not ours, or its gateway cannot be asked.
    """
    folders = Folders(settings.data_dir)
    try:
        with owned(settings.data_dir):
            return anyio.run(_in_process, settings, engine(), environ, folders, name)
    except FolderTaken:
        return anyio.run(_through_gateway, settings, folders, name)


async def _in_process(
    settings: Settings,
    engine: Engine,
    environ: Mapping[str, str],
    folders: Folders,
    name: str | None,
) -> int:
    connect = embedded(engine.path, settings, environ)
    async with Pool(connect, acquire_seconds=settings.open_seconds) as pool:
        maintenance = Maintenance(pool, folders, _NEVER)
        return await _each(_named(name, folders), maintenance.compact)


async def _through_gateway(settings: Settings, folders: Folders, name: str | None) -> int:
    url = await _url(settings)
    # It takes as long as a store is large.
    async with httpx2.AsyncClient(**client_options(settings, url), timeout=None) as http:

        async def compact(name: str, progress: Progress) -> Compacted:
            try:
                answer = await http.post(f"/namespaces/{quote(name, safe='')}/compact")
                body = answer.json()
            except (httpx2.HTTPError, ValueError) as error:
                raise MemoryFault(
                    f"the gateway that uses the data folder does not answer any more at {url}"
                ) from error
            if answer.is_success:
                return Compacted(**body)
            raise MemoryFault(str(body.get("detail", answer.status_code)))

        return await _each(_named(name, folders), compact)


async def _url(settings: Settings) -> str:
    """Where the gateway listens that uses the data folder, which nobody else may be asked for."""
    data_dir = settings.data_dir
    address = published(data_dir)
    if address is None:
        raise FolderUnusable(
            f"The data folder {data_dir} is in use by a gateway that starts or ends, or by a "
            "command like this one",
            "Wait, and try again.",
        )
    try:
        async with httpx2.AsyncClient(timeout=_ASK_SECONDS, trust_env=False) as http:
            health = await http.get(f"{address.url}/healthz")
    except httpx2.HTTPError as error:
        raise _not_found(settings, address.url, "it does not answer") from error
    if not address.is_answered_in(health.headers):
        raise _not_found(settings, address.url, "another program answers")
    return address.url


def _not_found(settings: Settings, url: str, why: str) -> FolderUnusable:
    return FolderUnusable(
        f"The gateway that uses the data folder {settings.data_dir} listens at {url}, and here "
        f"{why}",
        "If it runs in a container, run this in there; if it is ending, try again.",
    )


def _named(name: str | None, folders: Folders) -> list[str]:
    return folders.names() if name is None else [name]


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
