"""What a check says, and what it is told: the words that all checks share."""

import fcntl
import os
import tempfile
from collections.abc import Mapping
from contextlib import ExitStack
from dataclasses import dataclass, field
from enum import StrEnum
from functools import cached_property
from pathlib import Path

from hms_memory_gateway.engine import Engine, find
from hms_memory_gateway.ownership import LOCK
from hms_memory_gateway.settings import Settings


class Outcome(StrEnum):
    """How a check ended."""

    OK = "ok"
    WARNING = "warning"  # works, but not as well or as safely as it should
    FAILURE = "failure"  # the gateway cannot do its work, or memory is open to others
    SKIPPED = "skipped"  # cannot be told, since another check failed


@dataclass(frozen=True, slots=True)
class Finding:
    """What a check found: a sentence, what to do about it, and figures for scripts."""

    outcome: Outcome
    found: str
    advice: str = ""
    figures: Mapping[str, float] = field(default_factory=dict)


def ok(found: str, **figures: float) -> Finding:
    """All is well."""
    return Finding(Outcome.OK, found, figures=figures)


def warning(found: str, advice: str, **figures: float) -> Finding:
    """It works, and should be looked at."""
    return Finding(Outcome.WARNING, found, advice, figures)


def failure(found: str, advice: str, **figures: float) -> Finding:
    """It does not work."""
    return Finding(Outcome.FAILURE, found, advice, figures)


def skipped(cause: str) -> Finding:
    """It was not looked at, since the check of that name failed."""
    return Finding(Outcome.SKIPPED, f"mend `{cause}` first")


class Case:
    """The gateway that is examined. What checks have in common is looked up once.

    Args:
        settings: as the operator wants it; None if they are wrong.
        environ: the gateway's environment.
        cache: where an engine that was installed earlier is.
        leaving: cleans up when the examination ends.
    """

    def __init__(
        self,
        settings: Settings | None,
        environ: Mapping[str, str],
        cache: Path,
        leaving: ExitStack,
    ) -> None:
        self._settings = settings
        self.environ = environ
        self._cache = cache
        self._leaving = leaving

    @property
    def settings(self) -> Settings:
        """The settings, for checks that are skipped without."""
        if self._settings is None:
            raise RuntimeError("a check that needs the settings has to say so")
        return self._settings

    @property
    def is_shared(self) -> bool:
        """Whether somebody else runs the engine."""
        return self._settings is not None and self._settings.hms_url is not None

    @cached_property
    def engine(self) -> Engine | None:
        """The engine that is here; none is installed. Raises `EngineMissing`."""
        return find(self.environ, self._cache)

    @cached_property
    def ground(self) -> Path:
        """The data folder, or what is there of the way to it."""
        data_dir = self.settings.data_dir
        # os.path.exists: that of a Path raises where it may not look
        return next(path for path in (data_dir, *data_dir.parents) if os.path.exists(path))

    @cached_property
    def scratch(self) -> Path:
        """A folder of our own beside the stores, on their file system. Raises `OSError`."""
        made = tempfile.TemporaryDirectory(
            prefix=".doctor-", dir=self.ground, ignore_cleanup_errors=True
        )
        return Path(self._leaving.enter_context(made))

    @cached_property
    def has_gateway(self) -> bool:
        """Whether a gateway runs on the data folder.

        Told by its lock, which is tried as a shared one, and let go in the same instant.
        """
        try:
            with (self.settings.data_dir / LOCK).open("rb") as lock:
                fcntl.flock(lock, fcntl.LOCK_SH | fcntl.LOCK_NB)
        except BlockingIOError:
            return True
        except OSError:
            return False
        return False
