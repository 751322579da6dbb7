"""TRPO: the policy's step by hand, what it never does, and what the critic learns beside it."""

import copy
import threading
from typing import Any

import gymnasium as gym
import numpy as np
import pytest
import torch
from torch import Tensor, nn

import rltrainer as rl
from rltrainer.algorithms import OnPolicyBatch
from rltrainer.errors import NonFiniteError, ParamsError
from rltrainer.plan import UpdateCallbacks

NO_OBS = gym.spaces.Box(-1.0, 1.0, (1,), np.float32)
IMAGE = gym.spaces.Box(0, 255, (36, 36, 3), np.uint8)
TWO = gym.spaces.Discrete(2)
BOX = gym.spaces.Box(-1.0, 1.0, (2,), np.float32)


def cells_of(action: Tensor, advantage: Tensor, weight: Tensor | None = None) -> OnPolicyBatch:
    obs, one = torch.zeros(len(action), 1), torch.ones(len(action))
    return OnPolicyBatch(obs, action, advantage, one, one, one, one if weight is None else weight)


def bias_only() -> rl.TRPO:
    """Return TRPO over two choices whose logits are (0, 0) and the only parameters that move."""
    policy = rl.ActorCritic(NO_OBS, TWO, hidden_sizes=())
    head = policy.actor[2].linear
    nn.init.zeros_(head.weight)
    head.weight.requires_grad_(False)
    return rl.TRPO(policy, rl.TRPOParams(normalize_advantage=False))


@pytest.mark.parametrize("padding", [0, 3])
def test_the_policys_step_by_hand(padding: int) -> None:
    # One cell for each choice, with advantages 1 and -1: g = (.5, -.5), F = [[.25, -.25], [-.25, .25]]; with damping .1
    # the step is sqrt(2 * .01 / .833333) * (.833333, -.833333) = (.129099, -.129099). The probabilities are then
    # .564193 and .435807, KL(old || new) .008310, and the objective .564193 - .435807 = .128387.
    algorithm = bias_only()
    nothing = torch.full((padding,), 99.0)
    metrics = algorithm.improve_policy(
        cells_of(
            torch.tensor([0, 1] + [0] * padding), torch.cat([torch.tensor([1.0, -1.0]), nothing]),
            torch.cat([torch.ones(2), 0 * nothing]),
        )
    )  # fmt: skip
    bias = algorithm.policy.actor[2].linear.bias
    assert bias.tolist() == pytest.approx([0.129099, -0.129099], abs=1e-6)
    assert float(metrics["kl"]) == pytest.approx(0.008310, abs=1e-6)
    assert float(metrics["policy_loss"]) == pytest.approx(-0.128387, abs=1e-6)
    assert float(metrics["step_scale"]) == 1.0
    assert float(metrics["entropy"]) == pytest.approx(np.log(2), abs=1e-6)


def random_cells(action_space: gym.Space[object], seed: int = 0) -> OnPolicyBatch:
    g = torch.Generator().manual_seed(seed)
    action = torch.randint(0, 2, (64,), generator=g) if action_space is TWO else torch.randn(64, 2, generator=g)
    cells = cells_of(action, torch.randn(64, generator=g))
    cells.obs = torch.randn(64, 1, generator=g)
    return cells


@pytest.mark.parametrize("action_space", [TWO, BOX], ids=["choices", "box"])
@pytest.mark.parametrize("target_kl", [1e-3, 0.1, 10.0])
def test_the_bound_holds_and_the_objective_grows(action_space: gym.Space[object], target_kl: float) -> None:
    rl.seed(1)
    policy = rl.ActorCritic(NO_OBS, action_space, hidden_sizes=(16,))
    algorithm = rl.TRPO(policy, rl.TRPOParams(target_kl=target_kl))
    critic = [p.detach().clone() for p in policy.critic.parameters()]
    for seed in range(3):
        cells = random_cells(action_space, seed)
        with torch.no_grad():
            old = policy.distribution(cells.obs)
            before = old.log_prob(cells.action)
        metrics = algorithm.improve_policy(cells)
        with torch.no_grad():
            new = policy.distribution(cells.obs)
            ratio = (new.log_prob(cells.action) - before).exp()
        assert 0 < float(old.kl(new).mean()) <= target_kl
        objective = float((ratio * algorithm.advantage(cells)).mean())
        assert objective == pytest.approx(-float(metrics["policy_loss"]), rel=1e-5)
        assert float(metrics["policy_loss"]) < 0, "standardised advantages have mean 0, which is where it starts"
    assert all(torch.equal(p, q) for p, q in zip(policy.critic.parameters(), critic, strict=True))


