"""Claude's memory tool on Holographic Memory stores.

HolographicMemoryTool       for an asynchronous client's tool runner
HolographicMemoryToolSync   for a synchronous one's
Recalled                    a file that a recall has found
"""

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from .results import Recalled
    from .tools import HolographicMemoryTool, HolographicMemoryToolSync

__all__ = ["HolographicMemoryTool", "HolographicMemoryToolSync", "Recalled"]


def __getattr__(name: str) -> object:
    # On demand: the gateway stands on this package and needs no SDK of Anthropic's.
    if name == "Recalled":
        from .results import Recalled

        return Recalled
    if name in __all__:
        from . import tools

        return getattr(tools, name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
