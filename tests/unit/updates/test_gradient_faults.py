"""Parameters without a gradient are left alone and named once; faults of a device are reported a little later."""

import copy
import warnings
from typing import Any

import gymnasium as gym
import numpy as np
import pytest
import torch
from torch import Tensor, nn

import rltrainer as rl
from rltrainer.errors import ParamsError
from rltrainer.updates.adam import Adam
from rltrainer.updates.gradient_faults import DeviceFlag, Transfer
from rltrainer.updates.optimizer import Optimizer
from tests import batches
from tests.contract.test_all_algorithms import make
from tests.contract.test_all_algorithms import transitions as contract_transitions

OBS = gym.spaces.Box(-1.0, 1.0, (3,), np.float32)
BOX = gym.spaces.Box(-1.0, 1.0, (2,), np.float32)


class WithSpare(nn.Module):
    """An encoder with a layer that only some forward passes use."""

    def __init__(self, space: Any) -> None:
        super().__init__()
        self.layer, self.spare = nn.Linear(3, 4), nn.Linear(4, 4)
        self.uses_spare = False

    def forward(self, obs: Tensor) -> Tensor:
        features = self.layer(obs).tanh()
        return self.spare(features) if self.uses_spare else features


def make_bc(optimizer: Any = None, encoder: Any = WithSpare, **update: Any) -> rl.BC:
    rl.seed(1)
    policy = rl.Actor.for_spaces(OBS, BOX, rl.NetParams(encoder=encoder, hidden_sizes=(4,)))
    algorithm = rl.BC(policy, rl.BCParams(optimizer=optimizer, lr=0.01))
    algorithm.attach(rl.UpdatePlan(update=rl.UpdateParams(**update)))
    return algorithm


def transitions(seed: int = 0) -> rl.Transitions:
    g = torch.Generator().manual_seed(seed)
    return batches.transitions(torch.rand(8, 3, generator=g), torch.rand(8, 2, generator=g), torch.ones(8))


def spare_of(algorithm: Any) -> WithSpare:
    return next(m for m in algorithm.policy.modules() if isinstance(m, WithSpare))


def state_of(algorithm: Any, part: nn.Module) -> list[float]:
    """Return values, moments and counts of a module's parameters."""
    rule, found = algorithm.optimizer.method, []
    for number, parameter in enumerate(algorithm.optimizer.parameters):
        if any(parameter is each for each in part.parameters()):
            count = rule.num_steps - rule.num_missed[number]
            moments = (view[number] for view in (rule._mean_views, rule._square_views))
            found += [x for tensor in (parameter, *moments, count) for x in tensor.flatten().tolist()]
    return found


@pytest.mark.parametrize("update", [{}, {"accumulate": 2}, {"max_grad_norm": 0.1}, {"nonfinite": "skip"}])
def test_it_is_left_alone_and_named_once(update: dict[str, Any]) -> None:
    algorithm = make_bc(**update)
    spare = spare_of(algorithm).spare
    before, other = state_of(algorithm, spare), state_of(algorithm, spare_of(algorithm).layer)
    with pytest.warns(UserWarning, match=r"^BC: the loss does not depend on \S+spare.weight, \S+spare.bias, which"):
        algorithm.update(transitions())
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        for seed in range(3):
            algorithm.update(transitions(seed))
    assert state_of(algorithm, spare) == before
    assert state_of(algorithm, spare_of(algorithm).layer) != other


@pytest.mark.filterwarnings("ignore:BC. the loss does not depend on")
@pytest.mark.parametrize("accumulate", [1, 2])
@pytest.mark.parametrize("is_flat", [False, True])
def test_it_is_trained_as_in_torch_once_used(is_flat: bool, accumulate: int, monkeypatch: pytest.MonkeyPatch) -> None:
    if is_flat:
        monkeypatch.setattr(Optimizer, "_is_flat", lambda self: True)
    ours = make_bc(accumulate=accumulate)
    theirs = copy.deepcopy(ours.policy)
    reference = torch.optim.Adam(theirs.parameters(), lr=0.01)
    spares = [next(m for m in policy.modules() if isinstance(m, WithSpare)) for policy in (ours.policy, theirs)]
    for step, uses in enumerate([False] * 6 + [True] * 2 + [False, True] + [True] * 4):
        for spare in spares:
            spare.uses_spare = uses
        data = transitions(step)
        ours.update(data)
        loss = -theirs.distribution(theirs.normalize(data.obs)).log_prob(theirs.unscale(data.action)).mean()
        (loss / accumulate).backward()
        if step % accumulate == accumulate - 1:
            reference.step()
            reference.zero_grad()
    torch.testing.assert_close(list(ours.policy.parameters()), list(theirs.parameters()), rtol=0, atol=1e-5)
    counts = [float(reference.state[p]["step"]) for p in theirs.parameters()]
    assert isinstance(ours.optimizer.method, Adam)
    assert (ours.optimizer.method.num_steps - ours.optimizer.method.num_missed).tolist() == counts


@pytest.mark.filterwarnings("ignore:BC. the loss does not depend on")
@pytest.mark.parametrize(("optimizer", "all_reduce", "stays"), [
    (None, lambda x: x + 1.0 if x.dim() else x, False),  # another process has a gradient of it
    (None, lambda x: x * 1.0, True),
    (lambda p: torch.optim.AdamW(p, weight_decay=0.5), None, True),
])  # fmt: skip
def test_another_process_may_have_a_gradient_and_no_weight_decays(optimizer: Any, all_reduce: Any, stays: bool) -> None:
    algorithm = make_bc(optimizer)
    algorithm.attach(rl.UpdatePlan(all_reduce=all_reduce))
    before = spare_of(algorithm).spare.weight.detach().clone()
    algorithm.update(transitions())
    assert torch.equal(spare_of(algorithm).spare.weight, before) is stays


