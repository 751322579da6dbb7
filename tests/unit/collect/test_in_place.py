"""Envs that change in place what they were lent: it changes nothing that is stored, repeated or lent to another env."""

import copy
from functools import partial
from pathlib import Path
from typing import Any

import gymnasium as gym
import numpy as np
import pytest
import torch

import rltrainer as rl
from rltrainer.errors import ParamsError
from rltrainer.tree import leaves
from tests.fakes import replay_of

MAKERS: dict[str, Any] = {
    "sync": lambda env: rl.make_vec(env, 2, backend="sync", seed=1),
    "gymnasium's sync": lambda env: gym.vector.SyncVectorEnv([env] * 2),
    "workers": lambda env: rl.make_vec(env, 2, backend="workers", num_workers=2, seed=1),
    "of tensors": lambda env: TensorEnvs(env()),
}


class Halving(gym.Env[Any, Any]):
    """Rewards half the action; its observation sums what it got. Ends after five steps."""

    observation_space = gym.spaces.Box(-np.inf, np.inf, (2,), np.float32)
    action_space = gym.spaces.Box(-np.inf, np.inf, (2,), np.float32)
    render_mode = "rgb_array"

    def __init__(self, in_place: bool) -> None:
        self.in_place = in_place
        self.obs = np.zeros(2, np.float32)
        self.frame = np.zeros((4, 4, 3), np.uint8)

    def reset(self, *, seed: int | None = None, options: Any = None) -> tuple[Any, dict[str, Any]]:
        self.obs[:], self.count = (options or {}).pop("first", 0.0), 0
        return self.obs if self.in_place else self.obs.copy(), {}

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        if self.in_place:
            action *= 0.5
        else:
            action = action * 0.5
        self.obs += action
        self.count += 1
        return self.obs if self.in_place else self.obs.copy(), float(action.sum()), False, self.count == 5, {}

    def render(self) -> Any:
        self.frame[:] = self.count
        return self.frame if self.in_place else self.frame.copy()


class TensorEnvs(gym.vector.VectorEnv[Any, Any, Any]):
    """Two of them as a native vector env of tensors."""

    def __init__(self, env: Halving) -> None:
        self.num_envs, self.in_place = 2, env.in_place
        self.single_observation_space, self.single_action_space = env.observation_space, env.action_space
        self.metadata = {"autoreset_mode": gym.vector.AutoresetMode.NEXT_STEP}

    def reset(self, *, seed: Any = None, options: Any = None) -> tuple[Any, dict[str, Any]]:
        self.obs = torch.zeros(2, 2)
        return self.obs.clone(), {}

    def step(self, actions: Any) -> tuple[Any, Any, Any, Any, dict[str, Any]]:
        actions = actions.mul_(0.5) if self.in_place else actions * 0.5
        self.obs = self.obs + actions
        none = torch.zeros(2, dtype=torch.bool)
        return self.obs.clone(), actions.sum(1), none, none, {}


def collector(envs: Any, replays: bool, cls: Any = rl.Collector) -> Any:
    rl.seed(3)
    policy = rl.ActorCritic.for_envs(envs, hidden_sizes=(4,))
    spaces = envs.single_observation_space, envs.single_action_space
    made = replay_of(envs, 100) if replays else rl.RolloutBuffer(
        8, 2, *spaces, extra={"log_prob": policy.columns["log_prob"]}
    )  # fmt: skip
    one = cls(policy, envs, made)
    one.seed(5)
    return one


def collected(one: Any, num_steps: int) -> list[Any]:
    one.collect(num_steps=num_steps)
    rollout = one.rollout()
    return [leaf.clone() for name in ("obs", "action", "reward", "extra") for leaf in leaves(getattr(rollout, name))]


BATCHED = partial(rl.BatchedCollector, inference=rl.InferenceParams(min_batch_size=2))


@pytest.mark.parametrize("replays", [False, True])
@pytest.mark.parametrize(
    ("make", "cls"), [*((name, rl.Collector) for name in MAKERS), ("workers", BATCHED)], ids=[*MAKERS, "batched"]
)
def test_the_chosen_action_is_stored(make: str, cls: Any, replays: bool) -> None:
    found, expected = (
        collected(collector(MAKERS[make](partial(Halving, in_place)), replays, cls), 16) for in_place in (True, False)
    )
    assert all(torch.equal(here, there) for here, there in zip(found, expected, strict=True))


@pytest.mark.parametrize("make", ["sync", "gymnasium's sync"])
def test_episodes_that_a_resume_has_repeated_can_be_repeated_again(make: str) -> None:
    """The actions that bring the envs back are also the record of their episodes."""
    first = collector(MAKERS[make](partial(Halving, True)), True)
    first.collect(num_steps=6)  # three steps into episodes of five
    state = first.state_dict()
    for _ in range(2):
        again = collector(MAKERS[make](partial(Halving, True)), True)
        again.load_state_dict(copy.deepcopy(state))
        again.collect(num_steps=2)
        state = again.state_dict()  # a warning, which is an error here, would say that an env did not come there


def test_a_replayed_episode_has_its_actions_observations_and_frames(tmp_path: Path) -> None:
    one = collector(MAKERS["sync"](partial(Halving, True)), True)
    recorder = one.record_episodes(tmp_path)
    one.collect(num_steps=10)
    recorder.close()
    steps = list(rl.replay_episode(tmp_path, 0, 0, partial(Halving, True)))
    for step in steps:
        np.testing.assert_allclose(step.next_obs - step.obs, 0.5 * step.action, atol=1e-6)
        assert np.isclose(step.reward, 0.5 * step.action.sum(), atol=1e-6)
    assert [int(step.frame[0, 0, 0]) for step in steps] == [1, 2, 3, 4, 5]


def test_options_of_a_reset_are_each_envs_own() -> None:
    options = {"first": 3.0}
    obs, _ = rl.make_vec(partial(Halving, False), 2, backend="sync").reset(options=options)
    assert (obs[:, 0].tolist(), options) == ([3.0, 3.0], {"first": 3.0})


class Shifting(rl.ActorCritic):
    """Shifts observations in place before it decides."""

    def decide(self, obs: Any, *args: Any, **options: Any) -> Any:
        obs.add_(1.0)
        return super().decide(obs, *args, **options)


@pytest.mark.parametrize("make", ["sync", "gymnasium's sync"])
def test_a_policy_that_changes_its_observations_is_named(make: str) -> None:
    envs = MAKERS[make](partial(Halving, False))
    policy = Shifting.for_envs(envs, hidden_sizes=(4,))
    buffer = replay_of(envs, 10)
    one = rl.Collector(policy, envs, buffer)
    for _ in range(2):
        with pytest.raises(ParamsError) as caught:
            one.collect(num_steps=2)
    assert str(caught.value) == (
        "Shifting.decide: must leave the observations that it is given as they are, which it, its encoder or its "
        "exploration changed in place; nothing of this collection was stored. Copy first: obs = obs.clone()."
    )
    assert len(buffer) == 0
    one.collect(num_steps=2, random=True)
    assert len(buffer) == 2
