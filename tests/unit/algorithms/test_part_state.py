"""States of algorithms: misfits change nothing, loads are copies, and an algorithm holds nothing that is not saved."""

import copy
import random
from collections.abc import Callable
from pathlib import Path
from typing import Any

import gymnasium as gym
import numpy as np
import pytest
import torch
from torch import nn

import rltrainer as rl
from rltrainer.errors import CheckpointError, ParamsError
from tests import batches
from tests.contract.test_all_algorithms import flat_state, make, rollout, transitions

OBS = gym.spaces.Box(-1.0, 1.0, (3,), np.float32)
ACTION = gym.spaces.Box(-1.0, 1.0, (2,), np.float32)


def adam_w(parameters: Any) -> torch.optim.Optimizer:
    return torch.optim.AdamW(parameters, lr=0.1)


def two_groups(parameters: Any) -> torch.optim.Optimizer:
    first, *others = parameters
    return torch.optim.AdamW([{"params": [first], "weight_decay": 0.0}, {"params": others}], lr=0.1)


def groups_of_other_sizes(parameters: Any) -> torch.optim.Optimizer:
    first, others = list(parameters)[:2], list(parameters)[2:]
    return torch.optim.AdamW([{"params": first, "weight_decay": 0.0}, {"params": others}], lr=0.1)


def momentum(parameters: Any) -> torch.optim.Optimizer:
    return torch.optim.SGD(parameters, lr=0.1, momentum=0.9)


def batch(size: int = 4) -> rl.Transitions:
    generator = torch.Generator().manual_seed(1)
    obs, action, reward = (torch.rand(size, n, generator=generator) for n in (3, 2, 1))
    return batches.transitions(obs, action, reward[:, 0], next_obs=obs + 0.1)


def make_sac(optimizer: Any = None, seed: int = 0, num_steps: int = 2, **options: Any) -> rl.SAC:
    rl.seed(seed)
    policy = rl.SquashedActorCritic.for_spaces(OBS, ACTION, **({"hidden_sizes": (4,)} | options))
    algorithm = rl.SAC(policy, rl.SACParams(optimizer=optimizer))
    for _ in range(num_steps):
        algorithm.update(batch())
    return algorithm


def contents(algorithm: rl.Algorithm) -> dict[str, Any]:
    return flat_state(copy.deepcopy(algorithm.state_dict()))


def same(one: dict[str, Any], other: dict[str, Any]) -> bool:
    return one.keys() == other.keys() and all(
        torch.equal(value, other[name]) if isinstance(value, torch.Tensor) else value == other[name]
        for name, value in one.items()
    )


def assert_refused(algorithm: rl.Algorithm, state: Any, text: str) -> None:
    before = contents(algorithm)
    with pytest.raises(CheckpointError) as caught:
        algorithm.load_state_dict(state)
    assert text in str(caught.value)
    assert same(contents(algorithm), before)


def frozen(algorithm: rl.SAC) -> rl.SAC:
    next(algorithm.policy.actor.parameters()).requires_grad_(False)
    return algorithm


@pytest.mark.parametrize("optimizer", [None, adam_w, two_groups, momentum])
def test_a_state_comes_back_and_shares_no_memory(optimizer: Any) -> None:
    one, other = make_sac(optimizer), make_sac(optimizer, seed=1, num_steps=5)
    other.load_state_dict(one.state_dict())
    before = contents(one)
    assert same(before, contents(other))
    other.update(batch())
    assert same(contents(one), before)
    one.update(batch())
    assert same(contents(one), contents(other))


@pytest.mark.parametrize("optimizer", [None, adam_w])
def test_a_layer_that_is_frozen_in_one_of_them_is_named(optimizer: Any) -> None:
    text = "SAC.actor_optimizer.frozen: which of them are frozen differs from when it was saved."
    assert_refused(frozen(make_sac(optimizer)), make_sac(optimizer, seed=1).state_dict(), text)
    assert_refused(make_sac(optimizer), frozen(make_sac(optimizer, seed=1)).state_dict(), text)
    both = frozen(make_sac(optimizer))
    both.load_state_dict(frozen(make_sac(optimizer, seed=1, num_steps=0)).state_dict())
    both.load_state_dict(frozen(make_sac(optimizer, seed=1)).state_dict())


def test_a_layer_frozen_before_anything_was_trained_has_no_moments() -> None:
    def make(seed: int) -> rl.SAC:
        algorithm = frozen(make_sac(adam_w, seed=seed, num_steps=0))
        algorithm.update(batch())
        return algorithm

    one, other = make(1), make(2)
    other.load_state_dict(one.state_dict())
    assert same(contents(one), contents(other))
    assert len(one.state_dict()["actor_optimizer"]["state"]) == 3


