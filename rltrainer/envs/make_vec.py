"""Make a vector env from a gymnasium id or a factory, with the backend that suits it."""

import dataclasses
import inspect
import logging
import re
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from typing import Any, Literal, get_args, get_type_hints

import gymnasium as gym
import torch
from gymnasium.envs import registration
from gymnasium.envs.registration import EnvSpec

from rltrainer.envs.atari import UNDERSTOOD, AtariVectorEnv, atari_options_of
from rltrainer.envs.backends.masked_resets import Env
from rltrainer.envs.backends.native import EnvPoolVectorEnv, NativeVectorEnv
from rltrainer.envs.backends.sync import SyncVectorEnv
from rltrainer.envs.deferred_envs import DeferredEnvs
from rltrainer.envs.tensors import TENSOR_ENVS
from rltrainer.envs.tensors.tensor_env import TensorEnv
from rltrainer.envs.tensors.tensor_vector_env import TensorVectorEnv
from rltrainer.envs.workers.worker_vector_env import WorkerOptions, WorkerVectorEnv
from rltrainer.errors import EnvError, MissingExtraError, ParamsError, install_extra
from rltrainer.processes.worker import num_cores
from rltrainer.ranks.torch_ranks import torchrun_place
from rltrainer.seeding import derive_seed, draw_seed
from rltrainer.validation.field_rules import NonNegativeInt, PositiveInt, checked
from rltrainer.validation.suggestions import did_you_mean

VectorEnv = gym.vector.VectorEnv[Any, Any, Any]
Wrappers = Sequence[Callable[[Env], Env]]

Backend = Literal["auto", "native", "sync", "workers", "envpool", "tensor"]
BACKENDS = get_args(Backend)

ONE_ENV = "It is one env: pass what makes a new one at each call, such as lambda: MyEnv(), or its class."
MANY_AGENTS = (
    "It is an env of several agents: rl.AgentsAsEnvs(factory, num_copies) makes them the rows of a vector env, and "
    "lambda: rl.JointEnv(parallel_env) makes it an env of one agent."
)
# From here on stepping CartPole's arrays once is faster than stepping its envs one by one, and below it is not.
NATIVE_FROM_NUM_ENVS = 8
GAME = "ale_py.env:AtariEnv"  # the entry point of Atari games

_EXTRAS = {
    "gymnasium.envs.mujoco": "mujoco", "gymnasium.envs.box2d": "box2d", "ale_py": "atari", "MinAtar": "minatar"
}  # fmt: skip
"""The extra with the packages that envs of a module need."""
_invalid = partial(ParamsError.about, "make_vec")


