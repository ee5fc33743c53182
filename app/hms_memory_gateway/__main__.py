"""`python -m hms_memory_gateway`."""

import sys

from .cli import main

sys.exit(main())