def test_where_no_length_is_good_the_policy_stays() -> None:
    algorithm = bias_only()
    algorithm.policy.actor[2].linear.bias.data.copy_(torch.tensor([0.3, 0.1]))
    metrics = algorithm.improve_policy(cells_of(torch.tensor([0, 1]), torch.zeros(2)))
    assert algorithm.policy.actor[2].linear.bias.tolist() == pytest.approx([0.3, 0.1])
    assert float(metrics["step_scale"]) == float(metrics["kl"]) == 0.0


@pytest.mark.parametrize("bad", [np.nan, np.inf, 1e38])
def test_a_step_that_is_not_finite_is_refused(bad: float) -> None:
    algorithm = bias_only()
    algorithm.policy.actor[2].linear.bias.data.copy_(torch.tensor([0.3, 0.1]))
    with pytest.raises(NonFiniteError, match="TRPO: the gradient of policy.actor is not finite .* was not applied"):
        algorithm.improve_policy(cells_of(torch.tensor([0, 1]), torch.tensor([bad, -1e38])))
    assert algorithm.policy.actor[2].linear.bias.tolist() == pytest.approx([0.3, 0.1])


def test_frozen_layers_stay() -> None:
    rl.seed(1)
    policy = rl.ActorCritic(NO_OBS, TWO, hidden_sizes=(4, 4))
    frozen = policy.actor[1].layers[0].weight.requires_grad_(False)
    before = frozen.clone()
    algorithm = rl.TRPO(policy)
    assert float(algorithm.improve_policy(random_cells(TWO))["step_scale"]) > 0
    assert torch.equal(frozen, before)


def test_a_shared_encoder_is_refused() -> None:
    with pytest.raises(ParamsError, match="TRPO.policy: actor and critic must not share an enc.*share_encoder=False"):
        rl.TRPO(rl.ActorCritic(IMAGE, TWO, share_encoder=True))
    rl.TRPO(rl.ActorCritic(NO_OBS, TWO, share_encoder=True))  # that has no weights


def test_the_memory_of_parameters_is_never_replaced() -> None:
    algorithm = rl.TRPO(rl.ActorCritic(NO_OBS, TWO, hidden_sizes=(4,)))
    before = [p.data_ptr() for p in algorithm.policy.parameters()]
    algorithm.improve_policy(random_cells(TWO))
    assert [p.data_ptr() for p in algorithm.policy.parameters()] == before


def two_layers() -> rl.TRPO:
    rl.seed(1)
    policy = rl.ActorCritic(NO_OBS, TWO, hidden_sizes=(8,))
    return rl.TRPO(policy, rl.TRPOParams(normalize_advantage=False))


def weights(algorithm: rl.TRPO) -> Tensor:
    return nn.utils.parameters_to_vector(algorithm.policy.actor.parameters())


def test_processes_take_one_step_that_is_that_of_all_their_cells() -> None:
    whole, cells = two_layers(), random_cells(TWO)
    parts = [copy.deepcopy(whole) for _ in range(2)]
    barrier, given = threading.Barrier(2, timeout=60), [torch.empty(0)] * 2

    def train(rank: int) -> None:
        def average(x: Tensor) -> Tensor:
            given[rank] = x
            barrier.wait()
            mean = torch.stack(given).mean(0)
            barrier.wait()
            return mean

        parts[rank].attach(rl.UpdatePlan(all_reduce=average))
        parts[rank].improve_policy(cells.map(lambda x: x[rank::2]))

    threads = [threading.Thread(target=train, args=(rank,)) for rank in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    before = weights(whole)
    whole.improve_policy(cells)
    assert torch.equal(weights(parts[0]), weights(parts[1]))
    assert not torch.equal(weights(whole), before)
    torch.testing.assert_close(weights(parts[0]), weights(whole), rtol=1e-4, atol=1e-5)


def test_who_listens_hears_of_the_policys_loss_and_may_take_or_replace_it() -> None:
    heard: list[Any] = []
    plain, listening, taking, turned = (two_layers() for _ in range(4))

    def on_loss(name: str, loss: Tensor, step: Any) -> None:
        heard.append((name, loss.dim()))
        assert loss.requires_grad

    listening.attach(rl.UpdatePlan(callbacks=UpdateCallbacks(on_loss=on_loss)))
    taking.attach(rl.UpdatePlan(callbacks=UpdateCallbacks(on_loss=lambda name, loss, step: step(loss))))
    turned.attach(rl.UpdatePlan(callbacks=UpdateCallbacks(on_loss=lambda name, loss, step: -loss)))
    results = [trpo.improve_policy(random_cells(TWO)) for trpo in (plain, listening, taking, turned)]
    assert heard == [("actor", 0)]
    assert results[0].keys() == results[1].keys() == results[2].keys() == {"policy_loss", "kl", "entropy", "step_scale"}
    assert torch.equal(weights(plain), weights(listening))
    assert torch.equal(weights(plain), weights(taking))
    assert float(results[3]["step_scale"]) == 0.0, "against the gradient no length is good"
