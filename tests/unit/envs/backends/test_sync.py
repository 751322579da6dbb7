"""Our in-process vector env: gymnasium's interface, and errors that name the env."""

import functools
import logging
import re
from typing import Any

import gymnasium as gym
import numpy as np
import pytest
from gymnasium.spaces import Box, Dict, Discrete, MultiBinary, MultiDiscrete, Tuple
from gymnasium.vector import AutoresetMode

from rltrainer.envs import EnvAdapter
from rltrainer.envs.backends.sync import SyncVectorEnv
from rltrainer.errors import EnvError, ParamsError, SpaceError
from rltrainer.seeding import derive_seed

ZEROS = np.zeros(2, np.int64)


class FakeEnv(gym.Env[Any, Any]):
    """Returns what it is told to.

    Args:
        obs: the observation; an exception is raised instead, by `reset`.
        outcome: what follows it at a step; an exception is raised instead.
        fails_at: the step at which `outcome` takes effect.
    """

    def __init__(
        self, obs: Any = None, outcome: Any = None, space: Any = None, fails_at: int = 1, num_actions: int = 2
    ) -> None:
        self.observation_space = space or Box(-1, 1, (3,), np.float32)
        self.action_space = Discrete(num_actions)
        self.obs = np.zeros(3, np.float32) if obs is None else obs
        self.outcome, self.fails_at = outcome, fails_at
        self.seeds: list[Any] = []
        self.options: list[Any] = []
        self.step_count, self.is_closed = 0, False

    def reset(self, *, seed: int | None = None, options: Any = None) -> Any:
        if isinstance(self.obs, BaseException):
            raise self.obs
        self.seeds.append(seed)
        self.options.append(options)
        return self.obs, {}

    def step(self, action: Any) -> Any:
        self.step_count += 1
        if self.outcome is None or self.step_count < self.fails_at:
            return self.obs, 0.0, False, False, {}
        if isinstance(self.outcome, BaseException):
            raise self.outcome
        return self.obs, *self.outcome

    def close(self) -> None:
        self.is_closed = True


def with_fake(fake: FakeEnv, index: int = 1) -> SyncVectorEnv:
    """Two envs, one of them a fake, the other well-behaved."""
    envs = [FakeEnv(space=fake.observation_space), FakeEnv(space=fake.observation_space)]
    for env in envs:
        env.obs = fake.observation_space.sample()
    envs[index] = fake
    return SyncVectorEnv([lambda env=env: env for env in envs])  # type: ignore[misc]  # the default binds env


def test_it_agrees_with_gymnasiums() -> None:
    ours = SyncVectorEnv([lambda: gym.make("Pendulum-v1", max_episode_steps=4)] * 3)
    theirs = gym.vector.SyncVectorEnv(
        [lambda: gym.make("Pendulum-v1", max_episode_steps=4)] * 3, autoreset_mode=AutoresetMode.DISABLED
    )
    rng = np.random.default_rng(0)
    for seed, options in ((3, None), ([4, 5, 6], None), ([7, None, 9], {"reset_mask": np.array([True, False, True])})):
        results = [envs.reset(seed=seed, options=dict(options) if options else None) for envs in (ours, theirs)]  # type: ignore[arg-type]  # gymnasium's base class declares int
        np.testing.assert_array_equal(results[0][0], results[1][0])
        for _ in range(1 if options else 2):
            actions = rng.uniform(-2, 2, (3, 1)).astype(np.float32)
            for a, b in zip(ours.step(actions)[:4], theirs.step(actions)[:4], strict=True):
                np.testing.assert_array_equal(a, b)
                assert a.dtype == b.dtype


INFOS: list[dict[str, Any]] = [
    {}, {"x": 3, "f": 0.5, "b": True, "n": np.float32(2), "t": "text", "v": np.ones(2), "d": {"y": {"z": 1}, "s": "a"}},
    {"x": 4, "d": {"s": "b", "more": np.int8(1)}, "none": None, "final_obs": np.ones(3)},
    {"v": np.zeros(2), "flag": np.True_, "final_obs": 2},
]  # fmt: skip


