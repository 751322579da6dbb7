"""What runs: the versions of the packages that a run depends on, and the command that began it."""

import platform
import shlex
import sys
from typing import Any

PACKAGES = ("rltrainer", "torch", "gymnasium", "numpy")


def describe_program() -> dict[str, Any]:
    """Return `versions` by name, with the build where a package names it, and `command`."""
    versions = {name: str(sys.modules[name].__version__) for name in PACKAGES}
    return {"versions": {"python": platform.python_version(), **versions}, "command": shlex.join(sys.orig_argv)}
