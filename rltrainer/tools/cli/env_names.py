"""An env as a user names it in a command: an id, or a class or function in a module of theirs."""

import inspect
import os
import pkgutil
import sys
from collections.abc import Callable
from typing import Any

import click
import gymnasium as gym

from rltrainer.envs.make_vec import spec_of
from rltrainer.errors import EnvError


def env_named(name: str) -> str | Callable[[], Any]:
    """Return the env of a name: a factory for `my_package:MyEnv`, whose module is imported; else the id.

    A name comes from the user's command, never from a file. The current folder is looked in first.
    """
    attribute = name.partition(":")[2]
    if not attribute or (gym.envs.registration.ENV_ID_RE.fullmatch(attribute) and "-v" in attribute):
        try:
            spec_of(name)
        except EnvError as error:
            raise click.BadParameter(str(error).removeprefix("make_vec.env: "), param_hint="--env") from error
        return name
    if os.getcwd() not in sys.path:
        sys.path.insert(0, os.getcwd())
    try:
        found = pkgutil.resolve_name(name)
    except (ImportError, AttributeError, ValueError) as error:
        raise click.BadParameter(f"{name!r}: {error}", param_hint="--env") from error
    if not callable(found) or (inspect.isclass(found) and not issubclass(found, gym.Env)):
        raise click.BadParameter(f"{name!r} is no env, and makes none", param_hint="--env")
    return found  # type: ignore[no-any-return]  # callable, as looked at
