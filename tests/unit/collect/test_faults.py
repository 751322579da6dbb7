"""Faults in a collection are named by env and step, whoever stores it: the first thing that was wrong."""

from functools import partial
from typing import Any

import gymnasium as gym
import numpy as np
import pytest
import torch

import rltrainer as rl
from rltrainer.collect.faults import check_rollout
from rltrainer.errors import NonFiniteError, SpaceError
from rltrainer.spaces import ValueRange
from tests.fakes import OBS_SPACE, CountingEnv, replay_of, rollouts_of, tiny_actor_critic
from tests.unit.envs.scripted import SEED, ScriptedVectorEnv, TensorVectorEnv

BOX = gym.spaces.Box(-1.0, 1.0, (1,), np.float32)
STORED = "; nothing of this collection was stored"


class Faulty(CountingEnv):
    """Returns one bad number: what a reset (`reset`) or its n-th step returns, counted over all episodes."""

    def __init__(self, what: str = "", when: int = -1, **options: Any) -> None:
        super().__init__(**options)
        self.what, self.when, self.taken, self.is_over = what, when, 0, False

    def reset(self, *, seed: int | None = None, options: Any = None) -> Any:
        obs, info = super().reset(seed=seed)
        return self._spoil(obs) if self.what == "reset" and self.taken == self.when else obs, info

    def step(self, action: Any) -> Any:
        self.taken += 1
        obs, reward, *rest = super().step(action)
        if self.taken == self.when:
            obs = self._spoil(obs) if self.what == "obs" else obs
            reward = float("nan") if self.what == "reward" else reward
        return obs, reward, *rest

    def _spoil(self, obs: Any) -> Any:
        return np.array([obs[0], np.nan], np.float32)


def faulty_envs(faulty: Faulty, num_envs: int = 2, **options: Any) -> Any:
    """Return envs of which the last one is faulty."""
    makers = iter([*[lambda: CountingEnv(**options)] * (num_envs - 1), lambda: faulty])
    return rl.make_vec(lambda: next(makers)(), num_envs, backend="sync", seed=1)


def collector(envs: Any, stores: str, policy: Any = None) -> rl.Collector:
    buffers = {"nothing": lambda envs: None, "rollouts": rollouts_of, "replay": partial(replay_of, capacity=60)}
    return rl.Collector(policy or tiny_actor_critic(envs), envs, buffers[stores](envs))


def collect_often(one: rl.Collector, num_steps: int) -> None:
    for _ in range(12):
        one.collect(num_steps=num_steps)


POLICIES: dict[str, tuple[type[Any], Any]] = {
    "actor_critic": (rl.ActorCritic, gym.spaces.Discrete(2)),
    "gaussian": (rl.ActorCritic, BOX),
    "q": (rl.QNetwork, gym.spaces.Discrete(2)),
    "deterministic": (rl.DeterministicActorCritic, BOX),
    "squashed": (rl.SquashedActorCritic, BOX),
    "gaussian_iql": (rl.GaussianActorCritic, BOX),
    "bc": (rl.Actor, BOX),
}


@pytest.mark.parametrize("stores", ["nothing", "rollouts", "replay"])
@pytest.mark.parametrize("kind", POLICIES)
def test_a_bad_observation_is_blamed_and_not_the_action_chosen_for_it(kind: str, stores: str) -> None:
    policy_class, action_space = POLICIES[kind]
    envs = faulty_envs(Faulty("obs", 3, length=9, action_space=action_space), length=9, action_space=action_space)
    one = collector(envs, stores, policy_class.for_envs(envs, hidden_sizes=(4,)))
    hint = "" if stores == "nothing" else STORED
    with pytest.raises(NonFiniteError, match=f"^env 1, step 3: obs = nan{hint}$"):
        one.collect(num_steps=12)
    envs.envs[1].when = 10
    with pytest.raises(NonFiniteError, match=f"^env 1, step 10: obs = nan{hint}$"):
        one.collect(num_episodes=2)
    assert one.buffer is None or stores == "rollouts" or len(one.buffer) == 0
    envs.envs[1].when = -1
    one.collect(num_steps=12)
    assert one.buffer is None or len(one.buffer) == 12


@pytest.mark.parametrize("stores", ["nothing", "rollouts", "replay"])
@pytest.mark.parametrize("num_steps", [1, 12])
@pytest.mark.parametrize("what", ["obs", "reward"])
@pytest.mark.parametrize("when", [1, 2, 3, 5, 6])
def test_a_fault_is_located_wherever_it_lies(stores: str, num_steps: int, what: str, when: int) -> None:
    # Episodes of three steps: the third and the sixth step's observation is a final one, and ends an episode.
    one = collector(faulty_envs(Faulty(what, when, length=3), length=50), stores)
    hint = "" if stores == "nothing" else STORED
    with pytest.raises(NonFiniteError, match=f"^env 1, step {when}: {what} = nan{hint}$"):
        collect_often(one, num_steps)
    assert one.num_rows >= when


