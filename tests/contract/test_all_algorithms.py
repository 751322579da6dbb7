"""One contract for all algorithms: update trains, is deterministic, its state is complete, truncation bootstraps."""

import dataclasses
from collections.abc import Callable
from typing import Any

import gymnasium as gym
import numpy as np
import pytest
import torch

import rltrainer as rl
from rltrainer.errors import NonFiniteError
from tests import batches
from tests.fakes import PAPERS_RND, built, policy_options

OBS = gym.spaces.Dict(
    position=gym.spaces.Box(-1.0, 1.0, (3,), np.float32), mode=gym.spaces.Discrete(3), flags=gym.spaces.MultiBinary(2)
)
BOX = gym.spaces.Box(np.array([-2.0, -1.0], np.float32), np.array([2.0, 3.0], np.float32))
DISCRETE = gym.spaces.Discrete(3, start=1)
MULTI_DISCRETE = gym.spaces.MultiDiscrete([2, 3])
MULTI_BINARY = gym.spaces.MultiBinary(2)

Make = Callable[[], Any]


def maker(algorithm: type[Any], action_space: Any, params: Any = None, policy: Any = None) -> Make:
    options, policy_class = policy_options(algorithm, params), policy or algorithm.policy_class
    options = {"hidden_sizes": (16,), "normalize_obs": True, **options}
    return lambda: built(algorithm, policy_class.for_spaces(OBS, action_space, **options), params)


SPACES = {"": DISCRETE, "_box": BOX, "_multi": MULTI_DISCRETE, "_binary": MULTI_BINARY}
ON_POLICY: dict[str, Make] = {
    f"{name}{kind}": maker(algorithm, SPACES[kind], params.get(kind))
    for name, algorithm, num_kinds, params in (
        ("ppo", rl.PPO, 4, {"_box": rl.PPOParams(value_clip=0.2, clip=rl.LinearSchedule(0.2))}),
        ("a2c", rl.A2C, 4, {}),
        ("impala", rl.IMPALA, 3, {}),
        ("trpo", rl.TRPO, 4, {}),
        ("recurrent_ppo", rl.RecurrentPPO, 3, {"_box": rl.PPOParams(value_clip=0.2)}),
        ("reinforce", rl.REINFORCE, 3, {}),
        ("pqn", rl.PQN, 1, {}),
        ("recurrent_pqn", rl.RecurrentPQN, 1, {}),
    )
    for kind in list(SPACES)[:num_kinds]
}
ON_POLICY |= {
    "distillation": maker(rl.Distillation, DISCRETE, policy=rl.Actor),
    "distillation_box": maker(rl.Distillation, BOX, rl.DistillationParams(loss="huber"), rl.ActorCritic),
    "recurrent_distillation": maker(rl.Distillation, BOX, policy=rl.RecurrentActorCritic),
}
STUDENTS = tuple(name for name in ON_POLICY if "distillation" in name)
ON_POLICY["rnd"] = lambda: rl.RND(ON_POLICY["ppo"]())
# Each rank draws its own share of its steps, so that two of them train as one with all steps only.
ON_POLICY["rnd_box"] = lambda: rl.RND(ON_POLICY["ppo_box"](), dataclasses.replace(PAPERS_RND, share=1.0))
OFF_POLICY: dict[str, Make] = {
    "dqn": maker(rl.DQN, DISCRETE), "double_dqn": maker(rl.DoubleDQN, DISCRETE), "c51": maker(rl.C51, DISCRETE),
    "qr_dqn": maker(rl.QRDQN, DISCRETE), "discrete_sac": maker(rl.DiscreteSAC, DISCRETE),
    "discrete_cql": maker(rl.DiscreteCQL, DISCRETE), "sac": maker(rl.SAC, BOX), "ddpg": maker(rl.DDPG, BOX),
    "td3": maker(rl.TD3, BOX, rl.TD3Params(actor_update_interval=1)), "tqc": maker(rl.TQC, BOX),
    "redq": maker(rl.REDQ, BOX, rl.REDQParams(actor_update_interval=1)), "iql": maker(rl.IQL, BOX),
    "cql": maker(rl.CQL, BOX, rl.CQLParams(num_sampled_actions=2)),
    "td3_bc": maker(rl.TD3BC, BOX, rl.TD3BCParams(actor_update_interval=1)),
    "bc": maker(rl.BC, DISCRETE, policy=rl.Actor), "bc_box": maker(rl.BC, BOX, policy=rl.Actor),
    "bc_multi": maker(rl.BC, MULTI_DISCRETE, policy=rl.ActorCritic),
    "bc_binary": maker(rl.BC, MULTI_BINARY, policy=rl.Actor),
    "bc_actor_critic": maker(rl.BC, BOX, policy=rl.ActorCritic),
    "bc_squashed": maker(rl.BC, BOX, policy=rl.SquashedActorCritic),
    "bc_gaussian": maker(rl.BC, BOX, policy=rl.GaussianActorCritic),
    "rebrac": maker(rl.ReBRAC, BOX, rl.ReBRACParams(actor_update_interval=1, lr=3e-4)),
    "crossq": maker(rl.CrossQ, BOX, rl.CrossQParams(actor_update_interval=1)),
    "flashsac": maker(rl.FlashSAC, BOX, rl.FlashSACParams(actor_update_interval=1)),
    "xqc": maker(rl.XQC, BOX, rl.XQCParams(actor_update_interval=1)), "simbav2": maker(rl.SimbaV2, BOX),
    "cal_ql": maker(rl.CalQL, BOX, rl.CalQLParams(num_sampled_actions=2)),
    "fqe": maker(rl.FQE, DISCRETE, policy=rl.Actor),
    "fql": maker(rl.FQL, BOX), "fql_chunks": maker(rl.FQL, BOX, rl.FQLParams(chunk_length=2)),
}  # fmt: skip
ALL = ON_POLICY | OFF_POLICY
WITHOUT_RANKS = ["crossq", "flashsac", "xqc"]
"""Algorithms that a run of several shards refuses: each would have statistics of its own batch."""
# The successors of ended episodes are part of that batch.
WITH_TARGETS = [name for name in OFF_POLICY if not name.startswith(("bc", *WITHOUT_RANKS))]


