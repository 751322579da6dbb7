"""A vector env of tensors: it steps all copies of an env at once by pure functions, and resets the ended ones."""

from dataclasses import dataclass
from typing import Any

import gymnasium as gym
import torch
from gymnasium.vector import AutoresetMode
from gymnasium.vector.utils import batch_space
from torch import Tensor

from rltrainer.device import require_device
from rltrainer.envs.checks import check_obs, describe
from rltrainer.envs.tensors.gym_tensor_env import require
from rltrainer.envs.tensors.tensor_env import TensorEnv
from rltrainer.errors import CheckpointError, ParamsError, SpaceError
from rltrainer.seeding import check_generator, derive_seed, draw_seed, make_generator, reseed, set_generator
from rltrainer.spaces import leaf_shape, leaf_spaces
from rltrainer.state.codec import check_like
from rltrainer.state.stateful import Stateful
from rltrainer.tree import Tree, leaves, map_tree, named_leaves, rebuild
from rltrainer.validation.field_rules import NonNegativeInt, PositiveInt, checked


@dataclass(slots=True)
class TensorEnvState:
    """The place of N envs: `state` of the rules, a tree [N, ...], and the steps of the running episodes [N] int32."""

    state: Tree
    num_steps: Tensor


@dataclass(slots=True)
class TensorStep:
    """Result of one step of N envs.

    Args:
        obs: tree [N, ...], to act on next: after an episode's end the first observation of the next one.
        reward: [N] float32.
        terminated, truncated: [N] bool.
        final_obs: tree [N, ...], the true successors of all envs, whether their episode ended or not.
    """

    obs: Tree
    reward: Tensor
    terminated: Tensor
    truncated: Tensor
    final_obs: Tree


@dataclass
class SavedTensorEnvs:
    """State of a `TensorVectorEnv`, on the CPU."""

    generator: Any
    leaves: list[Any]  # of the rules' state [N, ...]
    num_steps: Any


