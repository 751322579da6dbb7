"""The program of a run: the versions of the packages that it depends on, the command that began it, its env."""

import platform
import shlex
import sys
from collections.abc import Iterable
from typing import Any

from rltrainer.plain_values import to_plain

PACKAGES = ("rltrainer", "torch", "gymnasium", "numpy")


def describe_program() -> dict[str, Any]:
    """Return `versions` by name, with the build where a package names it, and `command`."""
    versions = {name: str(sys.modules[name].__version__) for name in PACKAGES}
    return {"versions": {"python": platform.python_version(), **versions}, "command": shlex.join(sys.orig_argv)}


def describe_env(collectors: Iterable[Any]) -> dict[str, Any]:
    """Return `env`, the id and arguments of the envs that are played in, where `make_vec` made them of an id."""
    specs = (getattr(getattr(collector, "envs", None), "spec", None) for collector in collectors)
    for spec in filter(None, specs):
        return {"env": {"id": spec.id, "kwargs": to_plain(dict(spec.kwargs))}}
    return {}
