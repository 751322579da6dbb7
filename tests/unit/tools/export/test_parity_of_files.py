"""What the files of graphs return, by PyTorch and by ONNX Runtime, is what `policy.predict` returns."""

import inspect
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import onnxruntime
import pytest
import torch
from gymnasium import spaces

import rltrainer as rl
from rltrainer.spaces import ACTION_MASK, leaf_spaces, num_choices, numpy_dtype
from rltrainer.tools.export import draw_observations, draw_state, input_names, output_names, seen_part, to_tensors
from rltrainer.tree import leaves, map_tree
from tests.unit.tools.refusals import refuses

VECTOR = spaces.Box(np.array([-1.0, -1e6, -np.inf], np.float32), np.array([1.0, 1e6, np.inf], np.float32))
TREE = spaces.Dict(
    position=spaces.Box(-1.0, 1.0, (2, 2), np.float64),
    mode=spaces.Discrete(3, start=-1),
    pair=spaces.Tuple((spaces.MultiBinary(2), spaces.MultiDiscrete([2, 3]))),
    number=spaces.Box(0, 9, (2,), np.int32),
)
IMAGE = spaces.Dict(cam=spaces.Box(0, 255, (36, 36, 3), np.uint8), speed=spaces.Box(-1.0, 1.0, ()))
BOX = spaces.Box(np.array([-2.0, 0.0], np.float32), np.array([-1.0, 0.5], np.float32))
DOUBLE = spaces.Box(np.array([-2.0, 0.1]), np.array([-1.1, 0.7]), dtype=np.float64)
DISCRETE, CHOICES = spaces.Discrete(3, start=5), spaces.MultiDiscrete([2, 3], dtype=np.int32, start=[1, -4])


def masked(num: int, space: spaces.Dict = TREE) -> spaces.Dict:
    return spaces.Dict({**space.spaces, ACTION_MASK: spaces.MultiBinary(num)})


class Body(torch.nn.Module):
    """An encoder as users write it."""

    def __init__(self, space: spaces.Box) -> None:
        super().__init__()
        self.linear = torch.nn.Linear(int(np.prod(space.shape)), 4)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        assert x.dim() > 1, "not one observation"
        return torch.nn.functional.dropout(self.linear(x.view(len(x), -1)).relu(), 0.5, self.training)


class Whole(torch.nn.Module):
    """An encoder of a whole observation, as users write it."""

    def __init__(self, space: spaces.Dict) -> None:
        super().__init__()
        self.linear = torch.nn.Linear(4, 4)

    def forward(self, obs: dict[str, Any]) -> torch.Tensor:
        flags, (first, second) = obs["pair"][0].float(), obs["pair"][1].unbind(1)
        return self.linear(torch.cat([flags * obs["mode"].unsqueeze(1), torch.stack([first, second], 1)], 1))


def encoder(space: Any) -> torch.nn.Module | None:
    return Body(space) if isinstance(space, spaces.Box) and space.dtype.kind == "f" else None