@pytest.mark.parametrize("order", [[0, 1, 2, 3], [3, 2, 1, 0], [1, 0, 0, 2], [0, 0, 0, 0]])
def test_infos_are_gathered_as_gymnasium_does(order: list[int]) -> None:
    def make(number: int) -> Any:
        return lambda: FakeEnv(outcome=(1.0, False, False, INFOS[number]))

    results = []
    for cls in (SyncVectorEnv, gym.vector.SyncVectorEnv):
        envs: Any = cls([make(number) for number in order])
        envs.reset()
        results.append(envs.step(np.zeros(4, np.int64))[-1])
    ours, theirs = results
    assert str(ours) == str(theirs)
    dtypes = [[str(each.dtype) for each in infos.values() if isinstance(each, np.ndarray)] for infos in results]
    assert dtypes[0] == dtypes[1]


def test_composite_and_image_observations() -> None:
    space = Dict({"cam": Box(0, 255, (4, 4, 3), np.uint8), "rest": Tuple([Discrete(5), MultiBinary(2)])})
    envs = with_fake(FakeEnv({"cam": np.full((4, 4, 3), 7, np.uint8), "rest": (4, np.ones(2, bool))}, space=space))
    obs, _ = envs.reset()
    assert obs["cam"].shape == (2, 4, 4, 3)
    assert (obs["cam"].dtype, obs["rest"][0].dtype, obs["rest"][1].dtype) == (np.uint8, np.int64, np.int8)
    assert (obs["cam"][1] == 7).all()
    assert obs["rest"][0][1] == 4
    assert obs["rest"][1][1].tolist() == [1, 1]


def test_composite_actions_are_split() -> None:
    class Echo(FakeEnv):
        def __init__(self) -> None:
            super().__init__()
            self.action_space = Dict({"a": Discrete(9), "b": Box(-1, 1, (2,), np.float32)})

        def step(self, action: Any) -> Any:
            return self.obs, action["a"] + action["b"].sum(), False, False, {}

    envs = SyncVectorEnv([Echo] * 2)
    envs.reset()
    rewards = envs.step({"a": np.array([1, 2]), "b": np.array([[0.5, 0.5], [0.25, 0.0]], np.float32)})[1]
    assert rewards.tolist() == [2.0, 2.25]


def test_one_reward_per_agent() -> None:
    fakes = [FakeEnv(outcome=(np.array([i, 2.0]), False, False, {})) for i in range(2)]
    envs = SyncVectorEnv([lambda: fakes[0], lambda: fakes[1]])
    adapter = EnvAdapter(envs)
    adapter.reset()
    reward = adapter.step(ZEROS).reward
    assert (reward.dtype, reward.tolist()) == (np.float32, [[0.0, 2.0], [1.0, 2.0]])


def test_seeds_and_options_reach_the_envs() -> None:
    fakes = [FakeEnv(), FakeEnv()]
    envs = SyncVectorEnv([lambda: fakes[0], lambda: fakes[1]], seed=5)
    options = {"reset_mask": np.array([False, True]), "level": 3}
    envs.reset()
    envs.reset()
    envs.reset(seed=8)
    envs.reset(seed=[1, 2], options=options)
    assert fakes[0].seeds == [derive_seed(5, 0, 0), None, 8]
    assert fakes[1].seeds == [derive_seed(5, 1, 0), None, 9, 2]
    assert fakes[1].options == [None, None, None, {"level": 3}]
    assert set(options) == {"reset_mask", "level"}


@pytest.mark.parametrize("flags", [(True, False), (False, True)])
def test_stepping_a_finished_env(flags: tuple[bool, bool]) -> None:
    envs = with_fake(FakeEnv(outcome=(1.0, *flags, {})))
    envs.reset()
    envs.step(ZEROS)
    with pytest.raises(EnvError, match='env 1 must be reset before it is stepped; options={"reset_mask": mask} resets'):
        envs.step(ZEROS)
    envs.reset(options={"reset_mask": np.array([False, True])})
    envs.step(ZEROS)


BOX = "Box(-1.0, 1.0, ({},), float32)".format
MASK_RULE = 'reset.options["reset_mask"]: must be a bool array of shape (2,) with at least one True; got'


@pytest.mark.parametrize(("options", "text"), [
    *(({"options": {"reset_mask": mask}}, MASK_RULE) for mask in (
        np.array([1, 0]), np.array([True]), np.array([False, False]), [True, False]
    )),
    ({"seed": [1]}, "reset.seed: must hold one seed per env (2); got [1]"),
])  # fmt: skip
def test_arguments_of_reset(options: Any, text: str) -> None:
    with pytest.raises(ParamsError, match=re.escape(f"SyncVectorEnv.{text}")):
        with_fake(FakeEnv()).reset(**options)


