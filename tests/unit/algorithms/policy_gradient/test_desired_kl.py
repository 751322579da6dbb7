"""PPO's `desired_kl`: the learning rate follows the exact divergence between the old policy and the new one."""

import copy
import itertools
from typing import Any

import gymnasium as gym
import numpy as np
import pytest
import torch
from torch.nn.utils import parameters_to_vector

import rltrainer as rl
from rltrainer.functional.trust_region import adapted_rate
from tests import batches

DESIRED = 2e-4
OBS = gym.spaces.Box(-1.0, 1.0, (3,), np.float32)
MASKED = gym.spaces.Dict({"x": OBS, "action_mask": gym.spaces.MultiBinary(3)})
SPACES: dict[str, gym.Space[Any]] = {
    "discrete": gym.spaces.Discrete(3, start=2), "multi-discrete": gym.spaces.MultiDiscrete([2, 3]),
    "binary": gym.spaces.MultiBinary(2), "box": gym.spaces.Box(-1.0, 1.0, (2,), np.float32),
}  # fmt: skip


@pytest.mark.parametrize(("rate", "kl", "expected"), [
    (1e-3, 0.03, 6.667e-4), (1e-3, 0.004, 1.5e-3), (1e-3, 0.01, 1e-3), (1e-3, 0.02, 1e-3), (1e-3, 0.005, 1e-3),
    (1e-3, 0.0, 1e-3), (1e-3, -1e-9, 1e-3), (1e-3, float("nan"), 1e-3),
    (1.2e-5, 1.0, 1e-5), (1e-5, 1.0, 1e-5), (9e-3, 1e-6, 1e-2), (1e-2, 1e-6, 1e-2),
])  # fmt: skip
def test_the_rule(rate: float, kl: float, expected: float) -> None:
    found = adapted_rate(torch.tensor(rate), torch.tensor(kl), 0.01)
    assert float(found) == pytest.approx(expected, rel=1e-4)


class Notes(rl.PPO):
    """Keeps each minibatch, its distributions before the gradient step, and the rate of the step."""

    notes: list[Any]

    def gradient_step(self, batch: rl.algorithms.OnPolicyBatch) -> rl.UpdateResult:
        distributions = of_torch(self, batch)
        result = super().gradient_step(batch)
        self.notes.append((batch, distributions, self.optimizer.method.lr))
        return result


class RecurrentNotes(Notes, rl.RecurrentPPO):
    pass


@torch.no_grad()
def of_torch(algorithm: Any, batch: Any) -> list[Any]:
    """Return PyTorch's distributions, each [B, 1] or [B, A]."""
    found = algorithm.evaluate(batch)[0]
    if hasattr(found, "mean"):
        return [torch.distributions.Normal(found.mean, found.log_std.exp())]
    if type(found).__name__ == "Bernoulli":
        return [torch.distributions.Bernoulli(logits=found.logits)]
    parts = getattr(found, "parts", [found])
    return [torch.distributions.Categorical(logits=part.logits.unsqueeze(1)) for part in parts]


def make(cls: Any = rl.PPO, space: str = "box", obs: Any = OBS, policy: Any = None, **fields: Any) -> Any:
    rl.seed(1)
    options = {"hidden_sizes": (8,), **(policy or {})}
    of = rl.RecurrentActorCritic if issubclass(cls, rl.RecurrentPPO) else rl.ActorCritic
    fields = {"lr": 3e-3, "desired_kl": DESIRED} | fields
    algorithm = cls(of.for_spaces(obs, SPACES[space], **options), rl.PPOParams(**fields))
    algorithm.seed(2)
    return algorithm


def rollout(algorithm: Any, seed: int = 0) -> rl.Rollout:
    g = torch.Generator().manual_seed(seed)
    obs: Any = torch.randn(16, 4, 3, generator=g)
    last: Any = torch.randn(4, 3, generator=g)
    if algorithm.policy.has_mask:
        obs, last = ({"x": x, "action_mask": torch.ones(*x.shape[:-1], 3).bool()} for x in (obs, last))
        obs["action_mask"][::3, :, 1] = False
    action: Any = torch.randint(0, 2, (16, 4, 2), generator=g)
    space = algorithm.policy.action_space
    if isinstance(space, gym.spaces.Discrete):
        action = int(space.start) + 2 * action[..., 0]
    elif isinstance(space, gym.spaces.Box):
        action = torch.randn(16, 4, 2, generator=g)
    columns = {name: torch.rand(16, 4, *algorithm.policy.columns[name][0], generator=g) for name in algorithm.columns}
    valid = torch.rand(16, 4, generator=g) < 0.9
    return batches.rollout(obs, action, torch.randn(16, 4, generator=g), last_obs=last, valid=valid, extra=columns)