def test_the_leaf_of_a_tree_is_named() -> None:
    class Parts(Faulty):
        def __init__(self) -> None:
            super().__init__("obs", 2, length=9)
            self.observation_space = gym.spaces.Dict({"vec": OBS_SPACE, "pair": gym.spaces.Tuple([OBS_SPACE])})

        def _obs(self) -> Any:
            obs = super()._obs()
            bad = np.array([np.inf, 0], np.float32) if self.taken == 2 else obs
            return {"vec": obs, "pair": (bad,)}

        def _spoil(self, obs: Any) -> Any:
            return obs

    for stores in ("nothing", "rollouts", "replay"):
        envs = rl.make_vec(Parts, 1, backend="sync")
        with pytest.raises(NonFiniteError, match=r'^env 0, step 2: obs\["pair"\]\[0\] = inf'):
            collector(envs, stores).collect(num_steps=5)


@pytest.mark.parametrize("stores", ["nothing", "rollouts", "replay"])
def test_what_lies_past_a_quota_is_not_looked_at(stores: str) -> None:
    # Env 1 has ended its only episode after 3 steps; env 0 goes on to its ninth.
    for what in ("obs", "reward", "reset"):
        one = collector(faulty_envs(Faulty(what, 6, length=3), length=9), stores)
        assert one.collect(num_episodes=2).lengths.tolist() == [3, 9]


@pytest.mark.parametrize("stores", ["nothing", "rollouts", "replay"])
def test_a_policy_that_fails_because_of_an_env_that_nobody_counts(stores: str) -> None:
    envs = faulty_envs(Faulty("obs", 2, length=3), length=9)
    one = collector(envs, stores, rl.QNetwork.for_envs(envs, hidden_sizes=(4,)))
    with pytest.raises(NonFiniteError, match="^env 1, step 2: obs = nan$"):
        one.collect(num_episodes=1, explore=False)


@pytest.mark.parametrize("stores", ["nothing", "rollouts", "replay"])
def test_an_env_that_fails_because_of_a_bad_observation(stores: str) -> None:
    class Strict(Faulty):
        def step(self, action: Any) -> Any:
            if not np.isfinite(action).all():
                raise ValueError("what an action")
            return super().step(action)

    envs = faulty_envs(Strict("obs", 2, length=9, action_space=BOX), length=9, action_space=BOX)
    one = collector(envs, stores, rl.DeterministicActorCritic.for_envs(envs, hidden_sizes=(4,)))
    with pytest.raises(NonFiniteError, match="^env 1, step 2: obs = nan"):
        one.collect(num_steps=12)
    envs.envs[1].what, envs.envs[1].length = "reset", 4
    envs.envs[1].when = envs.envs[1].taken
    with pytest.raises(NonFiniteError, match=r"^env 1, reset after \d steps: obs = nan"):
        one.collect(num_steps=12)


def test_what_an_env_raises_for_other_reasons_is_passed_on_with_its_step() -> None:
    class Broken(CountingEnv):
        def step(self, action: Any) -> Any:
            if self.step_count == 6:
                raise KeyError("mine")
            return super().step(action)

    for stores in ("nothing", "rollouts", "replay"):
        one = collector(rl.make_vec(lambda: Broken(length=50), 1, backend="sync"), stores)
        one.collect(num_steps=4)
        with pytest.raises(rl.errors.EnvError, match="env 0 failed during step 7.*KeyError"):
            one.collect(num_steps=4)
        assert one.num_rows == 7


def small_rollout(**changes: Any) -> rl.Rollout:
    """Return three steps of two envs; env 1 ends an episode with the first one. `changes` name cells to be NaN."""
    none = torch.zeros(3, 2, dtype=torch.bool)
    rollout = rl.Rollout(
        obs=torch.zeros(3, 2, 2), action=torch.zeros(3, 2, 1), reward=torch.zeros(3, 2),
        terminated=torch.tensor([[False, True], [False, False], [False, False]]), truncated=none, valid=~none,
        last_obs=torch.zeros(2, 2), final_obs=torch.zeros(1, 2), final_index=torch.tensor([1]), starts=none[0],
    )  # fmt: skip
    for name, index in changes.items():
        getattr(rollout, name)[index] = False if name == "valid" else torch.nan
    return rollout


