"""The policy, which chooses actions: the one object that algorithms and collectors share."""

import dataclasses
import json
from abc import abstractmethod
from collections.abc import Callable, Collection, Mapping, Sequence
from pathlib import Path
from types import MappingProxyType
from typing import Annotated, Any, ClassVar, Concatenate, ParamSpec, Self, TypedDict, TypeVar, overload

import gymnasium as gym
import numpy as np
import torch
from gymnasium import spaces
from torch import Generator, Tensor, nn

from rltrainer.errors import CheckpointError, NonFiniteError, ParamsError, SpaceError, readable
from rltrainer.files.atomic_write import write_errors
from rltrainer.nets.exploration import Exploration, allowed, has_state
from rltrainer.nets.mlp import Activation
from rltrainer.nets.modes import eval_mode
from rltrainer.nets.module_state import IncompatibleKeys, load_module
from rltrainer.nets.net_params import NetParams
from rltrainer.nets.normalizer import ObsNormalizer, RewardScaler
from rltrainer.nets.weight_dtype import WeightDtype, cast, dtype_entry, dtype_name, saved_dtype, set_weight_dtype
from rltrainer.plan import no_progress
from rltrainer.spaces import ACTION_MASK, Array, Space, ValueRange, leaf_shape, leaf_spaces, num_choices, numpy_dtype
from rltrainer.state.plain import Constructed
from rltrainer.state.state_file import read_state, write_state
from rltrainer.tree import Tree, leaves, map_tree
from rltrainer.validation.field_rules import AnyPath, Flag, Sizes, checked, instance_of
from rltrainer.validation.suggestions import explains_arguments

ExtraSpecs = Mapping[str, tuple[tuple[int, ...], torch.dtype]]
"""Shape and dtype of one env's row, by the name of a column."""
# The column of policies that sample: the log-probability (density) of the action, in the scale of the networks.
LOG_PROB: ExtraSpecs = {"log_prob": ((), torch.float32)}
# The column of the weights that chose the action: `Policy.version`.
VERSION: ExtraSpecs = {"version": ((), torch.int64)}


@dataclasses.dataclass(slots=True)
class Decision:
    """A policy's output for N observations, a row [...] for each."""

    action: Tensor
    """[N, ...] in the env's scale, as sampled: a rollout keeps the sample, the env gets it clipped to its Box."""
    state: Tensor | None = None
    """[N, S] float32, the memory after this step; None keeps the memory before it."""
    extra: Mapping[str, Tensor | Callable[[], Tensor]] = dataclasses.field(default_factory=dict)
    """The columns of `Policy.extra_specs` [N, ...]; a function is called only if a buffer declares its column."""


Options = ParamSpec("Options")
TPolicy = TypeVar("TPolicy")
# A policy's class to a type checker: `for_envs` takes the constructor's arguments.
Constructor = Callable[Concatenate[Space, Space, Options], TPolicy]
CheckLeaf = Callable[[str, Space, Any], Any]
AnyNet = Annotated[NetParams, instance_of(NetParams, hint="Write rl.NetParams(hidden_sizes=(64, 64)).")]


class PolicyOptions(TypedDict, total=False):
    """Options of `Policy` that its subclasses hand on."""

    hidden_sizes: Sequence[int] | None
    activation: Activation | None
    normalize_obs: bool


