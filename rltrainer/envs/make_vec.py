"""Make a vector env from a gymnasium id or a factory, with the backend that suits it."""

import difflib
import inspect
import logging
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import gymnasium as gym
from gymnasium.envs import registration
from gymnasium.envs.registration import EnvSpec

from rltrainer.envs.native import NativeVectorEnv
from rltrainer.envs.single_env import Env
from rltrainer.envs.sync import SyncVectorEnv
from rltrainer.errors import EnvError, MissingExtraError, ParamsError, field_error_text
from rltrainer.rules import NonNegativeInt, PositiveInt, rules_of

VectorEnv = gym.vector.VectorEnv[Any, Any, Any]

BACKENDS = ("auto", "native", "sync")

NATIVE_FROM_NUM_ENVS = 8
"""From here on stepping CartPole's arrays once is faster than stepping its envs one by one, and below it is not."""

_EXTRAS = {"gymnasium.envs.mujoco": "mujoco", "gymnasium.envs.box2d": "box2d", "ale_py": "atari"}
"""The extra that brings what envs of a module need."""


def make_vec(
    env: str | Callable[[], Env],
    num_envs: int,
    *,
    backend: str = "auto",
    seed: int | None = None,
    wrappers: Sequence[Callable[[Env], Env]] = (),
    **env_kwargs: Any,
) -> VectorEnv:
    """Make `num_envs` copies of an env that are stepped together.

    Args:
        env: a gymnasium id (`"CartPole-v1"`, `"module:Name-v0"`), or a factory that is called without arguments and
            returns a new env.
        num_envs: how many.
        backend: `"native"`, the env's own vector implementation (gymnasium's CartPole, ALE's Atari); `"sync"`, one
            after the other in this process; `"auto"` takes gymnasium's own NumPy implementation where there is one
            that understands all arguments and `num_envs` is at least 8, and otherwise `"sync"`. It logs what it chose
            to the logger `rltrainer`.
        seed: the seeds of all episodes derive from it; None leaves them to the collector.
        wrappers: applied to each single env, first one innermost; not with `"native"`.
        env_kwargs: arguments of the env; only with an id.

    Returns:
        a vector env with the attribute `base_seed`.

    Raises:
        ParamsError: an argument breaks its rule, or two contradict each other.
        MissingExtraError: the env needs a package that is not installed.
        EnvError: the id is unknown, or an env cannot be made.
        SpaceError: the envs' spaces are not equal, or not supported.
    """
    _check_arguments(env, num_envs, backend, seed, wrappers, env_kwargs)
    if not isinstance(env, str):
        if backend == "native":
            _refuse("backend", "'native' needs a gymnasium id", backend, "A factory runs with backend='sync'.")
        _announce(env, num_envs, backend, "sync")
        return SyncVectorEnv([lambda: _wrapped(env(), wrappers)] * num_envs, seed)
    spec = _find_spec(env)
    if backend == "auto":
        is_native = num_envs >= NATIVE_FROM_NUM_ENVS and not wrappers and _is_numpy_native(spec, env_kwargs)
        _announce(env, num_envs, backend, "native" if is_native else "sync")
    else:
        is_native = backend == "native"
    if is_native:
        return _make_native(spec, num_envs, seed, wrappers, env_kwargs)
    return SyncVectorEnv([lambda: _wrapped(_make_single(spec, env_kwargs), wrappers)] * num_envs, seed)


def _check_arguments(env: Any, num_envs: Any, backend: Any, seed: Any, wrappers: Any, env_kwargs: Any) -> None:
    if not isinstance(env, str) and not callable(env):
        _refuse("env", "must be a gymnasium id or a factory of envs", env)
    if isinstance(env, type) and not issubclass(env, gym.Env):
        _refuse("env", "must be a gymnasium id or a factory of envs", env)
    for name, value, annotation in (("num_envs", num_envs, PositiveInt), ("seed", seed, NonNegativeInt | None)):
        rules = rules_of(annotation)
        if not any(rule.accepts(value) for rule in rules):
            _refuse(name, "must be " + " or ".join(rule.text for rule in rules), value)
    if backend not in BACKENDS:
        nearest = difflib.get_close_matches(str(backend), BACKENDS, n=1)
        hint = f"Did you mean {nearest[0]!r}?" if nearest else ""
        _refuse("backend", f"must be one of {', '.join(map(repr, BACKENDS))}", backend, hint)
    if not isinstance(wrappers, Sequence) or isinstance(wrappers, str) or not all(map(callable, wrappers)):
        _refuse("wrappers", "must be a sequence of callables from an env to an env", wrappers)
    if env_kwargs and not isinstance(env, str):
        _refuse("env_kwargs", "only a gymnasium id takes arguments", env_kwargs, "Let the factory pass them.")


