"""The HTTP protocol with a bound on the head of a request, which precedes any check of a token."""

from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol

MAX_HEAD_BYTES = 65_536

_ANSWER = (
    b"HTTP/1.1 431 Request Header Fields Too Large\r\n"
    b"connection: close\r\n"
    b"content-length: 0\r\n"
    b"\r\n"
)


class BoundedHead(HttpToolsProtocol):
    """uvicorn's protocol, which would buffer a head however long it is."""

    _head_bytes = 0
    _is_in_head = True

    def data_received(self, data: bytes) -> None:
        """Take what has arrived; end a connection whose head does not end."""
        if self._is_in_head and self._head_bytes > MAX_HEAD_BYTES:
            self.transport.write(_ANSWER)
            self.transport.close()
            return
        self._head_bytes += len(data)
        super().data_received(data)

    def on_headers_complete(self) -> None:
        """The head has ended; what follows is bounded as a body."""
        self._is_in_head = False
        super().on_headers_complete()

    def on_message_complete(self) -> None:
        """The next request on the connection begins."""
        self._is_in_head, self._head_bytes = True, 0
        super().on_message_complete()