WHOLE = rl.NetParams(obs_encoder=Whole, keys=("mode", "pair"))
RESIDUAL = rl.NetParams(norm="unit_residual")
NET = rl.NetParams(hidden_sizes=(8,), norm="layer", dropout=0.1, keys=("mode", "pair"))
CASES: dict[str, tuple[Callable[..., Any], Any, Any, dict[str, Any]]] = {
    "actor": (rl.Actor, TREE, CHOICES, {"normalize_obs": True}),
    "actor_sde": (rl.Actor, VECTOR, BOX, {"use_sde": True}),
    "actor_critic": (rl.ActorCritic, VECTOR, DOUBLE, {"normalize_obs": True}),
    "actor_critic_float16": (rl.ActorCritic, VECTOR, spaces.Box(-0.1, 0.3, (2,), np.float16), {}),
    "actor_critic_unbounded": (rl.ActorCritic, VECTOR, spaces.Box(-np.inf, np.inf, (1,)), {}),
    "actor_critic_mask": (rl.ActorCritic, masked(3), DISCRETE, {"normalize_obs": True}),
    "actor_critic_masks": (rl.ActorCritic, masked(5), CHOICES, {}),
    "actor_critic_flags": (rl.ActorCritic, masked(6), spaces.MultiBinary(3), {}),
    "actor_critic_image": (rl.ActorCritic, IMAGE, DISCRETE, {"share_encoder": True}),
    "actor_critic_keys": (rl.ActorCritic, masked(3), DISCRETE, {"net": NET, "critic_net": rl.NetParams()}),
    "actor_critic_encoder": (rl.ActorCritic, VECTOR, BOX, {"net": rl.NetParams(encoder=encoder)}),
    "actor_critic_obs_encoder": (rl.ActorCritic, masked(3), DISCRETE, {"net": WHOLE}),
    "deterministic": (rl.DeterministicActorCritic, VECTOR, BOX, {}),
    "flow": (rl.FlowActorCritic, TREE, BOX, {"normalize_obs": True}),
    "flow_chunks": (rl.FlowActorCritic, VECTOR, BOX, {"chunk_length": 3}),
    "gaussian": (rl.GaussianActorCritic, TREE, BOX, {}),
    "squashed": (rl.SquashedActorCritic, VECTOR, DOUBLE, {"normalize_obs": True}),
    "squashed_batch_renorm": (rl.SquashedActorCritic, VECTOR, BOX, {"net": rl.NetParams(norm="batch_renorm")}),
    "categorical_unit_batch": (rl.CategoricalActorCritic, VECTOR, BOX, {"net": rl.NetParams(norm="unit_batch")}),
    "categorical_unit_lerp": (
        rl.CategoricalActorCritic,
        VECTOR,
        BOX,
        {"net": rl.NetParams(norm="unit_lerp"), "smooth_log_std": True, "normalize_obs": True},
    ),
    "categorical_residual": (rl.CategoricalActorCritic, VECTOR, BOX, {"net": RESIDUAL, "noise_repeat": 4}),
    "squashed_sde": (rl.SquashedActorCritic, spaces.Discrete(4, start=2), BOX, {"use_sde": True}),
    "discrete": (rl.DiscreteActorCritic, masked(3), DISCRETE, {}),
    "q": (rl.QNetwork, masked(3), DISCRETE, {"dueling": True}),
    "q_norm": (rl.QNetwork, VECTOR, DISCRETE, rl.PQN.policy_options),
    "q_categorical": (rl.CategoricalQNetwork, VECTOR, DISCRETE, {"v_min": -2.0, "v_max": 2.0, "num_atoms": 5}),
    "q_quantile": (rl.QuantileQNetwork, masked(3), DISCRETE, {"num_quantiles": 5}),
    "recurrent_q": (rl.RecurrentQNetwork, masked(3), DISCRETE, {"normalize_obs": True, "cell_size": 4}),
    "recurrent_gru": (rl.RecurrentActorCritic, masked(3), DISCRETE, {"normalize_obs": True, "cell_size": 4}),
    "recurrent_lstm": (rl.RecurrentActorCritic, VECTOR, BOX, {"cell": "lstm", "cell_size": 4, "share_cell": True}),
}
FORMATS = [(name, "float32") for name in CASES if name != "recurrent_gru"]
FORMATS += [("squashed", "float64"), ("recurrent_gru", "float64")]
"""What each case is tried in; `recurrent_q` has a GRU in float32."""


def test_every_class_of_policies_is_tried() -> None:
    classes = [value for name in rl.__all__ if inspect.isclass(value := getattr(rl, name))]
    concrete = {c for c in classes if issubclass(c, rl.Policy) and not inspect.isabstract(c)}
    assert concrete == {case[0] for case in CASES.values()}


def policy_of(name: str, *, seed: int = 1) -> Any:
    """Return a policy with weights so large that actions reach their bounds, and statistics of some observations."""
    make, observation_space, action_space, options = CASES[name]
    rl.seed(seed)
    if "net" not in options:
        options = {"hidden_sizes": (8,), **options}
    policy = make(observation_space, action_space, **options)
    with torch.no_grad():
        for parameter in policy.actor.parameters() if hasattr(policy, "actor") else policy.parameters():
            parameter.normal_(0.0, 0.5)
    if policy.obs_normalizer is not None:
        policy.obs_normalizer.update(to_tensors(draw_observations(policy, 50, seed=9)))
    return policy