class Policy(nn.Module, metaclass=Constructed):
    """Chooses actions for observations. Holds networks and normalisers; owns no generator and no memory.

    A subclass implements `decide`, and `initial_state` if it has a memory. Move a policy with `.to(device)` before its
    algorithm is built.

    A memory is one row of float32 numbers per env. The collector starts it with `initial_state(num_envs)`, passes the
    `state` of each decision to the next one, and resets the rows of envs that start an episode. The column `state` of a
    buffer holds the memory before each step; updates reset it where `rollout.begins` is set.

    `net` are the parts of its networks, None takes the class's defaults; `hidden_sizes` and `activation` replace those
    of `net`. `normalize_obs` standardises float observations by running statistics that are saved with the policy.
    What is no space raises a `SpaceError`, a wrong option a `ParamsError`.
    """

    default_net: ClassVar[NetParams] = NetParams(hidden_sizes=(64, 64), activation=nn.Tanh)
    """Sizes and activation of networks for which the user chose none."""
    extra_specs: ExtraSpecs = MappingProxyType({})
    """Columns that `decide` can fill, for buffers that declare them."""
    # Where these have other values, the memory belongs to noise: greedy actions do not depend on it.
    use_sde, noise_repeat = False, 1
    # Format of the networks; see `set_weight_dtype`.
    weight_dtype = torch.float32
    # Names of buffers that stay in the envs' format.
    keeps_dtype: ClassVar[tuple[str, ...]] = ("_lowest", "_highest")
    _lowest: Tensor | None
    _highest: Tensor | None
    _construction: str

    def __init__(
        self, observation_space: Space, action_space: Space, net: NetParams | None = None, *,
        hidden_sizes: Sequence[int] | None = None, activation: Activation | None = None, normalize_obs: bool = False,
    ) -> None:  # fmt: skip
        super().__init__()
        name = type(self).__name__
        for field, space in (("observation_space", observation_space), ("action_space", action_space)):
            if not isinstance(space, gym.Space):
                hint = f"Build it with {name}.for_envs(envs)."
                raise SpaceError.about(name, field, "must be a gymnasium space", space, hint)
        normalize_obs = checked(name, "normalize_obs", normalize_obs, Flag)
        net = checked(name, "net", net, AnyNet | None)
        own = {"hidden_sizes": checked(name, "hidden_sizes", hidden_sizes, Sizes | None), "activation": activation}
        own = {field: value for field, value in own.items() if value is not None}
        # With all defaults filled in, for the networks of a subclass.
        self.net_params = dataclasses.replace(net or NetParams(), **own).with_defaults(self.default_net)
        self._net = json.dumps(self.net_params.to_plain())
        self.observation_space, self.action_space = observation_space, action_space
        self._leaf_spaces = leaf_spaces(observation_space)
        self.has_mask = _has_mask(name, observation_space, action_space)
        # Parts of a Dict observation that no acting network sees.
        seen, parts = self.net_params.keys, getattr(observation_space, "spaces", ())
        self.unseen_keys = tuple(key for key in parts if seen is not None and key not in (*seen, ACTION_MASK))
        self.obs_normalizer = ObsNormalizer(observation_space) if normalize_obs else None
        self.reward_normalizer: RewardScaler | None = None
        self.exploration: Exploration | None = None
        self.progress: Callable[[], float] = no_progress
        self.cuda_graph = True  # whether a collector may run it as one, as `RuntimeParams.cuda_graph` says
        self.is_compiled = False  # whether its algorithm's updates are, and its rollouts in envs of tensors may be
        self.version = 0  # counts the weights that were brought to a copy
        lowest, highest = _finite_bounds(action_space)
        # Not persistent: they follow from the space.
        self.register_buffer("_lowest", lowest, persistent=False)
        self.register_buffer("_highest", highest, persistent=False)

    @classmethod
    def for_spaces(
        cls: Constructor[Options, TPolicy], observation_space: Space, action_space: Space,
        *args: Options.args, **options: Options.kwargs,
    ) -> TPolicy:  # fmt: skip
        """Build the policy for an observation space and an action space; `options` go to the constructor."""
        return cls(observation_space, action_space, *args, **options)

    @classmethod
    def for_envs(
        cls: Constructor[Options, TPolicy], envs: gym.vector.VectorEnv[Any, Any, Any],
        *args: Options.args, **options: Options.kwargs,
    ) -> TPolicy:  # fmt: skip
        """Build the policy for the spaces of a vector env, see `for_spaces`; a `ParamsError` if it is none."""
        return cls(*_spaces_of(cls, envs), *args, **options)

    def critic_net_params(self, critic_net: NetParams | None, shares: str | None = None) -> NetParams:
        """Return the parts of a critic: a `critic_net`, completed by the actor's parts.

        With the option `shares` it shares the actor's encoder: then an encoder or keys of its own are a `ParamsError`.
        """
        name, own = type(self).__name__, self.net_params
        critic_net = checked(name, "critic_net", critic_net, AnyNet | None)
        net = own if critic_net is None else critic_net.with_defaults(own)
        if shares and (net.encoder, net.obs_encoder, net.keys) != (own.encoder, own.obs_encoder, own.keys):
            raise ParamsError(f"{name}.{shares}: must be False where the critic has an encoder or keys of its own")
        return net

    def initial_state(self, num_envs: int) -> Tensor | None:
        """Return the memory at the start of an episode [num_envs, S] float32; None without one."""
        return None

    @property
    def is_recurrent(self) -> bool:
        """True if greedy actions depend on the memory; only algorithms that replay sequences train such policies."""
        return not self.use_sde and self.noise_repeat == 1 and self.initial_state(1) is not None

    @property
    def columns(self) -> ExtraSpecs:
        """Columns that a collector can fill: `extra_specs`, `state` (the memory before the step), `version`."""
        state = self.initial_state(1)
        memory: ExtraSpecs = {} if state is None else {"state": (tuple(state.shape[1:]), state.dtype)}
        return {**self.extra_specs, **memory, **VERSION}

    @abstractmethod
    def decide(
        self, obs: Tree, state: Tensor | None, mask: Tensor | None, explore: bool, generator: Generator | None
    ) -> Decision:
        """Decide for normalised observations, a tree [N, ...]; gradients are off.

        `state` [N, S] is the memory, None without one or if the caller gave none. `mask` [N, A] bool marks the allowed
        choices, None allows all; encoders leave it out of `obs`. With `explore`, a stochastic policy
        samples. A `generator` of None is torch's global one.
        """

    @overload
    def act(self, obs: Tree, *, explore: bool = False, generator: Generator | None = None) -> Tensor: ...

    @overload
    def act(
        self, obs: Tree, state: Tensor, *, explore: bool = False, generator: Generator | None = None
    ) -> tuple[Tensor, Tensor]: ...

    def act(
        self, obs: Tree, state: Tensor | None = None, *, explore: bool = False, generator: Generator | None = None
    ) -> Tensor | tuple[Tensor, Tensor]:
        """Choose actions [N, ...] for raw observations, a tree [N, ...], in the modes (train or eval) of the networks.

        Actions are in the env's scale, and within the bounds of a Box. Given a `state` [N, S], which is
        `initial_state(N)` at the start of an episode, the next state is returned, too.

        Raises:
            ParamsError: a recurrent policy was given no state.
            NonFiniteError: the networks' preferences are NaN.
            SpaceError: the observations are no tensors of the space.
        """
        if state is None and self.is_recurrent:
            hint = "Begin each episode with policy.initial_state(num_envs)."
            raise ParamsError.about(type(self).__name__, "act", "must be given a state", None, hint)
        if not torch.compiler.is_compiling():
            _map_checked(_check_tensor, f"{type(self).__name__}.act: obs", self._leaf_spaces, obs, self.unseen_keys)
        decision = self.select_action(obs, state, explore=explore, generator=generator)
        action = decision.action if self._lowest is None else decision.action.clamp(self._lowest, self._highest)
        if state is None:
            return action
        return action, state if decision.state is None else decision.state

    def mask_of(self, obs: Tree) -> Tensor | None:
        """Return the choices that an observation allows [B, A] bool; None where it has no mask."""
        return obs[ACTION_MASK].bool() if self.has_mask else None

    def with_open_masks(self, next_obs: Tree, terminated: Tensor) -> Tree:
        """Allow all choices where a target bootstraps and the mask [B, A] allows none, as at some envs' time limits."""
        if (mask := self.mask_of(next_obs)) is None:
            return next_obs
        mask = mask | (~terminated.unsqueeze(-1) & ~mask.any(-1, keepdim=True))
        return {**next_obs, ACTION_MASK: mask}

    def select_action(
        self, obs: Tree, state: Tensor | None = None, *, explore: bool = False, generator: Generator | None = None,
        exploration: Exploration | None = None,
    ) -> Decision:  # fmt: skip
        """Normalise raw observations, decide, and explore: `act` for collectors, with all of the decision, unclipped.

        `state` [N, S] is the memory of the policy or of its exploration. `exploration` explores from the greedy action,
        instead of the policy's own sampling and exploration.
        """
        if torch.is_grad_enabled():  # a collector has switched gradients off once for all its steps
            with torch.no_grad():
                return self.select_action(obs, state, explore=explore, generator=generator, exploration=exploration)
        if self.obs_normalizer is not None:
            obs = self.obs_normalizer(obs)
        mask = self.mask_of(obs) if self.has_mask else None
        decision = self.decide(obs, state, mask, explore and exploration is None, generator)
        if self.weight_dtype is not torch.float32:
            decision = cast(decision, torch.float32)
        exploration = self.exploration if exploration is None else exploration
        if explore and exploration is not None:
            given = self.action_space, self.progress(), generator
            if state is not None and has_state(exploration):
                decision.action, decision.state = exploration.step(decision.action, state, *given)
            else:
                decision.action = exploration(decision.action, *given)
            if mask is not None:
                decision.action = allowed(decision.action, mask, self.action_space, generator)
        return decision

    @explains_arguments
    def predict(
        self, obs: Tree, state: Any = None, *, explore: bool = False, generator: Generator | None = None
    ) -> Any:
        """Choose actions as `act` does, for NumPy observations, in eval mode; the modes are restored.

        Args:
            obs: one raw observation, or N of them with an axis in front: arrays, or dicts and tuples of them. Keys
                that only the critic sees may be missing.
            state: the memory [S] or [N, S], None at an episode's start. The next one is returned beside the action if
                the policy is recurrent or a state was given.

        Raises:
            SpaceError: the space has no such observation.
            NonFiniteError: an observation holds NaN or infinity.
        """
        name = f"{type(self).__name__}.predict"
        batch, is_single = self._to_batch(f"{name}: obs", obs)
        if self.has_mask:
            parts = torch.split(self.mask_of(batch), num_choices(self.action_space) or 0, 1)  # type: ignore[arg-type]
            is_stuck = ~torch.stack([part.any(1) for part in parts]).all(0)
            for row in is_stuck.nonzero()[:1].flatten().tolist():
                of_row = "" if is_single else f" in row {row}"
                raise SpaceError(f'{name}: obs["{ACTION_MASK}"]: allows no action{of_row}')
        memory = self.initial_state(len(leaves(batch)[0])) if self.is_recurrent or state is not None else None
        if state is not None:
            shape = None if memory is None else tuple(memory.shape[is_single:])
            if memory is None or np.shape(state) != shape:
                rule = "must be None, as it has no memory" if shape is None else f"must have the shape {shape}"
                raise ParamsError.about(name, "state", rule, state)
            memory = torch.from_numpy(np.array(state, np.float32)).view(memory.shape).to(self.device)
        with eval_mode(self):
            if memory is None:
                return self._to_numpy(self.act(batch, explore=explore, generator=generator), is_single)
            action, memory = self.act(batch, memory, explore=explore, generator=generator)
        return self._to_numpy(action, is_single), (memory[0] if is_single else memory).cpu().numpy()

    def _to_batch(self, owner: str, obs: Tree) -> tuple[Tree, bool]:
        """Return observations as tensors [N, ...], zeros where nothing is seen, and whether it was a single one."""
        tree = self._leaf_spaces
        arrays = _map_checked(_checked_array, owner, tree, obs, self.unseen_keys)
        pairs = zip(leaves(arrays), leaves(tree), strict=True)
        batches = {leaf.shape[: leaf.ndim - len(leaf_shape(space))] for leaf, space in pairs if leaf is not None}
        if len(batches) != 1:
            raise SpaceError(f"{owner}: expected leaves of one number of observations, got {sorted(batches)}")
        batch = batches.pop()

        def to_tensor(space: Space, leaf: Array | None) -> Tensor:
            values = np.zeros((*(batch or (1,)), *leaf_shape(space)), numpy_dtype(space))
            values[:] = 0 if leaf is None else leaf
            return torch.from_numpy(values).to(self.device)

        return map_tree(to_tensor, tree, arrays), batch == ()

    def _to_numpy(self, action: Tensor, is_single: bool) -> Any:
        """Return actions [N, ...], or the only one, in the dtype of their space, and within it."""
        space = self.action_space
        array = action.cpu().numpy().astype(space.dtype)
        array = np.clip(array, space.low, space.high) if isinstance(space, spaces.Box) else array
        return array[0] if is_single else array

    def forward(self, obs: Tree, state: Tensor | None = None) -> Tensor | tuple[Tensor, Tensor]:
        """Return greedy actions [N, ...] for raw observations, see `act`; exports hold this method."""
        return self.act(obs) if state is None else self.act(obs, state)

    def set_weight_dtype(self, dtype: torch.dtype) -> None:
        """Convert networks and statistics in place to float32 or float64; another format is a `ParamsError`."""
        set_weight_dtype(self, checked(type(self).__name__, "set_weight_dtype", dtype, WeightDtype))

    def _apply(self, fn: Callable[[Tensor], Tensor], recurse: bool = True) -> Self:
        """Move all tensors, as `.to(device)` does; another number format, as of `.double()`, is a `ParamsError`."""
        found = fn(torch.zeros((), dtype=self.weight_dtype)).dtype
        if found is not self.weight_dtype:
            hint = 'Write policy.set_weight_dtype(torch.float64), or PrecisionParams(weights="float64") for a run.'
            rule = "must keep its number format, which statistics, optimizers and files go by"
            raise ParamsError(f"{type(self).__name__}: {rule}; got {dtype_name(found)}. {hint}")
        return super()._apply(fn, recurse)  # type: ignore[no-any-return, no-untyped-call]  # torch ships no type of it

    def to_plain(self) -> dict[str, Any]:
        """Return the class and the arguments of the constructor as plain data, for `rl.load_policy`."""
        plain: dict[str, Any] = json.loads(self._construction)
        if "known" in plain["built"]:  # defaults of ours may change from release to release
            plain["options"] |= {"net": json.loads(self._net), "hidden_sizes": None, "activation": None}
        return plain

    def save(self, path: str | Path) -> None:
        """Write the policy with its normalisers to one safetensors file; a `CheckpointError` if that fails."""
        path = checked(f"{type(self).__name__}.save", "path", path, AnyPath)
        with write_errors(Path(path), CheckpointError):
            state = {"construction": self.to_plain(), "policy": dict(self.state_dict())}
            write_state(path, "policy", state | dtype_entry(self.weight_dtype))

    def load(self, path: str | Path, *, strict: bool = True) -> IncompatibleKeys:
        """Restore the policy from its file or an algorithm's, or raise a `CheckpointError`; see `Algorithm.load`."""
        name = f"{type(self).__name__}.load"
        path, strict = checked(name, "path", path, AnyPath), checked(name, "strict", strict, Flag)
        state = read_state(path, "policy", CheckpointError, or_kind="algorithm")
        if strict:
            saved_dtype(f"{path}", state, self.weight_dtype)
        return load_module(f"{path}: policy", self, state.get("policy"), strict)

    def __getstate__(self) -> dict[str, Any]:
        """Copy and pickle without the reference to a trainer, and without the functions that made the networks."""
        return self.__dict__ | {"progress": no_progress, "net_params": None}

    def normalize(self, obs: Tree) -> Tree:
        """Standardise observations, a tree [B, ...], if this policy does so."""
        return obs if self.obs_normalizer is None else self.obs_normalizer(obs)

    def scale_reward(self, reward: Tensor) -> Tensor:
        """Divide rewards, of any shape, by the standard deviation of the return, if this policy does so."""
        normalizer: RewardScaler | None = self.reward_normalizer
        return reward if normalizer is None else normalizer(reward)

    def scale(self, action: Tensor) -> Tensor:
        """Map actions [B, ...] from the scale of the networks to the env's scale."""
        return action

    def unscale(self, action: Tensor) -> Tensor:
        """Map actions [B, ...] from the env's scale to the scale of the networks; the inverse of `scale`."""
        return action

    @property
    def device(self) -> torch.device:
        """The device of the parameters."""
        return next(self.parameters()).device


