"""What runs: the versions of the packages that a run depends on, and the command that began it."""

import platform
import shlex
import sys
from importlib import metadata
from typing import Any

PACKAGES = ("rltrainer", "torch", "gymnasium", "numpy")


def describe_program() -> dict[str, Any]:
    """Return `versions` by name, None of a package that is not installed but imported from a folder, and `command`."""
    versions = {"python": platform.python_version(), **{name: _version(name) for name in PACKAGES}}
    return {"versions": versions, "command": shlex.join(sys.orig_argv)}


def _version(name: str) -> str | None:
    try:
        return metadata.version(name)
    except metadata.PackageNotFoundError:
        return None
