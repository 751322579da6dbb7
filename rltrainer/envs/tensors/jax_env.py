"""Envs that are functions of JAX, gymnax's and Brax's: N of them are one program; its arrays become tensors."""

from collections.abc import Callable
from typing import Any

import numpy as np
from gymnasium.spaces import Box, Space
from torch import Tensor
from torch.utils.dlpack import from_dlpack

from rltrainer.envs.tensors.gym_tensor_env import Groups, GymTensorVectorEnv, require
from rltrainer.seeding import draw_seed
from rltrainer.types import State
from rltrainer.validation.field_rules import PositiveInt, checked


class JaxEnvs:
    """N envs as one compiled program on JAX's device; an env is reset in the step that ends its episode.

    Both functions are of one env: `reset`: (key) -> (obs, state); `step`: (key, state, action) -> (obs, state, reward,
    terminated, truncated).
    """

    def __init__(self, reset: Callable[..., Any], step: Callable[..., Any], num_envs: int) -> None:
        import jax

        def reset_all(key: Any) -> Any:
            keys = jax.random.split(key, num_envs + 1)
            obs, state = jax.vmap(reset)(keys[1:])
            return obs, (keys[0], state)

        def step_all(state: Any, action: Any) -> Any:
            keys = jax.random.split(state[0], num_envs + 1)
            final_obs, last, reward, terminated, truncated = jax.vmap(step)(keys[1:], state[1], action)
            done = terminated | truncated

            def choose(first: Any, last: Any) -> Any:
                return jax.numpy.where(done.reshape(-1, *[1] * (last.ndim - 1)), first, last)

            obs, (key, first) = reset_all(keys[0])
            now = jax.tree.map(choose, (obs, first), (final_obs, last))
            return (now[0], reward, terminated, truncated, {"final_obs": final_obs}), (key, now[1])

        self.jax, self.num_envs, self.state = jax, num_envs, None
        self._reset, self._step = jax.jit(reset_all), jax.jit(step_all)

    def reset(self, seed: int | None) -> Any:
        """Reset all envs."""
        obs, self.state = self._reset(self.jax.random.PRNGKey(draw_seed() if seed is None else seed))
        return self.jax.tree.map(from_dlpack, obs), {}

    def step(self, actions: Tensor) -> Any:
        """Step all envs with actions [N, ...]; every leaf returned is [N, ...]."""
        action = self.jax.dlpack.from_dlpack(actions if actions.is_floating_point() else actions.int())
        result, self.state = self._step(self.state, action)
        return self.jax.tree.map(from_dlpack, result)


class JaxVectorEnv(GymTensorVectorEnv):
    """The parent of the envs of JAX, which save their state."""

    def state_dict(self) -> State:
        """Return where the envs are, random numbers included."""
        return {"leaves": [from_dlpack(leaf).cpu().clone() for leaf in self.env.jax.tree.leaves(self.env.state)]}

    def load_state_dict(self, state: State) -> None:
        """Restore a state of as many envs of the same kind."""
        jax = self.env.jax
        found = [jax.numpy.array(leaf.numpy()) for leaf in state["leaves"]]
        self.env.state = jax.tree.structure(self.env.state).unflatten(found)


class GymnaxVectorEnv(JaxVectorEnv):
    """Steps N envs of gymnax: `rl.GymnaxVectorEnv(*gymnax.make("CartPole-v1"), num_envs=1024)`.

    The end of an episode at `params.max_steps_in_episode` is a truncation, not a termination as in gymnax before 1.0.
    An env or params of another kind are a `ParamsError`.
    """

    def __init__(self, env: Any, params: Any, num_envs: int) -> None:
        step_env, reset_env, action_space = require("GymnaxVectorEnv", env, "step_env", "reset_env", "action_space")
        (limit,) = require("GymnaxVectorEnv", params, "max_steps_in_episode", field="params")
        unlimited = params.replace(max_steps_in_episode=2**30)
        from gymnax.environments.spaces import gymnax_space_to_gym_space

        def step(key: Any, state: Any, action: Any) -> Any:
            obs, after, reward, *_ = step_env(key, state, action, params)
            terminated = step_env(key, state, action, unlimited)[3]  # the compiler computes the rest only once
            return obs, after, reward, terminated, after.time >= limit

        envs = JaxEnvs(lambda key: reset_env(key, params), step, num_envs)
        super().__init__(envs, action_space=gymnax_space_to_gym_space(action_space(params)))


class BraxVectorEnv(JaxVectorEnv):
    """Steps N envs of Brax or MuJoCo Playground: `rl.BraxVectorEnv(brax.envs.get_environment("ant"), num_envs=1024)`.

    `env` is one env without wrappers, with actions in [-1, 1]. An episode is truncated after `episode_length` steps.
    `obs_groups` are as in `GymTensorVectorEnv`. An argument of another kind is a `ParamsError`.
    """

    def __init__(self, env: Any, num_envs: int, episode_length: int = 1000, obs_groups: Groups = None) -> None:
        action_size, _ = require("BraxVectorEnv", env, "action_size", "reset")
        checked("BraxVectorEnv", "episode_length", episode_length, PositiveInt)

        def reset(key: Any) -> Any:
            state = env.reset(key)
            return state.obs, (state, 0)

        def step(key: Any, state: Any, action: Any) -> Any:
            state, num_steps = env.step(state[0], action), state[1] + 1
            return state.obs, (state, num_steps), state.reward, state.done > 0, num_steps >= episode_length

        action_space: Space[Any] = Box(-1.0, 1.0, (action_size,), np.float32)
        super().__init__(JaxEnvs(reset, step, num_envs), obs_groups, action_space=action_space)
