"""Whether the server of this container is ready, by the exit code: `healthcheck.py [PORT PATH]`."""

import os
import sys
from contextlib import suppress
from http.client import HTTPConnection

port, path = sys.argv[1:] or (os.environ.get("HMS_GATEWAY_PORT", "8080"), "/readyz")
for host in ("127.0.0.1", "::1"):  # it may listen on IPv6 alone
    # Not urllib: it would ask the proxies of the environment.
    connection = HTTPConnection(host, int(port), timeout=4)
    with suppress(ConnectionRefusedError):
        connection.connect()
        break
connection.request("GET", path)
answer = connection.getresponse()
sys.exit(None if answer.status == 200 else f"{answer.status} {answer.read().decode()}")