def obs_batch(*shape: int, generator: torch.Generator) -> dict[str, torch.Tensor]:
    """Return observations in the order of the Dict space (sorted by key)."""
    return {
        "flags": torch.randint(0, 2, (*shape, 2), generator=generator).to(torch.int8),
        "mode": torch.randint(0, 3, shape, generator=generator),
        "position": torch.rand((*shape, 3), generator=generator) * 2 - 1,
    }


def action_batch(space: Any, *shape: int, generator: torch.Generator) -> torch.Tensor:
    if isinstance(space, gym.spaces.Discrete):
        return torch.randint(1, 4, shape, generator=generator)
    if isinstance(space, gym.spaces.MultiDiscrete):
        return torch.randint(0, 2, (*shape, 2), generator=generator)
    if isinstance(space, gym.spaces.MultiBinary):
        return torch.randint(0, 2, (*shape, 2), generator=generator).to(torch.int8)
    return torch.rand((*shape, 2), generator=generator) * 2 - 1


def transitions(algorithm: Any, *shape: int, seed: int = 0, **changes: Any) -> rl.Transitions:
    g, space = torch.Generator().manual_seed(seed), algorithm.policy.action_space
    terminated = torch.rand(shape, generator=g) < 0.3
    fields: dict[str, Any] = {
        "obs": obs_batch(*shape, generator=g), "action": action_batch(space, *shape, generator=g),
        "reward": torch.rand(shape, generator=g), "next_obs": obs_batch(*shape, generator=g),
        "terminated": terminated, "discount": 0.99 * (~terminated).float(),
    }  # fmt: skip
    fields |= batches.of_data(algorithm, fields["action"])
    return batches.transitions(**(fields | changes))


def rollout(algorithm: Any, num_steps: int = 8, num_envs: int = 3, seed: int = 0, **changes: Any) -> rl.Rollout:
    g, shape = torch.Generator().manual_seed(seed), (num_steps, num_envs)
    space, known = algorithm.policy.action_space, algorithm.policy.columns
    terminated = torch.zeros(shape, dtype=torch.bool)
    terminated[3, 1] = True
    fields: dict[str, Any] = {
        "obs": obs_batch(*shape, generator=g), "action": action_batch(space, *shape, generator=g),
        "reward": torch.rand(shape, generator=g), "terminated": terminated,
        "last_obs": obs_batch(num_envs, generator=g), "final_obs": obs_batch(1, generator=g),
        "final_index": torch.tensor([3 * num_envs + 1]),
    }  # fmt: skip
    fields["extra"] = {name: torch.rand(*shape, *known[name][0], generator=g) for name in algorithm.columns}
    return batches.rollout(**(fields | changes))