@pytest.mark.parametrize(("changes", "text"), [
    ({"obs": (0, 0, 1)}, "env 0, reset after 10 steps: obs"),
    ({"obs": (1, 0, 0)}, "env 0, step 11: obs"),
    ({"obs": (1, 1, 0)}, "env 1, reset after 11 steps: obs"),
    ({"action": (1, 0, 0)}, "env 0, step 12: action"),
    ({"reward": (2, 1)}, "env 1, step 13: reward"),
    ({"last_obs": (1, 0)}, "env 1, step 13: obs"),
    ({"final_obs": (0, 0)}, "env 1, step 11: obs"),
    # The first in time, and what was acted on before the action, the action before the reward.
    ({"obs": (2, 0), "reward": (1, 1)}, "env 1, step 12: reward"),
    ({"obs": (2, 1), "reward": (1, 0), "action": (0, 0)}, "env 0, step 11: action"),
    ({"obs": (1, 1), "action": (1, 0), "reward": (1, 0)}, "env 1, reset after 11 steps: obs"),
    ({"action": (1, 1), "reward": (1, 0)}, "env 1, step 12: action"),
    # A cell that is not valid: its observation follows a valid one in env 0, and nothing in env 1.
    ({"valid": (1, 0), "obs": (1, 0)}, "env 0, step 11: obs"),
    ({"valid": (1, 1), "obs": (1, 1)}, None),
    ({"valid": (2, 0), "last_obs": 0}, None),
    ({"valid": (0, 1), "final_obs": 0}, None),
    ({"valid": (1, 0), "action": (1, 0), "reward": (1, 0)}, None),
])  # fmt: skip
def test_the_first_fault_of_a_rollout(changes: Any, text: str | None) -> None:
    rollout, actions = small_rollout(**changes), ValueRange(BOX)
    if text is None:
        check_rollout(rollout, 10, actions, "")
        return
    with pytest.raises(NonFiniteError, match=f"^{text} = nan; a hint$"):
        check_rollout(rollout, 10, actions, "; a hint")


class BlindPolicy(rl.ActorCritic):
    """Chooses action 0 whatever it sees, so that a bad observation makes no policy fail."""

    def decide(self, obs: Any, state: Any, mask: Any, explore: bool, generator: Any) -> rl.Decision:
        return rl.Decision(torch.zeros(len(obs), dtype=torch.int64), extra={"log_prob": torch.zeros(len(obs))})


class Unknown(gym.vector.VectorWrapper):
    """Hides the class of its envs, so that they are reset as another library's: by themselves."""

    @property
    def unwrapped(self) -> Any:
        return self


@pytest.mark.parametrize("mode", ["NEXT_STEP", "SAME_STEP", "DISABLED"])
@pytest.mark.parametrize("hides", [False, True])
@pytest.mark.parametrize("stores", ["nothing", "rollouts", "replay"])
@pytest.mark.parametrize("what", ["obs", "reward", "reset"])
@pytest.mark.parametrize("amount", [{"num_steps": 12}, {"num_episodes": 4}])
def test_in_every_autoreset_mode(amount: Any, mode: str, hides: bool, stores: str, what: str) -> None:
    makers = [lambda: CountingEnv(length=50), lambda: Faulty(what, 3, length=3)]
    envs: Any = gym.vector.SyncVectorEnv(makers, autoreset_mode=gym.vector.AutoresetMode[mode])
    envs = Unknown(envs) if hides else envs
    one = collector(envs, stores, BlindPolicy.for_envs(envs, hidden_sizes=(4,)))
    with pytest.raises(NonFiniteError, match="^env 1, .*(obs|reward) = nan"):
        one.collect(**amount)


class FixedPolicy(rl.ActorCritic):
    """Chooses what a test says, once the envs have stepped twice."""

    action: Any = None

    def decide(self, obs: Any, state: Any, mask: Any, explore: bool, generator: Any) -> rl.Decision:
        space: Any = self.action_space
        good = torch.zeros(len(obs), *space.shape, dtype=torch.float32 if hasattr(space, "low") else torch.int64)
        good = good + torch.as_tensor(getattr(space, "start", 0), dtype=good.dtype)
        return rl.Decision(self.action(good) if bool((obs[:, 1] == 2).all()) else good)


def put(value: Any) -> Any:
    """Return a function that gives the last env this action."""

    def change(good: torch.Tensor) -> torch.Tensor:
        good[-1] = torch.tensor(value)
        return good

    return change


