"""Files such as an agent keeps, and edits of them; the same in each run."""

from collections.abc import Iterator
from random import Random

from hms_memory_gateway.blocks import Blocks

_LINES = 20  # of 70 characters: 1.4 KB
_LINE_CHARS = 69
_TEXT = (
    "account agent answer asked budget build call change contract customer deadline decided deploy "
    "draft email error evening failed finished fixed follow invoice issue later meeting morning "
    "moved never note office order owner phone plan prefers project release report review sent "
    "server signed slow staging support team ticket today update urgent version waiting week"
)
_WORDS = _TEXT.split()


class Notes:
    """What the files hold, as it should be.

    Args:
        files: how many there are.
    """

    def __init__(self, files: int) -> None:
        self._random = Random(files)
        self._lines = {
            f"/memories/notes/{number:05}.md": [self._line(line) for line in range(_LINES)]
            for number in range(files)
        }

    def __len__(self) -> int:
        return len(self._lines)

    def __iter__(self) -> Iterator[tuple[str, str]]:
        for path, lines in self._lines.items():
            yield path, "".join(f"{line}\n" for line in lines)

    async def edit(self, blocks: Blocks, namespace: str) -> None:
        """Replace a line of some file, in the store and here."""
        path = self._any()
        number = self._random.randrange(_LINES)
        old, new = self._lines[path][number], self._line(number)
        self._lines[path][number] = new
        edit = {"command": "str_replace", "path": path, "old_str": old, "new_str": new}
        await _done(blocks, namespace, edit)

    async def view(self, blocks: Blocks, namespace: str) -> None:
        """Read some file."""
        await _done(blocks, namespace, {"command": "view", "path": self._any()})

    def _any(self) -> str:
        return self._random.choice(list(self._lines))

    def _line(self, number: int) -> str:
        words = " ".join(self._random.choices(_WORDS, k=_LINE_CHARS // 3))
        return f"{number:02}. {words}"[:_LINE_CHARS].ljust(_LINE_CHARS, ".")


async def _done(blocks: Blocks, namespace: str, given: dict[str, str]) -> None:
    answer = await blocks.execute(namespace, given)
    if answer["is_error"]:
        raise RuntimeError(answer["content"])