# Failures


def fail() -> Any:
    raise ValueError("no licence")


SAME = FakeEnv()
DEEP = functools.reduce(lambda info, _: {"deeper": info}, range(5000), {"last": 1})
Mute = type("Mute", (Exception,), {"__str__": lambda self: self.text})


@pytest.mark.parametrize(("second", "error", "text"), [
    (fail, EnvError, "env 1: the factory raised ValueError: no licence"),
    (lambda: None, EnvError, "env 1: the factory must return a gymnasium.Env, got NoneType None"),
    (lambda: SAME, EnvError, "env 1: the factory returned the same object as for env 0"),
    (lambda: FakeEnv(space=Box(-1, 1, (4,), np.float32)), SpaceError,
     f"env 1 observation_space: expected {BOX(3)}, as env 0 has, got {BOX(4)}"),
    (lambda: FakeEnv(num_actions=3), SpaceError,
     "env 1 action_space: expected Discrete(2), as env 0 has, got Discrete(3)"),
])  # fmt: skip
def test_a_factory_that_fails_is_named_and_the_others_closed(second: Any, error: type[Exception], text: str) -> None:
    SAME.is_closed = False
    with pytest.raises(error, match="^" + re.escape(text)) as caught:
        SyncVectorEnv([lambda: SAME, second])
    assert isinstance(caught.value.__cause__, ValueError) == (second is fail)
    assert SAME.is_closed


@pytest.mark.parametrize(("fake", "num_steps", "cause", "text"), [
    (FakeEnv(KeyError("track")), None, KeyError, "env 1 failed during reset after 0 steps: KeyError: 'track'"),
    (FakeEnv(outcome=ZeroDivisionError("mass"), fails_at=3), 3, ZeroDivisionError,
     "env 1 failed during step 3: ZeroDivisionError: mass"),
    (FakeEnv(outcome=(1.0, False, {})), 1, ValueError,
     "env 1 failed during step 1: ValueError: not enough values to unpack"),
    (FakeEnv(outcome=Mute()), 1, Mute, "env 1 failed during step 1: Mute: (the exception's __str__ failed)"),
    (FakeEnv(SystemExit(0)), None, SystemExit, "env 1 failed during reset after 0 steps: SystemExit: 0"),
    (FakeEnv(), 0, None, "env 0 must be reset before it is stepped"),
])  # fmt: skip
def test_an_exception_is_named(fake: FakeEnv, num_steps: int | None, cause: Any, text: str) -> None:
    def run(envs: SyncVectorEnv) -> None:
        if num_steps != 0:
            envs.reset()
        for _ in range(num_steps or 1):
            envs.step(ZEROS)

    with pytest.raises(EnvError, match="^" + re.escape(text)) as caught:
        run(with_fake(fake))
    assert cause is None or isinstance(caught.value.__cause__, cause)


CAMERA = Dict({"cam": Box(0, 1, (84, 84), np.float32)})


@pytest.mark.parametrize(("space", "obs", "text"), [
    (CAMERA, {"cam": np.zeros((84, 84, 3), np.uint8)}, 'obs["cam"]: expected float32 (84, 84), got uint8 (84, 84, 3)'),
    (CAMERA, {"eye": 0}, "obs: expected a dict with the keys ['cam'], got a dict with the keys ['eye']"),
    (CAMERA, (0, 0), "obs: expected a dict with the keys ['cam'], got a tuple of 2"),
    (Tuple([Discrete(2), Discrete(2)]), (0, 0, 0), "obs: expected a tuple of 2, got a tuple of 3"),
    (Tuple([Discrete(2), Discrete(2)]), (0, 0.5), "obs[1]: expected int64 (), got float 0.5"),
    (Discrete(2), np.zeros(1, np.int64), "obs: expected int64 (), got int64 (1,)"),
    (Discrete(2), True, "obs: expected int64 (), got bool True"),
    (Box(-1, 1, (2,), np.float32), [0.0, 0.0], "obs: expected float32 (2,), got list [0.0, 0.0]"),
    (Box(-1, 1, (2,), np.float32), np.zeros(2), "obs: expected float32 (2,), got float64 (2,) (the dtype differs"),
    (MultiDiscrete([2, 2]), np.zeros(2), "obs: expected int64 (2,), got float64 (2,)"),
    (MultiBinary(2), np.zeros(2), "obs: expected int8 (2,), got float64 (2,)"),
    (Box(-1, 1, (2,), np.float32), np.ones(1, np.float32), "obs: expected float32 (2,), got float32 (1,) (the space"),
    (Box(-1, 1, (2,), np.float32), np.float32(1), "obs: expected float32 (2,), got float32 ()"),
    (Box(-1, 1, (2,), np.float32), np.array(["1", "2"]), "obs: expected float32 (2,), got <U1 (2,)"),
])  # fmt: skip
@pytest.mark.parametrize("num_steps", [None, 0, 2])
def test_observations_that_do_not_fit(space: Any, obs: Any, text: str, num_steps: int | None) -> None:
    fake = FakeEnv(obs if num_steps is None else space.sample(), space=space)
    envs = with_fake(fake)
    if num_steps is not None:
        envs.reset()
        for _ in range(num_steps):
            envs.step(ZEROS)
        fake.obs = obs
    with pytest.raises(SpaceError, match=re.escape(f"env 1 {text}")):
        envs.reset() if num_steps is None else envs.step(ZEROS)