@pytest.mark.parametrize("stores", ["nothing", "rollouts", "replay"])
@pytest.mark.parametrize("num_steps", [2, 8])
@pytest.mark.parametrize(("space", "action", "error", "text"), [
    (gym.spaces.Discrete(3), put(5), SpaceError, r"env 1, step 3: action = 5, which must lie in Discrete\(3\)"),
    (gym.spaces.Discrete(3), put(-1), SpaceError, "env 1, step 3: action = -1, which must lie in"),
    (gym.spaces.Discrete(3, start=4), put(3), SpaceError, "env 1, step 3: action = 3, which must lie in"),
    (gym.spaces.MultiDiscrete([2, 3]), put([0, 3]), SpaceError, r"env 1, step 3: action = \[0, 3\], which must"),
    (gym.spaces.MultiBinary(2), put([0, 2]), SpaceError, r"env 1, step 3: action = \[0, 2\], which must lie in"),
    (BOX, put([float("nan")]), NonFiniteError, "env 1, step 3: action = nan"),
    (gym.spaces.Box(-np.inf, np.inf, (1,)), put([float("inf")]), NonFiniteError, "env 1, step 3: action = inf"),
    (gym.spaces.Box(-2, 2, (1,), np.int32), lambda x: x * np.nan, NonFiniteError, r"env 0: .* chose \[nan\]"),
    (gym.spaces.Discrete(3), lambda x: x.float(), SpaceError, r"a tensor int64 \(2,\), got a tensor float32"),
    (gym.spaces.Discrete(3), lambda x: x[:, None], SpaceError, r"a tensor int64 \(2,\), got .*2, 1"),
    (gym.spaces.Discrete(3), lambda x: x[:1], SpaceError, r"a tensor int64 \(2,\), got .*\(1,\)"),
    (gym.spaces.Discrete(3), lambda x: x.numpy(), SpaceError, r"a tensor int64 \(2,\), got int64 \(2,\)"),
    (gym.spaces.Discrete(3), lambda x: None, SpaceError, r"a tensor int64 \(2,\), got NoneType None"),
    (BOX, lambda x: x[:, 0], SpaceError, r"a tensor float32 \(2, 1\), got a tensor float32 \(2,\)"),
])  # fmt: skip
def test_what_a_policy_must_not_choose(
    stores: str, num_steps: int, space: Any, action: Any, error: type[Exception], text: str
) -> None:
    envs: Any = rl.make_vec(lambda: CountingEnv(length=50, action_space=space), 2, backend="sync", seed=1)
    discrete = rl.make_vec(CountingEnv, 2, backend="sync")
    policy = FixedPolicy.for_envs(discrete, hidden_sizes=(4,))
    policy.action, policy.action_space = action, space
    one = collector(envs, stores, policy)
    with pytest.raises(error, match=text):
        collect_often(one, num_steps)
    if stores == "replay":
        assert len(one.buffer) == (4 if num_steps == 2 else 0)  # type: ignore[arg-type]  # a buffer


@pytest.mark.parametrize("dtype", [np.int8, np.int32, np.int64])
@pytest.mark.parametrize("stores", ["nothing", "rollouts", "replay"])
def test_integer_boxes_store_what_the_env_received(dtype: Any, stores: str) -> None:
    space = gym.spaces.Box(-2, 2, (1,), dtype)
    envs: Any = rl.make_vec(lambda: CountingEnv(length=50, action_space=space), 2, backend="sync", seed=1)
    policy = FixedPolicy.for_envs(rl.make_vec(CountingEnv, 2, backend="sync"), hidden_sizes=(4,))
    policy.action, policy.action_space = lambda good: good + torch.tensor([[1.7], [9.0]]), space
    one = collector(envs, stores, policy)
    one.collect(num_steps=6)
    if stores != "nothing":
        assert one.rollout().action.flatten().tolist() == [0, 0, 0, 0, 1, 2]


def test_bounds_of_observations_are_not_looked_at() -> None:
    wide = gym.spaces.Box(-np.inf, np.inf, (2,), np.float64)
    envs: Any = rl.make_vec(CountingEnv, 2, backend="sync")
    policy = rl.ActorCritic.for_spaces(wide, envs.single_action_space)
    rl.Collector(policy, envs, rl.ReplayBuffer(10, wide, envs.single_action_space, num_envs=2)).collect(num_steps=4)


@pytest.mark.parametrize("stores", ["nothing", "rollouts", "replay"])
@pytest.mark.parametrize("mode", list(gym.vector.AutoresetMode))
def test_envs_of_tensors(mode: Any, stores: str, monkeypatch: pytest.MonkeyPatch) -> None:
    envs: Any = TensorVectorEnv(ScriptedVectorEnv(3, mode))
    one = collector(envs, stores)
    one.adapter.seed(SEED)
    stats = one.collect(num_steps=30)
    if stores == "replay":
        assert len(one.buffer) == stats.num_collected_steps  # type: ignore[arg-type]  # a buffer
    step = envs.step

    def bad_step(action: Any) -> Any:
        obs, *rest = step(action)
        obs = obs.clone()
        obs[1, 0] = torch.nan
        return obs, *rest

    monkeypatch.setattr(envs, "step", bad_step)
    with pytest.raises(NonFiniteError, match=r"^env 1, (step|reset after) 1[12].*: obs = nan"):
        one.collect(num_steps=9)