@pytest.mark.parametrize(
    ("mine", "saved", "text"),
    [
        (two_groups, adam_w, "SAC.actor_optimizer: expected parameter groups of the sizes [1, 3], found [4]. Make the"),
        (adam_w, two_groups, "SAC.actor_optimizer: expected parameter groups of the sizes [4], found [1, 3]."),
        (two_groups, groups_of_other_sizes, "expected parameter groups of the sizes [1, 3], found [2, 2]."),
        (None, adam_w, "SAC.actor_optimizer: expected 'Adam', found 'AdamW'."),
        (adam_w, None, "SAC.actor_optimizer: expected 'AdamW', found 'Adam'."),
        (momentum, adam_w, "SAC.actor_optimizer: expected 'SGD', found 'AdamW'."),
        (torch.optim.Adam, None, "SAC.actor_optimizer.group_sizes: expected a list, found None"),
        (None, torch.optim.Adam, "SAC.actor_optimizer.mean: expected a tensor, found None"),
    ],
)
def test_another_optimizer_is_refused(mine: Any, saved: Any, text: str) -> None:
    assert_refused(make_sac(mine), make_sac(saved, seed=1).state_dict(), text)


def test_networks_of_other_sizes_and_names_are_refused() -> None:
    assert_refused(make_sac(), make_sac(seed=1, hidden_sizes=(5,)).state_dict(), "expected shape (4, 3), found (5, 3).")
    assert_refused(make_sac(), make_sac(seed=1, normalize_obs=True).state_dict(), "missing in the policy")
    assert_refused(make_sac(normalize_obs=True), make_sac(seed=1).state_dict(), "missing in the saved state")


def change(state: Any, path: str, value: Any) -> Any:
    keys = path.split("/")
    target = state
    for key in keys[:-1]:
        target = target[int(key) if isinstance(target, list) else key]
    if value is None:
        del target[keys[-1]]
    else:
        target[keys[-1]] = value(target[keys[-1]]) if callable(value) else value
    return state


DAMAGES: list[tuple[Any, str, Any, str]] = [
    (None, "generator", lambda x: x.float(), "SAC.generator: expected the state of a generator, found torch.float32"),
    (None, "generator", lambda x: torch.full_like(x, 255), "SAC.generator: not the state of a generator ("),
    (None, "generator", 3, "SAC.generator: expected the state of a generator, found int"),
    (None, "more", torch.zeros(1), "SAC: the state has 'more', which this SAC has not"),
    (None, "temperature", None, "SAC: the state has no 'temperature'"),
    (None, "temperature", 3, "SAC.temperature: expected a mapping, found 3"),
    (None, "temperature/log_alpha", lambda x: x.double(), "expected torch.float32, found torch.float64."),
    (None, "actor_optimizer/lr", "0.1", "SAC.actor_optimizer.lr: expected a number, found '0.1'"),
    (None, "actor_optimizer/lr", float("nan"), "optimizer.lr: expected a non-negative finite number, found nan"),
    (None, "actor_optimizer/mean", lambda x: x[:-1], "SAC.actor_optimizer.mean: expected shape (36,), found (35,)."),
    (None, "actor_optimizer/parameters", lambda x: x[::-1], "SAC.actor_optimizer.parameters: the names of what is"),
    (None, "actor_optimizer/loss_scale", torch.zeros(2), "actor_optimizer.loss_scale: expected shape (), found (2,)"),
    (None, "actor_optimizer/loss_scale", torch.tensor(-1.0), "SAC.actor_optimizer.loss_scale: is not positive"),
    (None, "actor_optimizer/num_skipped", torch.zeros(2), "actor_optimizer.num_skipped: expected shape (), found (2,)"),
    (
        None,
        "actor_optimizer/gathered",
        torch.zeros(3),
        "SAC.actor_optimizer.gathered: expected shape (37,), found (3,)",
    ),
    (None, "actor_optimizer/gathered", torch.zeros(37), "num_gathered: expected how many are gathered, found 0"),
    (None, "actor_optimizer/num_gathered", 2, "SAC.actor_optimizer.num_gathered: expected how many are gathered"),
    (None, "actor_optimizer/num_gathered", -1, "SAC.actor_optimizer.num_gathered: expected "),
    (None, "actor_optimizer/num_gathered", 1.5, "SAC.actor_optimizer.num_gathered: expected "),
    (adam_w, "actor_optimizer/state/0/exp_avg", None, "SAC.actor_optimizer.state.0: expected ['step', 'exp_avg'"),
    (adam_w, "actor_optimizer/state/0/more", 3, "SAC.actor_optimizer.state.0: expected ['step', 'exp_avg'"),
    (adam_w, "actor_optimizer/state/0/exp_avg", lambda x: x[:1], "exp_avg: expected shape (4, 3), found (1, 3)"),
    (adam_w, "actor_optimizer/state/0/exp_avg", lambda x: x * float("nan"), "state.0.exp_avg: holds NaN or infinity"),
    (adam_w, "actor_optimizer/state/0/step", 3, "state.0.step: expected a value like tensor("),
    (adam_w, "actor_optimizer/state/9", {}, "SAC.actor_optimizer: holds moments of 5 parameters, expected 4."),
    (adam_w, "actor_optimizer/groups/0/betas", [0.9], "betas: expected a value like (0.9, 0.999), found [0.9]"),
    (adam_w, "actor_optimizer/groups/0/unknown", 1, "SAC.actor_optimizer.groups.0: expected ['lr', 'betas'"),
    (adam_w, "actor_optimizer/state", [], "SAC.actor_optimizer.state: expected a mapping, found []"),
]


