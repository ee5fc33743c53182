"""Ports for programs that have to be told one, before they or after they listen."""

import os
import random
import socket
from itertools import count

# Below what the system hands out itself, so that nobody is given one of these between our choice
# and its use; and for each process of the suite others.
_FIRST, _EACH, _PROCESSES = 20_000, 1_000, 12
_process = int(os.environ.get("PYTEST_XDIST_WORKER", "gw0").removeprefix("gw")) % _PROCESSES
_steps = count(random.randrange(_EACH))  # another suite may run beside this one


def free_port() -> int:
    """One that nobody listens at, and that is not given again for long."""
    for step in _steps:
        port = _FIRST + _EACH * _process + step % _EACH
        try:
            socket.create_server(("127.0.0.1", port)).close()
        except OSError:
            continue
        return port
    raise AssertionError("there is none")
