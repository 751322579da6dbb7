"""The worker process of an `AsyncCollector`: a collector of its own, with a copy of the policy."""

import operator
import os
import warnings
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import gymnasium as gym
from torch import nn

from rltrainer import seeding
from rltrainer.collect.async_rows import Rows, to_arrays
from rltrainer.collect.collector import Collector
from rltrainer.collect.shared_weights import Layout, SharedWeights, check_layout, layout_of
from rltrainer.collect.weight_sync import tensors_of
from rltrainer.data import RolloutBuffer
from rltrainer.data.storage import Extra
from rltrainer.envs import frame_skip
from rltrainer.errors import ParamsError, field_error_text
from rltrainer.nets import Exploration, Policy
from rltrainer.processes.program import Link
from rltrainer.types import Load, State

OWNER = "AsyncCollector"
HERE = os.path.realpath(__file__)


@dataclass(frozen=True, slots=True)
class ActingConfig:
    """Settings of the learner's collector, by which a worker acts and stores."""

    exploration: Exploration | None
    """Replaces the policy's own, which is `of_policy`."""
    of_policy: Exploration | None
    columns: Extra | None
    """Of the buffer; None where nothing is stored."""
    keeps_env_action: bool
    """Store the actions that the envs received, not those that were sampled."""


@dataclass(frozen=True, slots=True)
class Request:
    """A collection: so many rows of all envs, or so many episodes."""

    num_rows: int | None
    num_episodes: int | None
    random: bool
    explore: bool


class CollectingProgram:
    """Collects in the envs of one worker; the pulse counts their steps and resets.

    `make_envs`, pickled, makes the vector env; `seed` is that of all global generators of the process.
    """

    collector: Collector

    def __init__(self, link: Link, make_envs: bytes, number: int, seed: int) -> None:
        self._link, self._make_envs, self._number, self._seed = link, make_envs, number, seed
        self._envs: gym.vector.VectorEnv[Any, Any, Any] | None = None
        self._load: Load = lambda: None

    def close(self) -> None:
        """Close the envs; never raises."""
        if self._envs is not None:
            self.collector.close() if hasattr(self, "collector") else self._envs.close()

    def make(self) -> tuple[Any, ...]:
        """Make the envs; return their spaces, number and frame skip, and where this code comes from."""
        seeding.seed(self._seed)
        envs = self._link.load(self._make_envs)()
        if not isinstance(envs, gym.vector.VectorEnv):
            hint = "Pass functools.partial(rl.make_vec, env_id, num_envs=1)."
            raise ParamsError(field_error_text(OWNER, "make_envs", "must return a gymnasium VectorEnv", envs, hint))
        self._envs = envs
        spaces = envs.single_observation_space, envs.single_action_space
        return spaces, envs.num_envs, frame_skip(envs), HERE

    def begin(self, policy: bytes, layout: Layout, info_keys: Sequence[str]) -> None:
        """Make the collector, with a copy of the policy that takes its weights from the memory that comes with this."""
        self._weights = SharedWeights(layout, self._link.receive_file())
        assert self._envs is not None, "the first call makes the envs"
        self._policy: Policy = self._link.load(policy)
        self._policy.progress = lambda: self._progress
        self.collector = Collector(self._policy, _Pulsing(self._envs, self._link.pulse), info_keys=info_keys)
        self.collector.adapter.branch_seed("worker", self._number)

    def configure(self, config: ActingConfig, modules: Sequence[str]) -> None:
        """Explore and store as the learner's collector does; find the modules that weights come for."""
        collector = self.collector
        collector.exploration, self._policy.exploration = config.exploration, config.of_policy
        if config.columns is None:
            collector.buffer = collector.rollout_buffer = None
        elif collector.buffer is None or dict(collector.buffer.extra) != dict(config.columns):
            spaces = (self._policy.observation_space, self._policy.action_space)
            collector.attach_buffer(RolloutBuffer(16, collector.num_envs, *spaces, extra=config.columns))
        collector.keeps_env_action = config.keeps_env_action
        targets = tensors_of({name: self._module(name) for name in modules})
        check_layout(self._weights.layout, layout_of(targets), f"{OWNER}.modules")
        self._targets, self._serial = [tensor for _, tensor in targets], 0

    def collect(self, request: Request) -> tuple[Rows, int]:
        """Collect with the newest weights; return the rows, and how many envs were restarted so far."""
        collector, policy = self.collector, self._policy
        if self._weights.serial != self._serial:
            self._serial, policy.version, self._progress = self._weights.take(self._targets)
        num_steps = None if request.num_rows is None else request.num_rows * collector.num_envs
        stats = collector.collect(num_steps, request.num_episodes, request.random, request.explore)
        arrays = None if collector.buffer is None else to_arrays(collector.rollout())
        return Rows(arrays, stats, policy.version), collector.num_env_restarts

    def collect_random(self, num_rows: int) -> dict[str, Any]:
        """Collect random actions, which are not counted; see `Collector.collect_random`."""
        return to_arrays(self.collector.collect_random(num_rows))

    def reset(self, first_episode: bool) -> None:
        """Reset all envs."""
        self.collector.reset(first_episode=first_episode)

    def record_episodes(self, folder: str, first_env: int) -> None:
        """Record the episodes of the envs, whose indices begin with `first_env`."""
        self._writer = self.collector.adapter.record_episodes(folder, first_env)

    def write_episodes(self, is_last: bool) -> None:
        """Write what was recorded, and record no more if that was all."""
        self._writer.close() if is_last else self._writer.flush()

    def seed(self, seed: int) -> None:
        """Seed the collector."""
        self.collector.seed(seed)

    def state(self) -> State:
        """Return the collector's state."""
        return self.collector.state_dict()

    def check_state(self, state: State) -> list[str]:
        """Check a state, and keep what loads it; return the warnings."""
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            self._load = self.collector.prepare_load(state)
        return [str(each.message) for each in caught]

    def load_state(self) -> None:
        """Load the state that was checked."""
        self._load()

    def _module(self, path: str) -> nn.Module:
        """Return the module at an attribute's path from the collector."""
        try:
            module = operator.attrgetter(path)(self.collector)
        except AttributeError as error:
            raise ParamsError(f"{OWNER}.modules[{path!r}]: a worker's collector has none ({error})") from error
        if isinstance(module, nn.Module):
            return module
        raise ParamsError(field_error_text(OWNER, f"modules[{path!r}]", "must be a module in the workers too", module))


class _Pulsing(gym.vector.VectorWrapper):
    """Counts steps and resets where the parent sees them."""

    is_stateless = True

    def __init__(self, envs: gym.vector.VectorEnv[Any, Any, Any], pulse: Any) -> None:
        super().__init__(envs)
        self._pulse = pulse

    def step(self, actions: Any) -> Any:
        result = self.env.step(actions)
        self._pulse[0] += 1
        return result

    def reset(self, **options: Any) -> Any:
        result = self.env.reset(**options)
        self._pulse[0] += 1
        return result