def update(algorithm: Any, seed: int = 0, **changes: Any) -> rl.UpdateResult:
    if isinstance(algorithm, rl.OnPolicyAlgorithm):
        size = 16 if algorithm.policy.is_recurrent else 10  # whole envs
        return algorithm.update(rollout(algorithm, seed=seed, **changes), batch_size=size, repeat=2)
    return algorithm.update(transitions(algorithm, 16, seed=seed, **changes))


def make(name: str) -> Any:
    rl.seed(7)
    algorithm = ALL[name]()
    algorithm.seed(3)
    return algorithm


def flat_state(state: Any, name: str = "") -> dict[str, Any]:
    if isinstance(state, dict):
        return {k: v for key, value in state.items() for k, v in flat_state(value, f"{name}.{key}").items()}
    if isinstance(state, list | tuple):
        return {k: v for i, value in enumerate(state) for k, v in flat_state(value, f"{name}.{i}").items()}
    return {name: state}


def assert_same_state(one: Any, other: Any) -> None:
    flat, flat_other = flat_state(one.state_dict()), flat_state(other.state_dict())
    assert flat.keys() == flat_other.keys()
    for name, value in flat.items():
        same = torch.equal(value, flat_other[name]) if isinstance(value, torch.Tensor) else value == flat_other[name]
        assert same, name


def trained_parameters(algorithm: Any) -> dict[str, torch.Tensor]:
    return {name: p.detach().clone() for name, p in batches.trained(algorithm).named_parameters()}


@pytest.mark.parametrize("name", ALL)
def test_update_changes_every_parameter_of_the_policy(name: str) -> None:
    """Behaviour cloning and distillation change those of the actor, but for a student's standard deviation."""
    algorithm = make(name)
    before = trained_parameters(algorithm)
    for seed in range(3):
        result = update(algorithm, seed=seed)
    assert all(np.isfinite(value) for value in result.floats().values())
    same = [key for key, value in trained_parameters(algorithm).items() if torch.equal(value, before[key])]
    is_copied, no_loss = name.startswith(("bc", *STUDENTS)), "log_std" if name in STUDENTS else "-"
    assert same == [key for key in before if (is_copied and not key.startswith("actor")) or key.endswith(no_loss)]


@pytest.mark.parametrize("name", ALL)
def test_update_is_deterministic_under_a_seed(name: str) -> None:
    one, other = make(name), make(name)
    for seed in range(2):
        assert update(one, seed).floats() == update(other, seed).floats()
    assert_same_state(one, other)


@pytest.mark.parametrize("name", ALL)
def test_loading_never_replaces_a_parameter(name: str) -> None:
    algorithm = make(name)
    before = [id(p) for p in algorithm.policy.parameters()]
    algorithm.load_state_dict(make(name).state_dict())
    assert [id(p) for p in algorithm.policy.parameters()] == before


@pytest.mark.parametrize("name", WITH_TARGETS)
def test_next_obs_matters_unless_terminated(name: str) -> None:
    def td_error(discount: float, next_seed: int) -> torch.Tensor:
        algorithm = make(name)
        next_obs = obs_batch(16, generator=torch.Generator().manual_seed(next_seed))
        changes = {"next_obs": next_obs, "discount": torch.full((16,), discount)}
        error = algorithm.update(transitions(algorithm, 16, **changes)).td_error
        assert error is not None
        return error

    # Up to rounding: where values are distributions, their probabilities add up to nearly 1.
    torch.testing.assert_close(td_error(0.0, next_seed=1), td_error(0.0, next_seed=2))
    assert not torch.allclose(td_error(0.99, next_seed=1), td_error(0.99, next_seed=2))


@pytest.mark.parametrize(
    "name", [name for name in ON_POLICY if not name.startswith(("reinforce", "rnd", *STUDENTS))]
)  # no critic
def test_the_final_obs_matters_only_where_the_episode_was_cut(name: str) -> None:
    def weights(terminated: bool, final_seed: int) -> dict[str, torch.Tensor]:
        algorithm = make(name)
        where = torch.zeros((8, 3), dtype=torch.bool)
        where[3, 1] = True
        final_obs = obs_batch(1, generator=torch.Generator().manual_seed(final_seed))
        update(algorithm, final_obs=final_obs, terminated=where & terminated, truncated=where & (not terminated))
        return trained_parameters(algorithm)

    def same(one: dict[str, torch.Tensor], other: dict[str, torch.Tensor]) -> bool:
        return all(torch.equal(one[key], other[key]) for key in one)

    assert same(weights(True, 1), weights(True, 2))
    assert not same(weights(False, 1), weights(False, 2))