class TensorVectorEnv(gym.vector.VectorEnv[Any, Any, Any], Stateful[SavedTensorEnvs]):
    """Steps N copies of an env, given as a `TensorEnv`, on a device; `make_vec(..., backend="tensor")` makes one.

    `step` takes and returns tensors on the device, in autoreset mode SAME_STEP: an env that ends an episode returns the
    first observation of the next one, and `info["final_obs"]` [N, ...] holds the true successors of all envs.

    `advance` is the same as a pure function, of states and random numbers, which can be compiled or recorded.

    Raises:
        ParamsError: an argument is of another kind, or the env lacks an attribute.
        SpaceError: the action space is a Dict or Tuple, or the rules do not fit the spaces.
    """

    state_class, state_name = SavedTensorEnvs, "adapter.envs"
    first_env: int = 0  # the global index of the first env
    recipe: Any = None  # the `DeferredEnvs` that made them

    def __init__(
        self, env: TensorEnv, num_envs: int, device: torch.device | str | None = None, seed: int | None = None
    ) -> None:
        name = type(self).__name__
        if not isinstance(env, TensorEnv):
            raise ParamsError.about(name, "env", "must be a TensorEnv", env, "rl.make_vec takes a factory of one.")
        self.env, self.metadata = env, {"autoreset_mode": AutoresetMode.SAME_STEP}
        self.num_envs = checked(name, "num_envs", num_envs, PositiveInt)
        self.base_seed = checked(name, "seed", seed, NonNegativeInt | None)
        self.device = require_device(name, "cpu" if device is None else device)
        checked(type(env).__name__, "max_episode_steps", env.max_episode_steps, PositiveInt | None)
        require(name, env, "observation_space", "action_space", "num_first_uniforms")
        self.num_uniforms = env.num_first_uniforms + env.num_step_uniforms
        self.single_observation_space, self.single_action_space = env.observation_space, env.action_space
        self._spaces = leaf_spaces(env.observation_space)
        if leaf_spaces(env.action_space) is not env.action_space:
            raise SpaceError.about(type(env).__name__, "action_space", "must be no Dict or Tuple", env.action_space)
        self.observation_space = batch_space(env.observation_space, num_envs)
        self.action_space = batch_space(env.action_space, num_envs)
        self._action_shape = (num_envs, *leaf_shape(env.action_space))
        root = draw_seed() if seed is None else seed
        self.generator = make_generator(derive_seed(root, "reset", 0), self.device)
        self.current = self._first_state(self.sample_uniforms())
        self._check_rules()

    def sample_uniforms(self, *leading: int) -> Tensor:
        """Return the random numbers [*leading, N, num_uniforms] that steps take, from the generator."""
        shape = (*leading, self.num_envs, self.num_uniforms)
        return torch.rand(shape, generator=self.generator, device=self.device, dtype=torch.float32)

    def advance(self, state: TensorEnvState, action: Tensor, uniform: Tensor) -> tuple[TensorEnvState, TensorStep]:
        """Return where the envs are after one step, and its result; a pure function without a wait for the device.

        `action` is [N, ...] and `uniform` [N, num_uniforms]. Observations may share the memory of the states.
        """
        env = self.env
        after, reward, terminated = env.transition(state.state, action, uniform[:, env.num_first_uniforms :])
        num_steps, limit = state.num_steps + 1, env.max_episode_steps
        truncated = torch.zeros_like(terminated) if limit is None else num_steps >= limit
        done = terminated | truncated
        first = self._first_state(uniform)

        def choose(first: Tensor, after: Tensor) -> Tensor:
            return torch.where(done.view(-1, *[1] * (after.ndim - 1)), first, after)

        following = TensorEnvState(map_tree(choose, first.state, after), choose(first.num_steps, num_steps))
        return following, TensorStep(self.observe(following.state), reward, terminated, truncated, self.observe(after))

    @torch.no_grad()
    def step(self, actions: Tensor) -> tuple[Tree, Tensor, Tensor, Tensor, dict[str, Any]]:
        """Step every env with actions [N, ...] on the device; a tensor of another shape is a `SpaceError`."""
        if not isinstance(actions, Tensor) or actions.shape != self._action_shape:
            raise SpaceError(f"TensorVectorEnv.step: expected a tensor {self._action_shape}, got {describe(actions)}")
        self.current, step = self.advance(self.current, actions, self.sample_uniforms())
        info = {"final_obs": step.final_obs, "_final_obs": step.terminated | step.truncated}
        # A copy: the rules may return their state as the observation, which a caller may change.
        return map_tree(torch.clone, step.obs), step.reward, step.terminated, step.truncated, info

    @torch.no_grad()
    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Tree, dict[str, Any]]:
        """Start an episode in every env; return observations [N, ...]. `options` are a `ParamsError`.

        A seed is the generator's; one that is no integer is a `ParamsError`, too.
        """
        name = type(self).__name__
        if options:
            raise ParamsError.about(f"{name}.reset", "options", "envs of tensors take none", options)
        if seed is not None:
            reseed(self.generator, name, seed)
        self.current = self._first_state(self.sample_uniforms())
        return map_tree(torch.clone, self.observe(self.current.state)), {}

    def get_state(self) -> SavedTensorEnvs:
        """Return where the envs and their generator are, as copies on the CPU; `set_state` takes it."""
        saved = [leaf.to("cpu", copy=True) for leaf in (*leaves(self.current.state), self.current.num_steps)]
        return SavedTensorEnvs(self.generator.get_state(), saved[:-1], saved[-1])

    state = get_state

    def check_state(self, state: SavedTensorEnvs) -> None:
        """Raise a `CheckpointError` if the state is of other envs."""
        check_generator(f"{self.state_name}.generator", self.generator, state.generator)
        own, hint = list(named_leaves(self.current.state)), "It is the state of other envs."
        if len(own) != len(state.leaves):
            raise CheckpointError(f"{self.state_name}.leaves: expected {len(own)}, found {len(state.leaves)}. {hint}")
        for (name, leaf), saved in zip(own, state.leaves, strict=True):
            check_like(f"{self.state_name}.state{name}", leaf, saved, hint)
        check_like(f"{self.state_name}.num_steps", self.current.num_steps, state.num_steps, hint, least=0)

    def set_state(self, state: SavedTensorEnvs) -> None:
        """Return to where the envs and their generator were; the state of other envs is a `CheckpointError`."""
        self.check_state(state)
        set_generator(self.generator, state.generator)
        *found, num_steps = (leaf.to(self.device, copy=True) for leaf in (*state.leaves, state.num_steps))
        self.current = TensorEnvState(rebuild(self.current.state, found), num_steps)

    def _first_state(self, uniform: Tensor) -> TensorEnvState:
        num_steps = torch.zeros(self.num_envs, dtype=torch.int32, device=uniform.device)
        return TensorEnvState(self.env.first_state(uniform[:, : self.env.num_first_uniforms]), num_steps)

    def observe(self, state: Tree) -> Tree:
        """Return the observations [N, ...] of states of the rules, Dicts in the order of their space."""
        return map_tree(lambda _, leaf: leaf, self._spaces, self.env.observe(state))

    @torch.no_grad()
    def _check_rules(self) -> None:
        """Raise a `SpaceError` if the rules return another shape or dtype than they must, or change a state."""
        state, name, batch = self.current.state, type(self.env).__name__, (self.num_envs,)
        check_obs(f"{name}.observe", self._spaces, self.env.observe(state), batch)
        action = torch.as_tensor(self.action_space.sample(), device=self.device)
        uniform = torch.zeros((self.num_envs, self.env.num_step_uniforms), device=self.device)
        before = map_tree(torch.clone, state)
        result = self.env.transition(state, action, uniform)
        if not isinstance(result, tuple | list) or len(result) != 3:
            raise SpaceError(f"{name}.transition: must return (state, reward, terminated); got {describe(result)}")
        after, reward, terminated = result
        if not all(((a == b) | (a != a)).all() for a, b in zip(leaves(before), leaves(state), strict=True)):
            raise SpaceError(f"{name}.transition: must return new tensors, but it changed the state in place")
        found = {**_described("state", after), **_described("reward", reward), **_described("terminated", terminated)}
        expected = {**_described("state", state), "reward": f"float32 {batch}", "terminated": f"bool {batch}"}
        for what, rule in expected.items():
            if found.get(what) != rule:
                raise SpaceError(f"{name}.transition: {what}: expected {rule}, got {found.get(what, 'nothing')}")


def _described(name: str, tree: Tree) -> dict[str, str]:
    """Return dtype and shape of each leaf by its name."""
    return {f"{name}{path}": describe(leaf) for path, leaf in named_leaves(tree)}
