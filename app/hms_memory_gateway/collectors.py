"""Figures that are counted elsewhere and read when somebody asks for metrics."""

import shutil
from collections.abc import Generator
from math import nan
from pathlib import Path
from typing import get_args

from prometheus_client import Metric
from prometheus_client.metrics_core import CounterMetricFamily, GaugeMetricFamily
from prometheus_client.registry import Collector

from .connection import CloseReason
from .idempotency import Answers
from .pool import Pool


class PoolFigures(Collector):
    """What `Pool.stats` says, and what the answers under idempotency keys were used for.

    Args:
        pool: the connections.
        answers: the answers.
    """

    def __init__(self, pool: Pool, answers: Answers) -> None:
        self._pool = pool
        self._answers = answers

    def collect(self) -> Generator[Metric]:
        """Read the figures."""
        stats = self._pool.stats()
        states = GaugeMetricFamily(
            "hms_gateway_pool_connections", "Connections, by state.", labels=["state"]
        )
        for state in ("opening", "busy", "idle", "draining"):
            states.add_metric([state], stats[state])
        yield states
        closes = CounterMetricFamily(
            "hms_gateway_pool_closes", "Stores that were closed, by reason.", labels=["reason"]
        )
        for reason in get_args(CloseReason):
            closes.add_metric([reason], stats.get(f"closed_{reason}", 0))
        yield closes
        for name, text, key in _GAUGES:
            yield GaugeMetricFamily(f"hms_gateway_{name}", text, stats[key])
        for name, text, key in _COUNTERS:
            yield CounterMetricFamily(f"hms_gateway_{name}", text, stats.get(key, 0))
        yield CounterMetricFamily(
            "hms_gateway_idempotent_replays",
            "Commands answered with the first answer under their key.",
            self._answers.replays,
        )


_GAUGES = (
    ("pool_connections_max", "Connections that may be open at once.", "max"),
    ("pool_waiting", "Requests that wait for a connection.", "waiting"),
    ("pool_leases", "Requests that use a connection.", "leases"),
)
_COUNTERS = (
    ("pool_opens", "Stores that were opened.", "opened"),
    ("pool_open_failures", "Stores that could not be opened.", "failed"),
    (
        "engine_restarts",
        "Engines that were started again after one that died, was wedged or did not start.",
        "restarts",
    ),
)


class DataDir(Collector):
    """The room where the stores are kept.

    Args:
        path: the data folder.
    """

    def __init__(self, path: Path) -> None:
        self._path = path

    def collect(self) -> Generator[Metric]:
        """Ask the file system."""
        try:
            usage = shutil.disk_usage(self._path)
            free, total = float(usage.free), float(usage.total)
        except OSError:
            free = total = nan
        yield GaugeMetricFamily(
            "hms_gateway_data_dir_free_bytes", "Room left where the stores are kept.", free
        )
        yield GaugeMetricFamily(
            "hms_gateway_data_dir_size_bytes", "Size of the file system they are kept on.", total
        )