def _refuse(field: str, rule: str, value: object, hint: str = "") -> None:
    raise ParamsError(field_error_text("make_vec", field, rule, value, hint))


def _announce(env: Any, num_envs: int, backend: str, chosen: str) -> None:
    if backend == "auto":
        name = env if isinstance(env, str) else getattr(env, "__qualname__", type(env).__qualname__)
        logging.getLogger("rltrainer").info("make_vec: %s with num_envs=%d runs on backend=%r", name, num_envs, chosen)


def _find_spec(env_id: str) -> EnvSpec:
    """Look up an id; `module:Name-v0` imports the module first, and so do Atari ids, whose package registers them."""
    if env_id.startswith("ALE/"):
        env_id = f"ale_py:{env_id}"
    module = env_id.partition(":")[0]
    with _translated_errors(env_id, module):
        # gymnasium's public lookup imports no module, and its private one warns of every id that has a newer version.
        return registration._find_spec(env_id) if ":" in env_id else gym.spec(env_id)


def _is_numpy_native(spec: EnvSpec, env_kwargs: dict[str, Any]) -> bool:
    """Whether gymnasium itself ships a vector implementation that needs no further package."""
    entry_point = spec.vector_entry_point
    if not isinstance(entry_point, str) or not entry_point.startswith("gymnasium.envs.classic_control."):
        return False
    understood = inspect.signature(registration.load_env_creator(entry_point)).parameters
    return not spec.additional_wrappers and all(name in understood for name in env_kwargs)


def _make_native(
    spec: EnvSpec, num_envs: int, seed: int | None, wrappers: Sequence[Any], env_kwargs: dict[str, Any]
) -> VectorEnv:
    if wrappers:
        _refuse("wrappers", "'native' has no single envs to wrap", wrappers, "Use backend='sync'.")
    if spec.vector_entry_point is None:
        hint = f"{spec.id} has none: use backend='sync'."
        _refuse("backend", "'native' needs an env with a vector implementation of its own", "native", hint)
    with _translated_errors(spec.id, spec.vector_entry_point):
        try:
            envs = gym.make_vec(spec, num_envs, "vector_entry_point", **env_kwargs)
        except (TypeError, ValueError) as error:
            raise EnvError(f"make_vec.env: {spec.id} cannot be made: {type(error).__name__}: {error}") from error
    return NativeVectorEnv(envs, seed)


def _make_single(spec: EnvSpec, env_kwargs: dict[str, Any]) -> Env:
    # Our own checks replace gymnasium's checking wrapper, which would cost a call per step.
    with _translated_errors(spec.id, spec.entry_point):
        return gym.make(spec, **{"disable_env_checker": True, **env_kwargs})


def _wrapped(env: Env, wrappers: Sequence[Callable[[Env], Env]]) -> Env:
    for wrapper in wrappers:
        env = wrapper(env)
    return env


@contextmanager
def _translated_errors(env_id: str, entry_point: Any) -> Iterator[None]:
    """Turn what gymnasium raises for an id into our errors; `entry_point` tells which extra may be missing."""
    try:
        yield
    except (gym.error.DependencyNotInstalled, ModuleNotFoundError) as error:
        module = entry_point if isinstance(entry_point, str) else getattr(entry_point, "__module__", "")
        extra = next((extra for name, extra in _EXTRAS.items() if module.startswith(name)), None)
        hint = f' Run: pip install "rltrainer[{extra}]"' if extra else ""
        raise MissingExtraError(
            f"make_vec.env: {env_id} needs a package that is not installed: {error}.{hint}"
        ) from error
    except gym.error.Error as error:
        raise EnvError(f"make_vec.env: {error}") from error