def _spaces_of(policy_class: Any, envs: Any) -> tuple[Space, Space]:
    found: Any = tuple(getattr(envs, f"single_{kind}_space", None) for kind in ("observation", "action"))
    if all(isinstance(space, gym.Space) for space in found):
        return found  # type: ignore[no-any-return]  # two spaces, as was just seen
    hint = f"Make one with rl.make_vec({repr(envs) if isinstance(envs, str) else 'env_id'}, num_envs=1)."
    if isinstance(envs, gym.Env):
        hint = "It is a single env: make several with rl.make_vec(env_id_or_factory, num_envs=1)."
    raise ParamsError.about(f"{policy_class.__name__}.for_envs", "envs", "must be a gymnasium VectorEnv", envs, hint)


def _finite_bounds(space: Space) -> tuple[Tensor, Tensor] | tuple[None, None]:
    """Return the least and the greatest float32 numbers within a Box; None where there is nothing to clip to."""
    if not isinstance(space, spaces.Box) or not np.isfinite([space.low, space.high]).any():
        return None, None
    low, high = space.low.astype(np.float32), space.high.astype(np.float32)
    # The float32 nearest to a bound of another format may lie beyond it.
    low = np.where(low < space.low, np.nextafter(low, np.float32(np.inf)), low)
    high = np.where(high > space.high, np.nextafter(high, np.float32(-np.inf)), high)
    return torch.from_numpy(low), torch.from_numpy(high)