@pytest.mark.parametrize("name", OFF_POLICY)
def test_k_batches_equal_k_updates(name: str) -> None:
    one, other = make(name), make(name)
    together = transitions(one, 3, 16)
    one_by_one = [other.update(together[k]) for k in range(3)]
    result = one.update(together)
    assert_same_state(one, other)
    assert result.num_gradient_steps == 3
    for key, value in result.floats().items():
        assert value == pytest.approx(np.mean([step.floats()[key] for step in one_by_one]), rel=1e-5)


@pytest.mark.parametrize("name", [name for name in ON_POLICY if not name.startswith("recurrent")])  # takes whole envs
def test_padding_weighs_nothing(name: str) -> None:
    """24 cells in minibatches of 10 are three of 8 with two cells of padding; equal to minibatches of 8."""
    one, other = make(name), make(name)
    padded = one.update(rollout(one), batch_size=10, repeat=1)
    exact = other.update(rollout(other), batch_size=8, repeat=1)
    assert padded.num_gradient_steps == exact.num_gradient_steps == 3
    for key, value in padded.floats().items():
        assert value == pytest.approx(exact.floats()[key], rel=1e-4, abs=1e-6)


@pytest.mark.parametrize("name", ON_POLICY)
def test_invalid_cells_are_not_trained_on(name: str) -> None:
    """What stands in a cell that an env spent on its reset makes no difference."""

    def weights(seed: int) -> dict[str, torch.Tensor]:
        algorithm = make(name)
        data = rollout(algorithm)
        data.valid[4, 1] = False  # the step after the episode's end in row 3
        garbage = torch.Generator().manual_seed(seed)
        data.reward[4, 1] = torch.rand((), generator=garbage)
        data.action[4, 1] = action_batch(algorithm.policy.action_space, generator=garbage)
        algorithm.update(data, batch_size=None, repeat=1)
        return trained_parameters(algorithm)

    one, other = weights(1), weights(2)
    assert all(torch.equal(one[key], other[key]) for key in one)


@pytest.mark.parametrize("name", ALL)
def test_a_step_that_is_not_finite_is_not_applied(name: str) -> None:
    algorithm = make(name)
    update(algorithm)
    before = trained_parameters(algorithm)
    if name in STUDENTS:  # which learn from no rewards
        algorithm.teacher.act = lambda obs: torch.full(obs["mode"].shape, torch.nan)
        algorithm.imitation_loss = lambda distribution, action: sum(x.sum(-1) for x in distribution.parameters) * action
    if isinstance(algorithm, rl.OnPolicyAlgorithm):
        changes: dict[str, Any] = {"reward": torch.full((8, 3), float("nan"))}
    elif name.startswith("bc"):
        changes = {"weight": torch.full((16,), float("nan"))}
    else:
        changes = {"reward": torch.full((16,), float("nan")), "weight": torch.full((16,), float("nan"))}
    with pytest.raises(NonFiniteError, match=r"gradient of .* is not finite \(loss = nan\); the step was not applied"):
        update(algorithm, **changes)
    assert all(torch.equal(before[key], value) for key, value in trained_parameters(algorithm).items())


@pytest.mark.parametrize("name", ALL)
def test_a_learning_rate_schedule_follows_progress(name: str) -> None:
    rl.seed(7)
    algorithm = ALL[name]()
    optimizer = algorithm._optimizers()[0]
    optimizer.schedule = rl.LinearSchedule(1e-3, 0.0)
    algorithm.attach(rl.UpdatePlan(progress=lambda: 0.25))
    update(algorithm)
    assert optimizer.method.lr == pytest.approx(7.5e-4)


@pytest.mark.parametrize("name", [name for name in ALL if not name.startswith("rnd")])  # made of an algorithm
def test_any_torch_optimizer_works(name: str) -> None:
    algorithm = make(name)
    changes = {"optimizer": lambda parameters: torch.optim.SGD(parameters, lr=1.0), "lr": 1e-2}
    params = dataclasses.replace(algorithm.params, **changes)
    other = built(type(algorithm), algorithm.policy, params)
    assert isinstance(other._optimizers()[0].method.optimizer, torch.optim.SGD)
    before = trained_parameters(other)
    update(other)
    assert any(not torch.equal(before[key], value) for key, value in trained_parameters(other).items())
