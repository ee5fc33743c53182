"""`hms-memory-gateway doctor`: look at all that a gateway stands on, and say what to do.

Safe beside a running gateway: its stores are not opened, and what is tried is tried in a folder of
its own beside them, which is removed.
"""

from .checks import Given, examine
from .report import report

__all__ = ["Given", "examine", "report"]
