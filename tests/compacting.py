"""A gateway in a process of its own that compacts while it is written to, and dies on the way.

Run as `python compacting.py FOLDER SEED VICTIM STEP`: at the STEPth thing that it does to a file
or a folder of its data folder, or after -STEP milliseconds, it kills VICTIM: `gateway` (itself),
`old`, `fresh` (an engine) or nobody. What it sends and what is acknowledged it writes to its
standard output, line by line.
"""

import os
import random
import signal
import sys
from pathlib import Path

import anyio

from hms_memory_gateway.blocks import Blocks
from hms_memory_gateway.embedded import embedded
from hms_memory_gateway.engine import Engine, default_cache, find
from hms_memory_gateway.idempotency import Answers
from hms_memory_gateway.metrics import Metrics
from hms_memory_gateway.pool import Pool
from hms_memory_gateway.settings import Settings
from hms_memory_gateway.telemetry import Telemetry
from hms_memory_tool.errors import MemoryFault

NAMESPACE = "n"
FILES = 12
COMPACTIONS = 2
_BREATH_SECONDS = 0.005  # between two commands
_EVENTS = ("open", "os.mkdir", "os.rename", "os.remove", "os.rmdir", "os.utime", "shutil.rmtree")
_WRITES = os.O_WRONLY | os.O_RDWR | os.O_CREAT


class Steps:
    """Counts what is done to a data folder, and kills somebody at one of these steps."""

    def __init__(self, folder: Path, victim: str, step: int) -> None:
        self._folder = folder
        self._victim = victim
        self._step = step
        self.count = 0
        self.is_counting = False

    def __call__(self, event: str, args: tuple[object, ...]) -> None:
        if not self.is_counting or event not in _EVENTS:
            return
        if not str(args[0]).startswith(str(self._folder)):
            return
        self.count += 1
        if self.count == self._step:
            self.kill()

    async def kill_later(self) -> None:
        """Kill after the time that was given instead of a step."""
        if self._step < 0:
            await anyio.sleep(-self._step / 1_000)
            self.kill()

    def kill(self) -> None:
        if self._victim == "gateway":
            os.kill(os.getpid(), signal.SIGKILL)
        for process in Path("/proc").glob("[0-9]*"):
            try:
                at = os.readlink(process / "cwd")
                parent = (process / "stat").read_text().rsplit(")", 1)[1].split()[1]
            except OSError:
                continue
            is_ours = int(parent) == os.getpid() and at.startswith(str(self._folder))
            is_fresh = "/compaction/fresh/" in at
            if is_ours and is_fresh == (self._victim == "fresh"):
                os.kill(int(process.name), signal.SIGKILL)


def say(*words: object) -> None:
    sys.stdout.write(" ".join(map(str, words)) + "\n")
    sys.stdout.flush()


async def write(blocks: Blocks, chance: random.Random, run: int) -> None:
    """Edit, delete and create files until cancelled; each line is written at most once."""
    number = 0
    while True:
        number += 1
        await anyio.sleep(_BREATH_SECONDS)
        name = f"/memories/f{chance.randrange(FILES)}"
        token = f"{run}-{number}"
        kind = chance.choices(["insert", "delete", "create"], [8, 1, 3])[0]
        say("sent", kind, name, token)
        given = {"command": kind, "path": name}
        if kind == "insert":
            given |= {"insert_line": 0, "insert_text": f"{token}\n"}  # type: ignore[dict-item]
        if kind == "create":
            given |= {"file_text": f"{token}\n"}
        try:
            answer = await blocks.execute(NAMESPACE, given, token)
        except MemoryFault as fault:
            say("fault", fault.code)
            if fault.code != "outcome_unknown":
                say("refused")
        else:
            say("refused" if answer["is_error"] else "done")


async def run(folder: Path, engine: Engine, seed: int, steps: Steps) -> None:
    settings = Settings(data_dir=folder, forget_seconds=1e9)
    chance = random.Random(seed)
    async with Pool(embedded(engine.path, settings, os.environ)) as pool:
        blocks = Blocks(pool, Answers(), Telemetry(Metrics()))
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(write, blocks, chance, seed)
            await anyio.sleep(0.1)
            steps.is_counting = True
            tasks.start_soon(steps.kill_later)
            for _ in range(COMPACTIONS):
                await anyio.sleep(chance.random() / 20)
                try:
                    await pool.compact(NAMESPACE)
                    say("compacted")
                except MemoryFault as fault:
                    say("fault", fault.code)
            steps.is_counting = False
            await anyio.sleep(0.05)
            tasks.cancel_scope.cancel()
    say("steps", steps.count)


if __name__ == "__main__":
    where, seed, victim, step = sys.argv[1:]
    found = find(os.environ, default_cache())
    if found is None:
        sys.exit("there is no engine")
    counted = Steps(Path(where), victim, int(step))
    sys.addaudithook(counted)
    anyio.run(run, Path(where), found, int(seed), counted)