def rollout(**fields: Any) -> rl.Rollout:
    g = torch.Generator().manual_seed(0)
    obs, action = torch.randn(8, 2, 3, generator=g), torch.randn(8, 2, 2, generator=g)
    return batches.rollout(obs, action, torch.randn(8, 2, generator=g), **fields)


@pytest.mark.parametrize(("cls", "update"), [(rl.PPO, {}), (rl.PPO, {"balance_grad_norms": True}), (rl.TRPO, {})])
def test_on_policy_too(cls: Any, update: dict[str, Any]) -> None:
    rl.seed(1)
    algorithm = cls(rl.ActorCritic.for_spaces(OBS, BOX, rl.NetParams(encoder=WithSpare, hidden_sizes=(4,))))
    algorithm.attach(rl.UpdatePlan(update=rl.UpdateParams(**update)))
    spares = [m for m in algorithm.policy.modules() if isinstance(m, WithSpare)]
    before = [copy.deepcopy(m.spare.state_dict()) for m in spares], [copy.deepcopy(m.layer.weight) for m in spares]
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        for _ in range(2):
            algorithm.update(rollout(), None, 2)
    texts = [str(warning.message) for warning in caught if "does not depend on" in str(warning.message)]
    assert len(texts) == (2 if cls is rl.TRPO else 1)  # of its policy and of its critic
    assert sum(text.count("spare.weight") for text in texts) == 2
    for module, state, weight in zip(spares, *before, strict=True):
        assert all(torch.equal(value, state[name]) for name, value in module.spare.state_dict().items())
        assert not torch.equal(module.layer.weight, weight)


def test_a_parameter_that_was_replaced_is_an_error() -> None:
    algorithm = make_bc(encoder=None)
    layer = next(m for m in algorithm.policy.modules() if isinstance(m, nn.Linear))
    layer.weight = nn.Parameter(layer.weight.detach().clone())
    text = r"^BC: actor\.\S+weight must stay the same object while it is trained; another one took its place\. "
    for _ in range(2):
        with pytest.raises(ParamsError, match=text + "Copy into it, or build the algorithm again"):
            algorithm.update(transitions())


def test_a_loss_that_depends_on_nothing_is_an_error() -> None:
    class Wrong(rl.BC):
        def gradient_step(self, batch: Any, noise: Any) -> rl.UpdateResult:
            loss = self.of_nobody * 2
            self.optimizer.step(loss)
            return rl.UpdateResult({"loss": loss.detach()})

        of_nobody = torch.ones((), requires_grad=True)

    rl.seed(1)
    algorithm = Wrong(rl.Actor.for_spaces(OBS, BOX, hidden_sizes=(4,)))
    with pytest.raises(ParamsError, match=r"^Wrong: a loss must depend on what its optimizer trains; it does not on "):
        algorithm.update(transitions())


class Slow:
    """Copies at once, and says that it has arrived when it is told to."""

    def __init__(self) -> None:
        self.has_arrived = False
        self.num_started = 0

    def start(self, number: torch.Tensor) -> Transfer:
        self.num_started += 1
        return number.clone(), lambda: self.has_arrived


def test_a_number_is_seen_when_its_copy_has_arrived() -> None:
    number, link = torch.zeros(()), Slow()
    read = DeviceFlag(number, link.start)
    assert not read.was_nonzero(wait=False)  # a copy of 0 is under way
    number.fill_(1)
    assert not read.was_nonzero(wait=False)
    assert link.num_started == 1
    link.has_arrived = True
    assert not read.was_nonzero(wait=False)  # the 0 has arrived, the 1 is under way
    assert read.was_nonzero(wait=False)
    number.zero_()
    assert not read.was_nonzero(wait=False)
    assert link.num_started == 3
    # Waiting sees the present number, and forgets the copy under way.
    number, link = torch.ones(()), Slow()
    read = DeviceFlag(number, link.start)
    assert not read.was_nonzero(wait=False)
    assert read.was_nonzero(wait=True)
    number.zero_()
    link.has_arrived = True
    assert not read.was_nonzero(wait=False)
    assert not read.was_nonzero(wait=False)


def test_a_late_fault_is_told_once_and_before_anything_is_saved() -> None:
    algorithm, link = make("bc"), Slow()
    algorithm.optimizer._bad._delayed = DeviceFlag(algorithm.optimizer._bad.num, link.start)
    bad = contract_transitions(algorithm, 16, weight=torch.full((16,), float("inf")))
    algorithm.update(bad)
    algorithm.update(contract_transitions(algorithm, 16))
    link.has_arrived = True
    with pytest.raises(rl.errors.NonFiniteError, match=r"BC: the gradient of actor.* is not finite"):
        algorithm.update(contract_transitions(algorithm, 16))
    algorithm.update(contract_transitions(algorithm, 16))

    link.has_arrived = False
    algorithm.update(bad)
    copied = copy.deepcopy(algorithm)
    for one in (algorithm, copied):
        with pytest.raises(rl.errors.NonFiniteError, match="is not finite"):
            one.state_dict()
        one.state_dict()