def _map_checked(check: CheckLeaf, owner: str, space: Tree, obs: Any, unseen: Collection[str] = ()) -> Tree:
    """Return the tree of `check(owner, leaf space, leaf)`; None for leaves that are missing and may be."""
    if isinstance(space, dict):
        if not isinstance(obs, Mapping) or space.keys() - set(obs) - set(unseen):
            raise SpaceError(f"{owner}: expected a dict with the keys {list(space)}, got {readable(obs)}")
        found = {key: _map_checked(check, f'{owner}["{key}"]', space[key], obs[key]) for key in space if key in obs}
        return {key: found[key] if key in found else map_tree(lambda _: None, part) for key, part in space.items()}
    if isinstance(space, tuple):
        if not isinstance(obs, tuple | list) or len(obs) != len(space):
            raise SpaceError(f"{owner}: expected a tuple of {len(space)}, got {readable(obs)}")
        return tuple(_map_checked(check, f"{owner}[{i}]", *pair) for i, pair in enumerate(zip(space, obs, strict=True)))
    return check(owner, space, obs)


def _check_tensor(owner: str, space: Space, obs: Any) -> None:
    shape = leaf_shape(space)
    if not isinstance(obs, Tensor):
        hint = "policy.predict(obs) takes NumPy arrays and lists."
        raise SpaceError(f"{owner}: expected a tensor {('N', *shape)}, got {readable(obs)}. {hint}")
    if obs.shape[1:] != shape or not obs.dim():
        is_single = obs.shape == shape
        hint = "Give it an axis in front: obs.unsqueeze(0)." if is_single else "The policy was made for these spaces."
        raise SpaceError(f"{owner}: expected shape {('N', *shape)}, got {tuple(obs.shape)}. {hint}")