@pytest.mark.parametrize(("optimizer", "path", "value", "text"), DAMAGES)
def test_a_damaged_state_changes_nothing(optimizer: Any, path: str, value: Any, text: str) -> None:
    state = change(copy.deepcopy(make_sac(optimizer, seed=1).state_dict()), path, value)
    assert_refused(make_sac(optimizer), state, text)


def test_a_generator_of_another_kind_of_device_seeds_this_one_and_a_load_forgets_earlier_faults() -> None:
    state = copy.deepcopy(make_sac().state_dict())
    state["generator"] = torch.arange(16, dtype=torch.uint8)  # as on CUDA
    one, other = make_sac(seed=1), make_sac(seed=2)
    for algorithm in (one, other):
        algorithm.actor_optimizer._bad.num += 1
        algorithm.load_state_dict(state)
        algorithm.check_faults()
    assert torch.equal(one.generator.get_state(), other.generator.get_state())


def test_an_optimizer_that_is_tried_is_not_changed() -> None:
    steps: list[int] = []

    class Counting(torch.optim.SGD):
        def step(self, closure: Callable[[], float] | None = None) -> Any:
            steps.append(id(self))
            return super().step(closure)

    algorithm = make_sac(Counting)
    rng = torch.get_rng_state()
    weights = copy.deepcopy(algorithm.policy.state_dict())
    mine = {id(optimizer.method.optimizer) for optimizer in algorithm._optimizers()}
    steps.clear()
    algorithm.load_state_dict(algorithm.state_dict())
    assert not mine & set(steps)
    assert torch.equal(torch.get_rng_state(), rng)
    assert all(torch.equal(value, weights[name]) for name, value in algorithm.policy.state_dict().items())


LINEAR = nn.Linear(2, 2)
UNSAVED: dict[str, Callable[[Any], Any]] = {
    "[0]: a Linear": lambda a: [LINEAR],
    "['a']: a Tensor": lambda a: {"a": torch.zeros(())},
    "['a'][1]: a Parameter": lambda a: {"a": (1, nn.Parameter(torch.zeros(2)))},
    "[1][0]: a Optimizer": lambda a: [None, [a.make_optimizer(a.params, linear=LINEAR)]],
    "[1]: a Generator": lambda a: [1, torch.Generator()],
    ": a Adam": lambda a: torch.optim.Adam(a.policy.parameters()),
    ": a StepLR": lambda a: torch.optim.lr_scheduler.StepLR(torch.optim.SGD(LINEAR.parameters(), lr=1.0), 1),
    ": a Generator": lambda a: np.random.default_rng(0),
    ": a Random": lambda a: random.Random(0),
}


@pytest.mark.parametrize("text", UNSAVED)
def test_what_is_not_saved_is_named(text: str, tmp_path: Path) -> None:
    algorithm = make("sac")
    algorithm.thing = UNSAVED[text](algorithm)
    for call in (lambda: algorithm.attach(rl.UpdatePlan()), lambda: algorithm.save(tmp_path / "file")):
        with pytest.raises(ParamsError) as caught:
            call()
        expected = f"SAC.thing{text} here is not saved, so a resumed run would continue without it."
        assert str(caught.value).startswith(expected)


def test_what_is_saved_elsewhere_may_be_listed() -> None:
    algorithm = make("sac")
    algorithm.networks = [algorithm.policy.actor, algorithm.target_critic, algorithm.critic.ensemble]
    algorithm.weights = list(algorithm.policy.parameters())
    algorithm.optimizers = {"actor": algorithm.actor_optimizer}
    algorithm.sizes, algorithm.names = [1, 2.0, "x", None], {"a": np.zeros(3)}
    algorithm.attach(rl.UpdatePlan())
    algorithm.update(transitions(algorithm, 16))
    algorithm.state_dict()


class Silent(rl.BC):
    def gradient_step(self, batch: Any, noise: Any = None) -> Any:
        super().gradient_step(batch, noise)


class SilentA2C(rl.A2C):
    def gradient_step(self, batch: Any) -> Any:
        return super().gradient_step(batch).metrics


def test_a_gradient_step_that_returns_nothing_is_named() -> None:
    algorithm = Silent(make("bc").policy)
    text = r"^Silent\.gradient_step: must return an UpdateResult; got None \(NoneType\)\. End it with return UpdateRes"
    with pytest.raises(TypeError, match=text):
        algorithm.update(transitions(algorithm, 16))
    on_policy = SilentA2C(make("a2c").policy)
    with pytest.raises(TypeError, match=r"SilentA2C\.gradient_step: must return an UpdateResult; got \{"):
        on_policy.update(rollout(on_policy), batch_size=8, repeat=1)
