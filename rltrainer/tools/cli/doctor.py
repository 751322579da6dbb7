"""`rltrainer doctor`: what this machine has for training; `rltrainer doctor env ENV`: whether an env is fit for it."""

import contextlib
import functools
import platform
import re
import shutil
import time
import warnings
from collections.abc import Iterator
from importlib import metadata
from typing import Any

import click
import gymnasium as gym
import numpy as np
import torch
from gymnasium.utils.env_checker import check_env

from rltrainer.collect import Collector
from rltrainer.data import RolloutBuffer
from rltrainer.device import cuda_devices
from rltrainer.envs import make_vec
from rltrainer.envs.make_vec import single_env
from rltrainer.errors import RLTrainerError, readable
from rltrainer.nets import ActorCritic, Policy
from rltrainer.processes.worker import num_cores
from rltrainer.tools.cli.values import env_named
from rltrainer.tools.recipes.algorithms import algorithms_for, policy_of
from rltrainer.tree import leaves
from rltrainer.types import Rollout

# The package by which an extra is known to be installed.
EXTRAS = {
    "envpool": "envpool", "video": "imageio-ffmpeg", "plot": "matplotlib", "box2d": "box2d", "mujoco": "mujoco",
    "atari": "ale-py", "minatar": "MinAtar", "pettingzoo": "pettingzoo", "sweep": "optuna", "onnx": "onnxruntime",
    "serve": "fastapi", "minari": "minari", "hdf5": "h5py", "parquet": "pyarrow", "system": "psutil", "wandb": "wandb",
    "mlflow": "mlflow-skinny", "ray": "ray",
}  # fmt: skip
# Warnings of gymnasium that do not matter here: about wrappers, bounds of observations, actions to be scaled.
NO_MATTER = re.compile(
    "different from the unwrapped|observation space (min|max)imum value is|symmetric and normalized space"
)
MARKS = {True: "ok", False: "BAD", None: "HINT"}  # the last for a probable mistake
LARGE_REWARD, LARGE_OBS = 1e4, 100.0  # networks expect numbers around 1
_ANSI = re.compile(r"\x1b\[\d+m")
# Env steps to look at an env.
NUM_STEPS = 1000


class Doctor(click.Group):
    """A group whose argument may be taken for an env."""

    def resolve_command(self, ctx: click.Context, args: list[str]) -> Any:
        """Return the named command, or check an env."""
        if self.get_command(ctx, args[0]) is None:
            ctx.fail(f"No such command {args[0]!r}. An env is looked at by: rltrainer doctor env {args[0]}")
        return super().resolve_command(ctx, args)


@click.group(cls=Doctor, invoke_without_command=True)
@click.pass_context
def doctor(ctx: click.Context) -> None:
    """Show what this machine has for training.

    `doctor env ENV` checks an env. `verify` looks at what is learnt here, `python -m rltrainer.checkpoint verify` at
    files.
    """
    if ctx.invoked_subcommand is None:
        for name, found in machine():
            click.echo(f"{name:14}{found}")


@doctor.command()
@click.argument("env")
@click.pass_context
def env(ctx: click.Context, env: str) -> None:
    """Check an env of your own with random actions.

    Checks its spaces, what it returns, episode ends and resets, speed, and whether a seed makes it repeat.
    """
    num_bad = 0
    for name, is_good, words in look_at_env(env_named(env)):
        num_bad += is_good is False
        click.echo(f"{MARKS[is_good]:5}{name:14}{words}")
    if num_bad:
        ctx.exit(1)


def machine() -> Iterator[tuple[str, str]]:
    """Yield what the machine has, by name."""
    yield "python", platform.python_version()
    yield "torch", f"{torch.__version__}, {torch.get_num_threads()} threads"
    capability = torch.backends.cpu.get_cpu_capability()
    yield "processor", f"{platform.machine()}, {num_cores()} cores, torch uses {capability}"
    yield "AVX-512", "yes" if "AVX512" in capability else "no"
    bf16 = getattr(torch.cpu, "_is_avx512_bf16_supported", lambda: False)()
    yield "bf16", "yes, by AVX-512" if bf16 else "slow: no instructions for it"
    compiler = next(filter(None, map(shutil.which, ("c++", "g++", "clang++", "cl"))), None)
    yield "compiler", compiler or "none: gradient steps cannot be compiled, and take longer"
    yield "CUDA", ", ".join(cuda_devices()) or "none"
    yield "ffmpeg", shutil.which("ffmpeg") or ("that of imageio-ffmpeg" if _version("imageio-ffmpeg") else "none")
    for extra, package in EXTRAS.items():
        version = _version(package)
        yield extra, f"{package} {version}" if version else f'not installed: pip install "rltrainer[{extra}]"'


