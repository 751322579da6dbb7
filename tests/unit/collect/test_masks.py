"""Collectors take allowed actions only, and name the env that allows none."""

from typing import Any

import gymnasium as gym
import numpy as np
import pytest
from gymnasium import spaces
from gymnasium.vector import AutoresetMode

import rltrainer as rl
from rltrainer.errors import EnvError
from tests.fakes import CountingEnv
from tests.unit.collect.test_faults import collector as collector_of

STORED = "; nothing of this collection was stored"


class Strict(CountingEnv):
    """Allows one choice in each state, another one at each step; raises at others. Final observations allow none.

    Args:
        stuck: step at which it allows none though the episode goes on.
    """

    def __init__(self, stuck: int | None = None, length: int = 3, **options: Any) -> None:
        super().__init__(length=length, action_space=spaces.Discrete(4), **options)
        self.observation_space = spaces.Dict(action_mask=spaces.MultiBinary(4), counts=self.observation_space)
        self.stuck = stuck

    def step(self, action: Any) -> Any:
        assert action == self.step_count % 4, f"{action} is not allowed at step {self.step_count}"
        return super().step(action)

    def _obs(self) -> Any:
        mask = np.arange(4) == self.step_count % 4
        if self.step_count in (self.length, self.stuck):
            mask[:] = False
        return {"action_mask": mask.astype(np.int8), "counts": super()._obs()}


class Foreign(gym.vector.VectorEnv[Any, Any, Any]):
    """A vector env that cannot reset single envs: another one's, hidden."""

    def __init__(self, envs: Any) -> None:
        self.inner = envs
        self.num_envs, self.metadata = envs.num_envs, envs.metadata
        self.single_observation_space = envs.single_observation_space
        self.single_action_space = envs.single_action_space

    def reset(self, *, seed: Any = None, options: Any = None) -> Any:
        return self.inner.reset(seed=seed, options=options)

    def step(self, actions: Any) -> Any:
        return self.inner.step(actions)


def envs_in(mode: AutoresetMode | str, num_envs: int = 2, **options: Any) -> Any:
    makers = [lambda i=i: Strict(length=3 + i, **options) for i in range(num_envs)]
    if mode == "ours":
        rest = iter(makers)
        return rl.make_vec(lambda: next(rest)(), num_envs, backend="sync")
    inner: Any = gym.vector.SyncVectorEnv(makers, autoreset_mode=mode, copy=True)
    return Foreign(inner) if mode is AutoresetMode.NEXT_STEP else inner


def collector(envs: Any, stores: str = "nothing", cls: Any = rl.ActorCritic) -> Any:
    return collector_of(envs, stores, cls.for_envs(envs, hidden_sizes=(8,), normalize_obs=True))


@pytest.mark.parametrize("stores", ["nothing", "rollouts", "replay"])
@pytest.mark.parametrize("mode", [*AutoresetMode, "ours"])
@pytest.mark.parametrize("how", ["explore", "greedy", "random", "epsilon"])
def test_only_allowed_actions_reach_the_envs(stores: str, mode: Any, how: str) -> None:
    one = collector(envs_in(mode), stores, rl.QNetwork if how == "epsilon" else rl.ActorCritic)
    one.policy.exploration = rl.EpsilonGreedy(0.8) if how == "epsilon" else None
    for counts in ({"num_steps": 60}, {"num_episodes": 5}):
        stats = one.collect(**counts, random=how == "random", explore=how != "greedy")
        assert stats.num_collected_episodes >= 5
    rollout = one.collect_random(20)
    allowed = rollout.obs["action_mask"].gather(2, rollout.action.unsqueeze(2)).squeeze(2).bool()
    assert allowed[rollout.valid].all()


def test_masks_of_successors_are_stored() -> None:
    one = collector(envs_in("ours"), "replay", rl.QNetwork)
    one.collect(num_steps=60)
    batch = one.buffer.sample(200)
    ended = batch.terminated
    assert not batch.next_obs["action_mask"][ended].any()
    assert ended.any()
    steps = batch.next_obs["counts"][~ended][:, 1].long()
    assert batch.next_obs["action_mask"][~ended].argmax(1).tolist() == (steps % 4).tolist()


@pytest.mark.parametrize("stores", ["nothing", "rollouts", "replay"])
@pytest.mark.parametrize("mode", [*AutoresetMode, "ours"])
@pytest.mark.parametrize("random", [False, True])
def test_an_env_that_allows_nothing_is_named(stores: str, mode: Any, random: bool) -> None:
    one = collector(envs_in(mode, stuck=None), stores)
    one.collect(num_steps=12, random=random)
    stuck: Any = one.envs.inner.envs[1] if isinstance(one.envs, Foreign) else one.envs.envs[1]
    one.reset()
    stuck.stuck = 2
    # Six steps before, two more in this episode: the ninth cannot be chosen.
    text = rf'^env 1, step 9: obs\["action_mask"\] allows no action. An episode must end where nothing .*{STORED}.$'
    with pytest.raises(EnvError, match=text):
        one.collect(num_steps=40, random=random)
    if stores == "replay":
        assert len(one.buffer) <= 12, "nothing of that collection"


class TwoNumbers(CountingEnv):
    """Two choices of two and three; from the third observation on, the second number has none left."""

    def __init__(self) -> None:
        super().__init__(length=5, action_space=spaces.MultiDiscrete([2, 3]))
        self.observation_space = spaces.Dict(action_mask=spaces.MultiBinary(5), counts=self.observation_space)

    def _obs(self) -> Any:
        flags = [1, 1, 0, 0, 0] if self.step_count == 2 else [1, 0, 0, 1, 0]
        return {"action_mask": np.array(flags, np.int8), "counts": super()._obs()}


def test_one_number_of_an_action_without_a_choice_is_enough() -> None:
    one = collector(rl.make_vec(TwoNumbers, 1, backend="sync"))
    with pytest.raises(EnvError, match=r'^env 0, step 3: obs\["action_mask"\] allows no action'):
        one.collect(num_steps=4)


def test_an_env_past_its_quota_may_allow_nothing() -> None:
    one = collector(envs_in("ours"))
    # Env 0 has two episodes, env 1 one of four steps, after which it stands at an observation that allows nothing.
    assert one.collect(num_episodes=3).num_collected_episodes == 3
