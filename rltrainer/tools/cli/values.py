"""The words of a command as values of fields; the rule of a field says whether it takes them."""

import contextlib
import inspect
import os
import pkgutil
import re
import sys
from collections.abc import Callable
from typing import Any, get_args

import click
import gymnasium as gym

from rltrainer.envs import TensorEnv
from rltrainer.envs.make_vec import spec_of
from rltrainer.errors import EnvError
from rltrainer.interval import Every, Unit
from rltrainer.schedules import CosineSchedule, LinearSchedule
from rltrainer.state import registry
from rltrainer.tools.sweeps import LogUniform, Uniform
from rltrainer.tools.sweeps.search_space import Range
from rltrainer.validation.suggestions import did_you_mean

_SCHEDULES = {"linear": LinearSchedule, "cosine": CosineSchedule}
_RANGES = {"uniform": Uniform, "log": LogUniform}
_EXAMPLES = {"uniform": "0.9:0.999", "log": "1e-5:1e-2"}
_WORDS = {"none": None, "true": True, "false": False}
SYNTAX = (
    "Values: 3, 1e-3, true, none, 64,64 (a list), linear:1e-3 or linear:1.0:0.05:0.2 (a schedule from, to, until which "
    "share of the run; cosine too), ReLU (a name of rltrainer's), 600:second (an interval)."
)
RANGES = (
    "Ranges: log:1e-5:1e-2 (each power of ten as likely as the next), uniform:0.9:0.999, 1..20 (integers), 32/64/256 "
    "or 64,64/256,256 (one of these values)."
)


def read_value(text: str) -> Any:
    """Return what a word stands for, or the word itself; a bad schedule or interval raises a `ValueError`."""
    if text.lower() in _WORDS:
        return _WORDS[text.lower()]
    if "," in text:
        return tuple(read_value(part.strip()) for part in text.strip(",()[]").split(","))
    name, _, rest = text.partition(":")
    if name in _SCHEDULES and rest:
        try:
            return _SCHEDULES[name](*(float(number) for number in rest.split(":")))
        except (TypeError, ValueError) as error:
            hint = f"Write {name}:FROM:TO:UNTIL, such as {name}:1e-3 or {name}:1.0:0.05:0.2"
            raise ValueError(f"{text!r} is no schedule. {hint}") from error
    if rest and name.isdecimal():
        if rest not in get_args(Unit):
            hint = did_you_mean(rest, get_args(Unit)).strip() or f"Units are {', '.join(get_args(Unit))}"
            raise ValueError(f"{text!r} is no interval, such as 600:second. {hint}")
        return Every(int(name), rest)  # type: ignore[arg-type]  # one of its units
    if (known := registry.value_meant(text)) is not None:
        return known
    for read in (int, float):
        with contextlib.suppress(ValueError):
            number = read(text)
            # 1e5 is a float to Python, and 100,000 env steps to a user; 1.0 stays a float.
            is_whole = isinstance(number, float) and "e" in text.lower() and number.is_integer()
            return int(number) if is_whole else number
    return text


def read_range(text: str) -> Range | None:
    """Return the range that a word stands for, None if it is a value; a bad range raises a `ValueError`."""
    name, *bounds = text.split(":")
    if name in _RANGES:
        try:
            low, high = map(float, bounds)
        except ValueError:
            raise ValueError(f"{text!r} is no range: {name}:{_EXAMPLES[name]}") from None
        return _RANGES[name](low, high)
    if match := re.fullmatch(r"(\d+)\.\.(\d+)", text):
        return range(int(match[1]), int(match[2]) + 1)
    if re.fullmatch(r"[-+.e\d]+:[-+.e\d]+", text, re.IGNORECASE):
        raise ValueError(f"{text!r} does not say how it is drawn. Write log:{text}, or uniform:{text}")
    return [read_value(part) for part in text.split("/")] if "/" in text else None


def read_seeds(text: str) -> list[int]:
    """Return the seeds of `3`, `1..5` or `1,2,7`; a `ValueError` for anything else."""
    found = read_range(text)
    seeds = list(found) if isinstance(found, range) else [int(part) for part in text.split(",")]
    if not seeds or min(seeds) < 0 or len(set(seeds)) < len(seeds):
        raise ValueError(text)
    return seeds


def env_named(name: str) -> str | Callable[[], Any]:
    """Return the env of a name: a factory for `my_package:MyEnv`, whose module is imported; else the id.

    A name comes from the user's command, never from a file. The current folder is searched first. A name that gives no
    env raises a `click.BadParameter`.
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
    if not callable(found) or (
        inspect.isclass(found) and not issubclass(found, gym.Env | TensorEnv | gym.vector.VectorEnv)
    ):
        raise click.BadParameter(f"{name!r} is no env, and makes none", param_hint="--env")
    return found  # type: ignore[no-any-return]  # it is callable
