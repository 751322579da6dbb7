"""Numbers of infos that envs report at the end of episodes, such as whether they succeeded."""

import warnings
from collections.abc import Callable, Sequence
from typing import Annotated, Any

import numpy as np

from rltrainer.data.storage import Array
from rltrainer.envs.agents.agents_as_envs import TEAM_RETURN, AgentsAsEnvs, LastInfos
from rltrainer.envs.vector_env import VectorEnv
from rltrainer.errors import EnvError, ParamsError, readable
from rltrainer.validation.field_rules import Rule, are_names, as_python, checked, is_int
from rltrainer.validation.suggestions import did_you_mean

LastInfo = Callable[[int], tuple[dict[str, Any], int]]

# Keys by which envs report whether an episode succeeded.
OF_SUCCESS = ("is_success", "success")
# Names that the rows of a log have already.
TAKEN = ("return", "length", "score", "env_steps_per_second")


Keys = Annotated[
    Sequence[str],
    Rule("a sequence of keys, such as ('is_success',)", lambda v: are_names(v) and all(v), "Write a tuple or list."),
]


class InfoReader:
    """Reads numbers or flags from the infos with which episodes end; NaN stands for one that is missing."""

    # `last_info` returns the infos of an env's last step, gathered as gymnasium does, and its row there. `optional`
    # keys are left out where no episode has a number there; `known` ones may be missing without a warning.

    def __init__(
        self, last_info: LastInfo, keys: Sequence[str], optional: Sequence[str] = (), known: Sequence[str] = ()
    ) -> None:
        self._last_info, self._optional = last_info, frozenset(optional)
        self._no_surprises = {*optional, *known}
        self.keys = (*keys, *optional)
        self._found, self._has_warned = set[str](), False  # keys of infos where one was missing

    def of_ended(self, rows: Array) -> Array:
        """Return the values [K, keys] of envs [K] at an episode's end; an `EnvError` if one is no number."""
        values = [[self._value(key, n) for key in self.keys] for n in rows.tolist()]
        return np.array(values, np.float64).reshape(len(values), len(self.keys))

    def by_key(self, values: Sequence[Array]) -> dict[str, Array]:
        """Join the results of `of_ended` in a collection, by key [E]; warn once of a key that no info had."""
        joined = np.concatenate([np.zeros((0, len(self.keys))), *values])
        by_key = dict(zip(self.keys, joined.T.copy(), strict=True))
        missing = [key for key, column in by_key.items() if np.isnan(column).all()] if len(joined) else []
        if (wanted := [key for key in missing if key not in self._no_surprises]) and not self._has_warned:
            self._has_warned = True
            had = ", ".join(map(repr, sorted(self._found))) or "nothing"
            text = f"{wanted[0]!r} is in no info with which an episode ended so far; they had {had}"
            warnings.warn(f"info_keys: {text}.{did_you_mean(wanted[0], self._found)}", stacklevel=4)
        return {key: column for key, column in by_key.items() if key not in self._optional.intersection(missing)}

    def _value(self, key: str, env: int) -> float:
        infos, row = self._last_info(env)
        has = key in infos and (f"_{key}" not in infos or infos[f"_{key}"][row])
        if not has or infos[key][row] is None:
            self._found.update(name for name in infos if name[:1] != "_")
            return np.nan
        value = as_number(infos[key][row])
        if isinstance(value, bool | float) or is_int(value):
            return float(value)
        if key in self._optional:
            return np.nan
        found = f"{readable(value)} ({type(value).__name__})"
        raise EnvError(f"env {env} info[{key!r}]: expected a number at the end of an episode, found {found}")


class EpisodeInfos(LastInfos):
    """Keeps the infos of a vector env's last step, in any autoreset mode, for its `InfoReader`."""

    def __init__(self, envs: VectorEnv, keys: Sequence[str], optional: Sequence[str] = ()) -> None:
        super().__init__(envs)
        known = (TEAM_RETURN,) if isinstance(envs.unwrapped, AgentsAsEnvs) else ()
        self.reader = InfoReader(self._last_info, keys, optional, known)

    def _last_info(self, env: int) -> tuple[dict[str, Any], int]:
        infos = self.infos
        if "final_info" in infos and infos["_final_info"][env]:  # the others are from the next episode's reset
            return infos["final_info"], env
        return infos, env


def as_number(value: Any) -> Any:
    """Return a number of NumPy, or of a tensor or array without axes, as Python's; everything else as it is."""
    return as_python(value.item() if getattr(value, "shape", None) == () else value)


def checked_keys(owner: str, keys: Sequence[str]) -> tuple[str, ...]:
    """Return keys of infos, each once; a `ParamsError` if they are no keys, or if a log uses that name."""
    keys = checked(owner, "info_keys", keys, Keys)
    for key in keys:
        if key in TAKEN:
            rule = f"must be none of {', '.join(TAKEN)}, which a log has already"
            raise ParamsError.about(owner, "info_keys", rule, key)
    return tuple(dict.fromkeys(keys))


def with_success(envs: VectorEnv, keys: Sequence[str]) -> EpisodeInfos:
    """Return envs that keep their infos, to read these keys, and success where they report it."""
    return EpisodeInfos(envs, keys, optional=[key for key in OF_SUCCESS if key not in keys])