@pytest.mark.parametrize(("outcome", "text"), [
    (("1", False, False), "env 1 reward: expected a number, or one per agent, got str '1' (write float(...)"),
    ((None, False, False), "env 1 reward: expected a number, or one per agent, got NoneType None (does the env"),
    ((1j, False, False), "env 1 reward: expected a number, or one per agent, got complex 1j"),
    ((np.zeros((2, 2)), False, False), "env 1 reward: expected a number, or one per agent, got float64 (2, 2)"),
    ((np.zeros(2), False, False), "env 1 reward: expected shape (), as env 0 has, got float64 (2,)"),
    ((0.0, 1, False), "env 1 terminated: expected bool, got int 1 (write bool(...) where the env returns it)"),
    ((0.0, False, None), "env 1 truncated: expected bool, got NoneType None"),
    ((0.0, np.array([True]), False), "env 1 terminated: expected bool, got bool (1,)"),
    ((0.0, "no", False), "env 1 terminated: expected bool, got str 'no'"),
    ((0.0, False, np.float64(0)), "env 1 truncated: expected bool, got float64 ()"),
    ((0.0, False, False, None), "env 1 info: expected a dict, got NoneType None"),
    ((0.0, False, False, DEEP), "env 1 info: its dicts are nested too deeply"),
])  # fmt: skip
@pytest.mark.parametrize("at", [1, 3])
def test_outcomes_that_do_not_fit(outcome: Any, text: str, at: int) -> None:
    envs = with_fake(FakeEnv(outcome=(*outcome, {})[:4], fails_at=at))
    envs.reset()
    for _ in range(at - 1):
        envs.step(ZEROS)
    with pytest.raises(SpaceError, match="^" + re.escape(text)):
        envs.step(ZEROS)


@pytest.mark.parametrize("reward", [1, True, np.float32(1), np.int64(1), np.array(1.0)])
@pytest.mark.parametrize("flag", [True, np.True_, np.array(True)])
def test_what_counts_as_a_number_and_a_bool(reward: Any, flag: Any) -> None:
    envs = with_fake(FakeEnv(outcome=(reward, flag, False, {})))
    envs.reset()
    _, rewards, terminated, truncated, _ = envs.step(ZEROS)
    assert (rewards.dtype, rewards.tolist()) == (np.float64, [0.0, 1.0])
    assert terminated.tolist() == [False, True]
    assert truncated.tolist() == [False, False]


def test_a_close_that_fails_does_not_keep_the_others_open(caplog: pytest.LogCaptureFixture) -> None:
    class Stuck(FakeEnv):
        def close(self) -> None:
            raise OSError("stuck")

    fakes = [Stuck(), FakeEnv()]
    envs = SyncVectorEnv([lambda: fakes[0], lambda: fakes[1]])
    with caplog.at_level(logging.WARNING, "rltrainer"):
        envs.close()
    assert fakes[1].is_closed
    assert "env 0 failed during close: OSError('stuck')" in caplog.text


@pytest.mark.parametrize("actions", [np.zeros(1, np.int64), np.zeros(3, np.int64), np.array(0), 3, None])
def test_actions_of_another_number(actions: Any) -> None:
    envs = SyncVectorEnv([FakeEnv] * 2)
    envs.reset()
    with pytest.raises(ParamsError, match=r"^SyncVectorEnv.step.actions: must hold one action per env \(2\); got "):
        envs.step(actions)
    envs.step(ZEROS)