def make_vec(
    env: str | Callable[[], Env] | Callable[[], TensorEnv],
    num_envs: int,
    *,
    backend: Backend = "auto",
    seed: int | None = None,
    wrappers: Wrappers = (),
    num_workers: int | None = None,
    start_method: Literal["forkserver", "spawn", "fork"] | None = None,
    step_timeout: float | None = None,
    on_env_error: Literal["raise", "restart"] = "raise",
    max_restarts: int = 3,
    device: torch.device | str | None = None,
    **env_kwargs: Any,
) -> VectorEnv:
    """Make `num_envs` copies of an env that are stepped together.

    Args:
        env: a gymnasium id (`"CartPole-v1"`, `"module:Name-v0"`; without a version the newest), or a factory that is
            called without arguments and returns a new env.
        backend: `"native"`, the env's own vector implementation (gymnasium's CartPole, ALE's Atari); `"sync"`, one
            after the other in this process; `"workers"`, in processes of ours, with the same data as `"sync"` unless
            envs draw from global generators, which each process has for itself;
            `"envpool"`, EnvPool's implementation of this id (an extra; other numbers); `"tensor"`, as functions of
            tensors on `device`, of some ids or of a factory of a `TensorEnv`. `"auto"` takes gymnasium's own
            NumPy implementation if it understands all arguments and `num_envs` is at least 8, ALE's for games with an
            `AtariWrapper` and nothing else that it lacks, and otherwise `"sync"`; it logs its choice.
        seed: the root of the seeds of all episodes; None leaves it to the collector.
        wrappers: applied to each single env, first one innermost; `"native"` takes one `AtariWrapper` at most.
        num_workers: processes of `"workers"`; None takes as many as this process may use cores, at most one per env.
        start_method: of `"workers"`: `"forkserver"`, `"spawn"` or `"fork"`; None takes forkserver where there is one.
        step_timeout: of `"workers"`: seconds that one env may take to be made, for a step or a reset.
        on_env_error: of `"workers"`: `"raise"`, or `"restart"` to start the process again of an env that raises, hangs
            or dies; the episodes of its envs are then cut, and the step in which that happened is not trained on.
        max_restarts: of `"workers"`: the number of failures after which `"restart"` raises.
        device: of `"tensor"`: where the envs are stepped; None is the CPU.
        env_kwargs: arguments of the env; only with an id. EnvPool's own (`num_threads`, ...) with `"envpool"`.

    Returns:
        a vector env with the attribute `base_seed`; without wrappers its `spec` has id and arguments. Under `torchrun`
        one that stands for all envs; each process makes its own part of them when a trainer needs it.

    Raises:
        ParamsError: an argument breaks its rule, or two contradict each other.
        MissingExtraError: the env, or EnvPool, needs a package that is not installed.
        EnvError: the id is unknown, an env cannot be made, or its factory cannot travel to a worker process.
        SpaceError: the envs' spaces are not equal, or not supported.
    """
    num_envs = checked("make_vec", "num_envs", num_envs, PositiveInt)
    seed = checked("make_vec", "seed", seed, NonNegativeInt | None)
    _check_arguments(env, backend, wrappers, env_kwargs)
    options: dict[str, Any] = {
        "num_workers": num_workers, "start_method": start_method, "step_timeout": step_timeout,
        "on_env_error": on_env_error, "max_restarts": max_restarts,
    }  # fmt: skip
    annotations = get_type_hints(WorkerOptions, include_extras=True)
    for name, value in options.items():
        options[name] = checked("make_vec", name, value, annotations[name])
        if value != getattr(WorkerOptions, name) and backend != "workers":
            raise _invalid(name, "only backend='workers' can honour it", value, f"The backend is {backend!r}.")
    if device is not None and backend != "tensor":
        raise _invalid("device", "only backend='tensor' can honour it", device, f"The backend is {backend!r}.")
    spec = spec_of(env) if isinstance(env, str) and backend not in ("tensor", "envpool") else None
    chosen: str = backend
    if backend == "auto":
        if wrappers:
            is_native = _skips_frames(spec, wrappers) and len(wrappers) == 1 and env_kwargs.keys() <= UNDERSTOOD
        else:
            is_native = spec is not None and num_envs >= NATIVE_FROM_NUM_ENVS and _is_numpy_native(spec, env_kwargs)
        chosen = "native" if is_native else "sync"
        name = env if isinstance(env, str) else getattr(env, "__qualname__", type(env).__qualname__)
        logging.getLogger("rltrainer").info("make_vec: %s with num_envs=%d runs on backend=%r", name, num_envs, chosen)

    # Drawn here and only once, also for envs that torchrun's processes make later: the program continues alike.
    root = draw_seed() if seed is None and chosen == "tensor" else seed

    def make(num_envs: int, first: int, count: int) -> VectorEnv:
        # Single envs are seeded by their global index; envs that are seeded as a whole need another seed in each part.
        of_part = root if root is None or not first else derive_seed(root, "part", first)
        if chosen == "tensor":
            tensors = _make_tensor(env, num_envs, device, of_part)
            tensors.base_seed = None if seed is None else of_part
            return tensors
        if chosen == "envpool":
            return NativeVectorEnv(EnvPoolVectorEnv(str(env), num_envs, env_kwargs), of_part)
        if chosen == "native":
            return NativeVectorEnv(_make_native(spec, num_envs, env_kwargs, wrappers), of_part)
        factories = [partial(_make_single, env if callable(env) else spec, env_kwargs, wrappers)] * num_envs
        share = -(-(num_workers or num_cores()) // count)
        own = options if count == 1 else {**options, "num_workers": share, "first_env": first}
        made = WorkerVectorEnv(factories, seed, **own) if chosen == "workers" else SyncVectorEnv(factories, seed)
        if spec is not None and not wrappers:  # so that a run can say what it was trained in
            made.spec = dataclasses.replace(spec, kwargs={**spec.kwargs, **env_kwargs})
        return made

    place = torchrun_place()
    envs = DeferredEnvs(make, num_envs, seed, place or (0, num_envs))
    return envs if place else envs.part(0, 1)


def single_env(env: str | Callable[[], Env], wrappers: Wrappers = (), **env_kwargs: Any) -> Env:
    """Make one env, as `make_vec` does; a factory is given the `env_kwargs` that it takes, such as `render_mode`."""
    if callable(env):
        taken = inspect.signature(env).parameters
        env, env_kwargs = partial(env, **{name: env_kwargs[name] for name in env_kwargs.keys() & taken.keys()}), {}
    _check_arguments(env, "sync", wrappers, env_kwargs)
    return _make_single(spec_of(env) if isinstance(env, str) else env, env_kwargs, wrappers)


def env_remedy(value: object) -> str:
    """Return what to write where a value is no id and no factory; "" if that is not known."""
    if callable(getattr(value, "observation_space", None)):  # of an agent; gymnasium's is a space
        return MANY_AGENTS
    if isinstance(value, type) and issubclass(value, TensorEnv):
        return "Its rules are functions of tensors: make_vec and rl.train need backend='tensor'. They draw no frames."
    return ONE_ENV if isinstance(value, gym.Env | TensorEnv) else ""


def newest_version(env_id: str) -> str:
    """Return an id with the newest version that gymnasium knows, where it names none: `CartPole` is `CartPole-v1`."""
    module, colon, name = env_id.rpartition(":")
    match = registration.ENV_ID_RE.fullmatch(name)
    if match is None or match["version"] is not None or name in gym.registry:
        return env_id
    version = registration.find_highest_version(match["namespace"], match["name"])
    return env_id if version is None else f"{module}{colon}{name}-v{version}"


def _check_arguments(env: Any, backend: Any, wrappers: Any, env_kwargs: Any) -> None:
    kind = TensorEnv if backend == "tensor" else gym.Env
    if not isinstance(env, str) and (not callable(env) or (isinstance(env, type) and not issubclass(env, kind))):
        raise _invalid("env", "must be a gymnasium id or a factory of envs", env, env_remedy(env))
    if not isinstance(backend, str) or backend not in BACKENDS:
        hint = did_you_mean(str(backend), BACKENDS).strip()
        raise _invalid("backend", f"must be one of {', '.join(map(repr, BACKENDS))}", backend, hint)
    if not isinstance(wrappers, Sequence) or isinstance(wrappers, str) or not all(map(callable, wrappers)):
        raise _invalid("wrappers", "must be a sequence of callables from an env to an env", wrappers)
    if "env_kwargs" in env_kwargs:
        hint = "Write make_vec(..., **env_kwargs)."
        raise _invalid("env_kwargs", "must be given each by its name", env_kwargs["env_kwargs"], hint)
    if env_kwargs and not isinstance(env, str):
        raise _invalid("env_kwargs", "only a gymnasium id takes arguments", env_kwargs, "Let the factory pass them.")
    if env_kwargs and backend == "tensor":
        hint = "A factory passes them to rules of your own."
        raise _invalid("env_kwargs", "'tensor' takes no arguments of an env", env_kwargs, hint)
    if backend in ("native", "envpool") and not isinstance(env, str):
        hint = "A factory runs with backend='sync' or 'workers'."
        raise _invalid("backend", f"{backend!r} needs a gymnasium id", backend, hint)
    of_game = backend == "native" and len(wrappers) == 1 and atari_options_of(wrappers[0])
    if wrappers and backend in ("native", "envpool", "tensor") and not of_game:
        raise _invalid("wrappers", f"{backend!r} has no single envs to wrap", wrappers, "Use backend='sync'.")


def spec_of(env_id: str) -> EnvSpec:
    """Look up an id; `module:Name-v0` imports the module first, and so do Atari ids: their package registers them."""
    if env_id.startswith("ALE/") or "NoFrameskip-" in env_id.partition(":")[0]:
        env_id = f"ale_py:{env_id}"
    module = env_id.partition(":")[0].partition("/")[0]
    with _translated_errors(env_id, module):
        if module == "MinAtar":
            import minatar.gym

            if not any(name.startswith("MinAtar/") for name in gym.registry):  # importing the package does not
                minatar.gym.register_envs()
        if ":" in env_id:  # the registry knows the name alone, once its module was imported
            registration.load_env_creator(f"{env_id.rpartition(':')[0]}:__name__")
        return gym.spec(newest_version(env_id.rpartition(":")[2]))


def _is_numpy_native(spec: Any, env_kwargs: dict[str, Any]) -> bool:
    entry_point = spec.vector_entry_point  # of gymnasium itself, which needs no further package
    if not isinstance(entry_point, str) or not entry_point.startswith("gymnasium.envs.classic_control."):
        return False
    understood = inspect.signature(registration.load_env_creator(entry_point)).parameters
    return not spec.additional_wrappers and all(name in understood for name in env_kwargs)


def _make_native(spec: Any, num_envs: int, env_kwargs: dict[str, Any], wrappers: Wrappers) -> VectorEnv:
    if wrappers:
        if spec.entry_point != GAME:
            hint = "Only games of ALE have an AtariWrapper."
            raise _invalid("wrappers", "'native' has no single envs to wrap", wrappers, hint)
        game = {name: value for name, value in {**spec.kwargs, **env_kwargs}.items() if name != "frameskip"}
        make: Any = partial(AtariVectorEnv, num_envs, game, atari_options_of(wrappers[0]) or {})
    else:
        if spec.vector_entry_point is None:
            hint = f"{spec.id} has none: use backend='sync'."
            raise _invalid("backend", "'native' needs an env with a vector implementation of its own", "native", hint)
        make = partial(gym.make_vec, spec, num_envs, "vector_entry_point", **env_kwargs)
    with _translated_errors(spec.id, spec.entry_point if wrappers else spec.vector_entry_point):
        try:
            made: VectorEnv = make()
            return made
        except (TypeError, ValueError) as error:
            raise EnvError(f"make_vec.env: {spec.id} cannot be made: {type(error).__name__}: {error}") from error


def _make_tensor(env: Any, num_envs: int, device: torch.device | str | None, seed: int | None) -> TensorVectorEnv:
    if callable(env):
        return TensorVectorEnv(env(), num_envs, device, seed)
    if (env_id := newest_version(env)) not in TENSOR_ENVS:
        hint = f"There are {', '.join(TENSOR_ENVS)}; a factory of a rl.TensorEnv makes one of your own rules."
        raise _invalid("env", "must be an env with rules as functions of tensors if the backend is 'tensor'", env, hint)
    rules = TENSOR_ENVS[env_id]
    made = TensorVectorEnv(rules(), num_envs, device, seed)
    # Not gymnasium's own: the package that registers it need not be there.
    made.spec = EnvSpec(env_id, f"{rules.__module__}:{rules.__qualname__}", max_episode_steps=rules.max_episode_steps)
    return made


def _skips_frames(spec: Any, wrappers: Wrappers) -> bool:
    """Return whether it is an Atari game, and a wrapper decides on its frames."""
    return getattr(spec, "entry_point", None) == GAME and any(map(atari_options_of, wrappers))


def _make_single(env: Any, env_kwargs: dict[str, Any], wrappers: Wrappers) -> Env:
    """Make an env from its factory or spec, and wrap it."""
    if callable(env):
        made: Env = env()
    else:
        # Our own checks replace gymnasium's checking wrapper, which would cost a call per step.
        if _skips_frames(env, wrappers):
            env_kwargs = {"frameskip": 1, **env_kwargs}
        with _translated_errors(env.id, env.entry_point):
            made = gym.make(env, **{"disable_env_checker": True, **env_kwargs})
    for wrapper in wrappers:
        made = wrapper(made)
    return made


@contextmanager
def _translated_errors(env_id: str, entry_point: Any) -> Iterator[None]:
    """Turn what gymnasium raises for an id into our errors; `entry_point` names the extra that may be missing."""
    try:
        yield
    except (gym.error.DependencyNotInstalled, ModuleNotFoundError) as error:
        module = entry_point if isinstance(entry_point, str) else getattr(entry_point, "__module__", "")
        extra = next((extra for name, extra in _EXTRAS.items() if module.startswith(name)), None)
        # Without gymnasium's advice where there is our own: its packages need not be the ones that we ask for.
        words = f"{re.split('[.,] ', str(error))[0]}. {install_extra(extra)}" if extra else f"{error}."
        raise MissingExtraError(f"make_vec.env: {env_id} needs a package that is not installed: {words}") from error
    except gym.error.Error as error:
        is_own = isinstance(error, gym.error.NameNotFound) and "Did you mean" not in str(error)
        hint = " One of your own is passed as its class; in a command as my_package:MyEnv." if is_own else ""
        raise EnvError(f"make_vec.env: {error}{hint}") from error