def _checked_array(owner: str, space: Space, obs: Any) -> Array:
    """Return one observation of a leaf, or several, as an array that the space holds."""
    try:
        value: Array = np.asarray(obs)
    except ValueError as error:
        hint = "env.reset() returns (obs, info): pass the first." if isinstance(obs, tuple) else "Pass an array."
        raise SpaceError(f"{owner}: expected an array, got {readable(obs)}. {hint}") from error
    shape, dtype = leaf_shape(space), numpy_dtype(space)
    num_axes = value.ndim - len(shape)
    is_cast = np.can_cast(value.dtype, dtype, "same_kind") or (value.dtype.kind in "iu" and dtype.kind in "iu")
    if num_axes not in (0, 1) or value.shape[num_axes:] != shape or not is_cast:
        expected = f"{space.dtype} {shape}, or {('N', *shape)} for several"
        hint = "Pass what env.reset() or env.step() returned first; the policy was made for these spaces."
        is_object = value.dtype.kind == "O" and value.ndim == 0
        found = readable(value.item()) if is_object else f"{value.dtype} {value.shape}"
        raise SpaceError(f"{owner}: expected {expected}; got {found}. {hint}")
    if value.dtype.kind == "f" and not (np.abs(value) <= np.finfo(dtype).max).all():
        found = "NaN or infinity" if not np.isfinite(value).all() else f"a number that is infinite in {dtype}"
        raise NonFiniteError(f"{owner}: holds {found}: {readable(value)}. Where does it come from?")
    if not isinstance(space, spaces.Box) and ValueRange(space).outside(value).any():
        raise SpaceError(f"{owner}: expected choices of {space}, got {readable(value)}")
    return value


def _has_mask(owner: str, observation_space: Space, action_space: Space) -> bool:
    """Return whether observations hold an action mask; a `SpaceError` unless it has one flag for each choice."""
    if not isinstance(observation_space, spaces.Dict) or ACTION_MASK not in observation_space.spaces:
        return False
    leaf, sizes = observation_space[ACTION_MASK], num_choices(action_space)
    if sizes is not None and isinstance(leaf, spaces.Box | spaces.MultiBinary) and leaf.shape == (sum(sizes),):
        return True
    expected = "be left out, or have another name, as actions are no choices"
    if sizes is not None:
        expected = f"be a MultiBinary({sum(sizes)}), or a Box of shape ({sum(sizes)},): a flag for each choice"
    raise SpaceError(f'{owner}.observation_space["{ACTION_MASK}"]: must {expected}; got {leaf} for {action_space}')
