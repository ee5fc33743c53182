"""Programs that some tests need and a machine may lack."""

import os
import shutil

import pytest


def program(name: str, how: str) -> str:
    """The path of a program; without it the test is skipped, and fails in CI.

    Args:
        name: as it is called.
        how: the command that installs it.
    """
    found = shutil.which(name)
    if found is None:
        text = f"{name} is not installed: {how}"
        if os.environ.get("CI") == "true":
            pytest.fail(text)
        pytest.skip(text)
    return found