FAST = [(Notes, "box", {}), (Notes, "discrete", {"obs": MASKED})]
MORE = [
    (Notes, "discrete", {}), (Notes, "multi-discrete", {}), (Notes, "binary", {}),
    (Notes, "box", {"policy": {"use_sde": True}}), (Notes, "discrete", {"policy": {"share_encoder": True}}),
    (RecurrentNotes, "discrete", {}), (RecurrentNotes, "discrete", {"obs": MASKED}),
    (Notes, "box", {"optimizer": torch.optim.AdamW}),
]  # fmt: skip


@pytest.mark.parametrize(
    ("cls", "space", "options"), [*FAST, *(pytest.param(*row, marks=pytest.mark.full) for row in MORE)], ids=str
)
def test_rates_follow_the_divergences_of_pytorch(cls: Any, space: str, options: Any) -> None:
    algorithm, rate, seen = make(cls, space, **options), 3e-3, [3e-3]
    for seed in range(2):
        old, algorithm.notes = copy.deepcopy(algorithm), []
        algorithm.update(rollout(algorithm, seed), 32, 4)
        for k, (batch, new, found) in enumerate(algorithm.notes):
            pairs = zip(of_torch(old, batch), new, strict=True)
            kl = sum(torch.distributions.kl_divergence(*pair).flatten(1).sum(1) for pair in pairs)
            mean = float((kl * batch.weight).sum() / batch.weight.sum())
            if k > 0:
                rate = rate / 1.5 if mean > 2 * DESIRED else min(rate * 1.5, 1e-2) if mean < DESIRED / 2 else rate
            assert found == pytest.approx(rate, rel=1e-5), (seed, k)
            seen.append(found)
    assert {np.sign(round(after / before - 1, 3)) for before, after in itertools.pairwise(seen)} == {-1, 0, 1}
    assert algorithm.logged_values()["lr"] == seen[-1]


def test_the_first_minibatch_of_each_update_and_a_skipped_step_leave_the_rate() -> None:
    algorithm = make(lr=1e-3, desired_kl=10.0)  # so much that each other minibatch raises the rate
    for k in (1, 2):
        algorithm.update(rollout(algorithm), 32, 1)
        assert algorithm.optimizer.method.lr == pytest.approx(1.5**k * 1e-3)
    algorithm.attach(rl.UpdatePlan(update=rl.UpdateParams(nonfinite="skip")))
    bad = rollout(algorithm)
    bad.reward[:] = torch.inf
    algorithm.update(bad, 32, 1)
    assert algorithm.num_skipped_steps == 2
    assert algorithm.optimizer.method.lr == pytest.approx(1.5**2 * 1e-3)


def test_a_step_has_the_rate_of_its_own_divergence() -> None:
    moved = []
    for desired_kl in (None, 10.0):
        algorithm = make(lr=1e-3, desired_kl=desired_kl)
        weights = []
        for batch in algorithm.batches(algorithm._processed(rollout(algorithm))[0], 32, 1):
            weights.append(parameters_to_vector(algorithm.policy.parameters()).detach())
            algorithm.gradient_step(batch)
        assert len(weights) == 2
        moved.append(parameters_to_vector(algorithm.policy.parameters()).detach() - weights[1])
    torch.testing.assert_close(moved[1], 1.5 * moved[0], rtol=1e-3, atol=1e-6)


def test_groups_of_accumulated_gradients_change_the_rate_once() -> None:
    algorithm = make(lr=1e-3, desired_kl=10.0)
    algorithm.attach(rl.UpdatePlan(update=rl.UpdateParams(accumulate=2)))
    algorithm.update(rollout(algorithm), 16, 2)  # 4 minibatches, twice: 4 groups
    assert algorithm.optimizer.method.lr == pytest.approx(1.5**3 * 1e-3)


def test_an_update_that_target_kl_ends_has_lowered_the_rate_once() -> None:
    algorithm = make(lr=1e-2, desired_kl=1e-4, target_kl=2e-4)
    assert algorithm.update(rollout(algorithm), 16, 5).num_gradient_steps < 20
    assert algorithm.optimizer.method.lr < 1e-2


@pytest.mark.parametrize("optimizer", [None, pytest.param(torch.optim.AdamW, marks=pytest.mark.full)])
def test_the_rate_is_saved_and_float64_goes_on_with_it(optimizer: Any, tmp_path: Any) -> None:
    algorithm = make(desired_kl=10.0, lr=1e-3, optimizer=optimizer)
    algorithm.update(rollout(algorithm), 32, 1)
    algorithm.save(tmp_path / "ppo.safetensors")
    other: Any = rl.load(tmp_path / "ppo.safetensors")
    assert other.params.desired_kl == 10.0
    for each in (algorithm, other):
        each.update(rollout(each, 1), 32, 1)
    assert other.optimizer.method.lr == algorithm.optimizer.method.lr == pytest.approx(1.5**2 * 1e-3)
    other.set_weight_dtype(torch.float64)
    assert other.optimizer.method.lr == algorithm.optimizer.method.lr
    other.update(rollout(other, 2), 32, 1)
    assert other.optimizer.method.lr == pytest.approx(1.5**3 * 1e-3)
