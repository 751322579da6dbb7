"""Exceptions of single envs within gymnasium's vector envs, which say nothing of whose they are."""

from functools import partial
from typing import Any

import gymnasium as gym
import numpy as np
import pytest
from gymnasium.vector import AutoresetMode

import rltrainer as rl
from rltrainer.errors import EnvError
from tests.fakes import OBS_SPACE, CountingEnv, tiny_actor_critic


class Faulty(CountingEnv):
    """Ends after two steps; fails in a step of this number, or in a reset of this number, counted from 1."""

    def __init__(self, step: int = 0, reset: int = 0, result: Any = None) -> None:
        super().__init__(length=2)
        self.failing_step, self.failing_reset, self.result = step, reset, result

    def reset(self, **options: Any) -> Any:
        if self.num_resets + 1 == self.failing_reset:
            raise KeyError("no level")
        return super().reset(**options)

    def step(self, action: Any) -> Any:
        result = super().step(action)
        if self.num_steps == self.failing_step:
            if self.result is not None:
                return self.result
            raise ZeroDivisionError("by hand")
        return result


def failure(cls: Any = gym.vector.SyncVectorEnv, mode: Any = AutoresetMode.NEXT_STEP, **faults: Any) -> EnvError:
    """Return the error of a collection in three envs of which the second one fails."""
    envs = cls([Faulty, partial(Faulty, **faults), Faulty], autoreset_mode=mode)
    collector = rl.Collector(tiny_actor_critic(envs), envs)
    collector.seed(1)
    with pytest.raises(EnvError) as caught:
        collector.collect(num_steps=3 * 8)
    collector.close()
    return caught.value


@pytest.mark.parametrize("mode", AutoresetMode)
def test_a_step_that_fails_is_named_by_env_and_step(mode: AutoresetMode) -> None:
    error = failure(mode=mode, step=4)
    assert str(error) == "env 1 failed during step 4: ZeroDivisionError: by hand"
    assert isinstance(error.__cause__, ZeroDivisionError)


@pytest.mark.parametrize("mode", AutoresetMode)
def test_a_reset_that_fails_is_named_by_env_and_step(mode: AutoresetMode) -> None:
    assert str(failure(mode=mode, reset=1)) == "env 1 failed during reset after 0 steps: KeyError: 'no level'"
    when = "step 2" if mode is AutoresetMode.SAME_STEP else "reset after 2 steps"
    assert str(failure(mode=mode, reset=2)) == f"env 1 failed during {when}: KeyError: 'no level'"


def test_what_a_step_returns_gets_the_hint_that_our_own_envs_give() -> None:
    error = failure(step=1, result=(np.zeros(2, np.float32), 1.0, False, {}))
    assert str(error).startswith("env 1 failed during step 1: ValueError: not enough values to unpack (expected 5")
    assert "step returns (obs, reward, terminated, truncated, info) since gymnasium 0.26" in str(error)


@pytest.mark.filterwarnings("ignore:.*ERROR", "ignore:.*WARN")  # gymnasium's log
def test_workers_of_gymnasium_are_named_too() -> None:
    error = failure(gym.vector.AsyncVectorEnv, step=3)
    assert str(error) == "env 1 failed during step 3: ZeroDivisionError: by hand"


def test_what_fails_for_all_envs_together_stays_as_it_is() -> None:
    """Observations of another shape fail where gymnasium stacks them, and not in an env."""
    wrong = (np.zeros(3, np.float32), 1.0, False, False, {})
    envs = gym.vector.SyncVectorEnv([partial(Faulty, step=1, result=wrong), Faulty])
    with pytest.raises(ValueError, match="shape"):
        rl.Collector(tiny_actor_critic(envs), envs).collect(num_steps=2)


def test_a_policy_that_fails_is_no_env() -> None:
    class Broken(rl.ActorCritic):
        def decide(self, *args: Any, **options: Any) -> Any:
            raise RuntimeError("not an env")

    envs = gym.vector.SyncVectorEnv([CountingEnv])
    with pytest.raises(RuntimeError, match="not an env"):
        rl.Collector(Broken(OBS_SPACE, envs.single_action_space), envs).collect(num_steps=2)