def limits(policy: Any) -> Any:
    """Return an observation at the lower limits and one at the upper ones, masks with one choice that is allowed."""

    def both(space: Any) -> Any:
        if isinstance(space, spaces.Box):
            values = np.clip([space.low, space.high], -1e9, 1e9)
        elif isinstance(space, spaces.MultiBinary):
            values = np.stack([np.zeros(space.shape), np.ones(space.shape)])
        else:
            sizes = space.n if isinstance(space, spaces.Discrete) else space.nvec
            values = np.stack([space.start, space.start + sizes - 1])
        return values.astype(numpy_dtype(space))

    obs = map_tree(both, seen_part(policy, leaf_spaces(policy.observation_space)))
    if policy.has_mask:
        sizes = num_choices(policy.action_space)
        flags = [[np.eye(n, dtype=np.int8)[i] for n in sizes] for i in (0, -1)]
        obs[ACTION_MASK] = np.stack([np.concatenate(row) for row in flags])
    return obs


def by_torch(path: Path) -> Callable[[Any, Any], Any]:
    graph = torch.export.load(path).module()

    def run(obs: Any, state: Any) -> Any:
        outputs = graph(to_tensors(obs), *map(torch.from_numpy, state))
        return [output.numpy() for output in (outputs if state else [outputs])]

    return run


def by_onnx(path: Path, policy: Any) -> Callable[[Any, Any], Any]:
    session = onnxruntime.InferenceSession(path, providers=["CPUExecutionProvider"])
    names = input_names(policy)
    assert [each.name for each in session.get_inputs()] == names
    assert [each.name for each in session.get_outputs()] == output_names(policy)
    return lambda obs, state: session.run(None, dict(zip(names, [*leaves(obs), *state], strict=True)))


def check(policy: Any, run: Callable[[Any, Any], Any]) -> None:
    batches = [(draw_observations(policy, num, seed=num), draw_state(policy, num)) for num in (1, 2, 7)]
    for obs, state in [*batches, (limits(policy), draw_state(policy, 2))]:
        expected = policy.predict(obs, *state)
        expected = list(expected) if state else [expected]
        for here, there in zip(expected, run(obs, state), strict=True):
            assert (here.shape, here.dtype) == (there.shape, there.dtype)
            tolerance = 1e-3 if here.dtype == np.float16 else 1e-5  # which has 11 bits
            np.testing.assert_allclose(here, there, rtol=tolerance, atol=tolerance)
        assert all(policy.action_space.contains(action) for action in run(obs, state)[0])


@pytest.mark.parametrize(("name", "weights"), FORMATS)
def test_both_files_act_as_predict_does(name: str, weights: str, tmp_path: Path) -> None:
    policy = policy_of(name)
    policy.set_weight_dtype(getattr(torch, weights))
    rl.export_torch(policy, tmp_path / "policy.pt2")
    check(policy, by_torch(tmp_path / "policy.pt2"))
    rl.export_onnx(policy, tmp_path / "policy.onnx")
    check(policy, by_onnx(tmp_path / "policy.onnx", policy))


def test_a_file_of_another_policy_is_found_out(tmp_path: Path) -> None:
    rl.export_torch(policy_of("squashed", seed=2), tmp_path / "policy.pt2")
    refuses(AssertionError, "Not equal to tolerance", check, policy_of("squashed"), by_torch(tmp_path / "policy.pt2"))


def test_a_recurrent_policy_goes_through_an_episode_alike(tmp_path: Path) -> None:
    policy = policy_of("recurrent_lstm")
    rl.export_onnx(policy, tmp_path / "policy.onnx")
    session = onnxruntime.InferenceSession(tmp_path / "policy.onnx")
    memory, state = policy.predict(draw_observations(policy, 1))[1], None
    assert session.get_inputs()[1].shape == ["batch", memory.shape[1]]
    there = np.zeros_like(memory)
    for step in range(20):
        obs = draw_observations(policy, 1, seed=step)
        action, state = policy.predict(obs, state)
        found, there = session.run(None, {"obs": obs, "state": there})
        np.testing.assert_allclose(found, action, rtol=1e-5, atol=1e-5)
    np.testing.assert_allclose(there, state, rtol=1e-5, atol=1e-5)