def look_at_env(env: Any) -> Iterator[tuple[str, bool | None, str]]:
    """Yield each check of an env: its name, its outcome (None: in doubt), and words on it."""
    try:
        single = single_env(env)
    except Exception as error:
        kind = "" if isinstance(error, RLTrainerError) else f"{type(error).__name__}: "
        yield "making", False, f"{kind}{error}"
        return
    if isinstance(single, gym.vector.VectorEnv):
        yield "making", False, "it makes a vector env; name what makes one env"
        return
    for name, attribute in (("observations", "observation_space"), ("actions", "action_space")):
        space = getattr(single, attribute, None)
        if not isinstance(space, gym.Space):
            yield name, False, f"{attribute}: must be a gymnasium.Space; got {readable(space)}. Set it in __init__."
            return
        yield name, True, readable(space)
    try:
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            check_env(single.unwrapped if isinstance(env, str) else single, skip_render_check=True)
        texts = [_ANSI.sub("", str(each.message)).removeprefix("WARN: ") for each in caught]
        words = "; ".join(text for text in texts if not NO_MATTER.search(text))
        yield "gymnasium", True, f"its own checks pass{': ' * bool(words)}{words}"
    except Exception as error:
        yield "gymnasium", False, f"its own checks fail: {next(iter(str(error).splitlines()), repr(error))}"
    limit = single.get_wrapper_attr("_max_episode_steps") if single.has_wrapper_attr("_max_episode_steps") else None
    single.close()
    try:
        envs = make_vec(env, 2, backend="sync", seed=1)
    except RLTrainerError as error:
        yield "rltrainer", False, str(error)
        return
    with contextlib.closing(envs):
        takers = algorithms_for(envs.single_observation_space, envs.single_action_space)
        if takers:
            yield "algorithms", True, ", ".join(takers)
            yield from _steps(policy_of(takers[0]).for_envs(envs), envs, env, limit)
            return
        try:
            ActorCritic.for_envs(envs)  # which takes the most
            problem = "its actions"
        except RLTrainerError as error:
            problem = str(error)
        yield "algorithms", False, f"none takes these spaces: {problem}"


def _steps(policy: Policy, envs: Any, env: Any, limit: int | None) -> Iterator[tuple[str, bool | None, str]]:
    buffer = RolloutBuffer(NUM_STEPS, envs.num_envs, envs.single_observation_space, envs.single_action_space)
    try:
        started = time.perf_counter()
        stats = Collector(policy, envs, buffer).collect(num_steps=NUM_STEPS, random=True)
        seconds = time.perf_counter() - started
    except Exception as error:
        yield "steps", False, f"{type(error).__name__}: {error}"
        return
    yield "steps", True, f"{NUM_STEPS} random ones: observations and rewards are finite and as declared"
    lengths = f", {stats.lengths.mean():.4g} steps each, and began again" if stats.num_collected_episodes else ""
    hint = "" if stats.num_collected_episodes else ": is there a time limit? Returns are those of episodes that ended"
    hint = hint if limit is None else f"; the time limit is {limit:,}"
    yield "episodes", True, f"{stats.num_collected_episodes} ended in {NUM_STEPS} steps{lengths}{hint}"
    yield from _hints(buffer.rollout(), stats.lengths)
    yield "speed", True, f"{NUM_STEPS / seconds:,.0f} env steps a second in one process, with what stores them"
    first, second = (_walk(env) for _ in range(2))
    same = all(np.array_equal(a, b) for a, b in zip(first, second, strict=True))
    hint = "" if same else ": draw only from self.np_random, which super().reset(seed=seed) seeds"
    yield "determinism", same, f"the same seed and actions give {'the same' if same else 'another'} episode{hint}"


def _hints(rollout: Rollout, lengths: Any) -> Iterator[tuple[str, None, str]]:
    """Yield what makes an env hard to learn, although each value is allowed."""
    if len(lengths) > 1 and lengths.min() == lengths.max() > 1 and int(rollout.terminated.sum()) == len(lengths):
        how = "return a time limit as truncated, or let the agent observe the time"
        yield "time limit", None, f"every episode is terminated at its step {int(lengths[0])}: {how}"
    if (peak := rollout.reward.abs().max().item()) > LARGE_REWARD:
        yield "rewards", None, f"as large as {peak:.3g}: bring them to about 1, or train with normalize_reward=True"
    numbers = [leaf.abs().max().item() for leaf in leaves(rollout.obs) if leaf.is_floating_point()]
    if (peak := max(numbers, default=0.0)) > LARGE_OBS:
        yield "scale", None, f"observations as large as {peak:.3g}: change units, or train with normalize_obs=True"


def _walk(env: Any) -> list[Any]:
    """Return observations and rewards of the same steps in a new env."""
    single = single_env(env)
    single.action_space.seed(1)
    flat = functools.partial(gym.spaces.flatten, single.observation_space)  # a copy: an env may reuse its arrays
    rows: list[Any] = [flat(single.reset(seed=1)[0])]
    for _ in range(200):
        obs, reward, terminated, truncated, _ = single.step(single.action_space.sample())
        rows += [flat(obs), reward]
        if terminated or truncated:
            rows.append(flat(single.reset()[0]))
    single.close()
    return rows


def _version(package: str) -> str | None:
    try:
        return metadata.version(package)
    except metadata.PackageNotFoundError:
        return None
