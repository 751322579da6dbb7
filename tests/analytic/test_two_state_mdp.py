"""Terminated is not truncated: with the true values plugged in, every target is true, whatever the time limit.

Two MDPs walk between the states 0 and 1 without chance, so that each target must be exact; the third has chance, and
all its trajectories are enumerated, so that expectations are exact. Advantages and targets are tested against the
mistake too: taking a time limit for the end of the MDP gives other numbers, which are worked out.
"""

from collections.abc import Iterator
from typing import NamedTuple

import numpy as np
import pytest
import torch
from gymnasium import spaces
from torch import Tensor

import rltrainer as rl
from rltrainer.functional.returns import gae

STATES = spaces.Discrete(2)
BOX = spaces.Box(-1.0, 1.0, (1,), np.float32)


class Chain(NamedTuple):
    """0 -> 1 -> 0 -> ..., or 0 -> 1 -> the end."""

    reward: tuple[float, float]
    ends: bool


# gamma = 1/2. The cycle: V0 = 3 + V1 / 2, V1 = 0 + V0 / 2. The one that ends: V0 = 3 + V1 / 2, V1 = 2.
GAMMA = 0.5
VALUE = torch.tensor([4.0, 2.0])
CYCLE = Chain((3.0, 0.0), ends=False)
ENDING = Chain((3.0, 2.0), ends=True)

# With chance: state 0 stays or goes to 1, half and half; state 1 ends one time in four, else it goes to 0.
# V0 = 1 + 0.8 (V0 / 2 + V1 / 2), V1 = 0.2 + 0.8 * 0.75 V0: V0 = 3, V1 = 2.
CHANCE_GAMMA = 0.8
CHANCE_REWARD = torch.tensor([1.0, 0.2], dtype=torch.float64)
CHANCE_VALUE = torch.tensor([3.0, 2.0], dtype=torch.float64)
TRANSITION = torch.tensor([[0.5, 0.5], [0.75, 0.0]], dtype=torch.float64)
BRANCHES = {0: [(0.5, 0, False), (0.5, 1, False)], 1: [(0.75, 0, False), (0.25, 0, True)]}

every_chain = pytest.mark.parametrize("chain", [CYCLE, ENDING], ids=["cycle", "ending"])
where_time_runs_out = pytest.mark.parametrize(
    ("chain", "limit"),
    [(CYCLE, 1), (CYCLE, 2), (CYCLE, 5), (ENDING, 1)],
    ids=["cycle-1", "cycle-2", "cycle-5", "ending-1"],
)
every_start = pytest.mark.parametrize("start", [0, 1])
every_limit = pytest.mark.parametrize("limit", [1, 2, 5])
every_lambda = pytest.mark.parametrize("lambda_", [0.0, 0.5, 1.0])


class Cells(NamedTuple):
    """Steps in time order, each [T]; the successor of a terminated one is a state whose value must not be asked for."""

    state: Tensor
    reward: Tensor
    next_state: Tensor
    terminated: Tensor
    truncated: Tensor

    @property
    def only_truncated(self) -> Tensor:
        return self.truncated & ~self.terminated


def walk(chain: Chain, limit: int, num_cells: int = 20) -> Cells:
    """Walk through episodes of at most `limit` steps, which start in 0, 1, 0, 1, ..."""
    rows, episode, state, t = [], 0, 0, 0
    for _ in range(num_cells):
        t += 1
        terminated, truncated = chain.ends and state == 1, t == limit
        rows.append((state, chain.reward[state], 1 - state, terminated, truncated))
        state = 1 - state
        if terminated or truncated:
            episode, t = episode + 1, 0
            state = episode % 2
    return Cells(*(torch.tensor(column) for column in zip(*rows, strict=True)))


def wrongly(cells: Cells) -> Cells:
    """Take time limits for ends."""
    return cells._replace(terminated=cells.terminated | cells.truncated)


def test_values_solve_the_bellman_equations() -> None:
    for chain, after_1 in ((CYCLE, 1.0), (ENDING, 0.0)):
        transition = torch.tensor([[0.0, 1.0], [after_1, 0.0]])
        found = torch.linalg.solve(torch.eye(2) - GAMMA * transition, torch.tensor(chain.reward))
        torch.testing.assert_close(found, VALUE)
    found = torch.linalg.solve(torch.eye(2) - CHANCE_GAMMA * TRANSITION, CHANCE_REWARD)
    torch.testing.assert_close(found, CHANCE_VALUE)


def advantages(cells: Cells, lambda_: float) -> tuple[Tensor, Tensor]:
    column = [x.unsqueeze(1) for x in (cells.reward, VALUE[cells.state], VALUE[cells.next_state])]
    ends = [x.unsqueeze(1) for x in (cells.terminated, cells.terminated | cells.truncated)]
    advantage, return_ = gae(*column, *ends, GAMMA, lambda_)
    return advantage.squeeze(1), return_.squeeze(1)


@every_chain
@every_limit
@every_lambda
def test_gae_of_the_true_values_is_zero(chain: Chain, limit: int, lambda_: float) -> None:
    cells = walk(chain, limit)
    advantage, return_ = advantages(cells, lambda_)
    assert advantage.tolist() == [0.0] * 20
    assert torch.equal(return_, VALUE[cells.state])


@where_time_runs_out
@every_lambda
def test_gae_with_time_limits_as_ends_misses_the_future(chain: Chain, limit: int, lambda_: float) -> None:
    cells = walk(chain, limit)
    advantage, _ = advantages(wrongly(cells), lambda_)
    truncated = cells.only_truncated
    assert truncated.any()
    assert torch.equal(advantage[truncated], -GAMMA * VALUE[cells.next_state][truncated])
    if lambda_ > 0 and limit == 5 and chain is CYCLE:
        # The mistake leaks back along the trace: one step earlier it still is gamma * lambda of it.
        assert (advantage != 0).sum() > truncated.sum()


def a2c_returns(cells: Cells, lambda_: float) -> Tensor:
    """Return what A2C's critic would regress to, if it already held the true values."""
    policy = rl.ActorCritic(STATES, STATES, hidden_sizes=())
    with torch.no_grad():
        policy.critic[2].weight.copy_(VALUE)
    buffer = rl.RolloutBuffer(20, 1, STATES, STATES)
    for state, reward, next_state, terminated, truncated in zip(*cells, strict=True):
        action = torch.zeros(1, dtype=torch.int64)
        buffer.add(state[None], action, reward[None], next_state[None], terminated[None], truncated[None])
    with torch.no_grad():
        return rl.A2C(policy, rl.A2CParams(gamma=GAMMA, gae_lambda=lambda_)).process(buffer.rollout()).return_.flatten()


@every_chain
@every_limit
@every_lambda
def test_a2c_sees_the_true_returns_of_a_stored_rollout(chain: Chain, limit: int, lambda_: float) -> None:
    cells = walk(chain, limit)
    assert torch.equal(a2c_returns(cells, lambda_), VALUE[cells.state])


def stored(cells: Cells, action_space: spaces.Space = STATES) -> rl.ReplayBuffer:
    buffer = rl.ReplayBuffer(len(cells.state), STATES, action_space, seed=0)
    action = torch.zeros(1, 1) if isinstance(action_space, spaces.Box) else torch.zeros(1, dtype=torch.int64)
    for state, reward, next_state, terminated, truncated in zip(*cells, strict=True):
        buffer.add(state[None], action, reward[None], next_state[None], terminated[None], truncated[None])
    return buffer


@every_chain
@every_limit
@pytest.mark.parametrize("n_step", [1, 2, 3, 7])
def test_targets_are_the_true_values(chain: Chain, limit: int, n_step: int) -> None:
    batch = stored(walk(chain, limit)).sample(512, n_step=n_step, gamma=GAMMA)
    assert set(batch.obs.tolist()) == {0, 1}
    assert torch.equal(batch.reward + batch.discount * VALUE[batch.next_obs], VALUE[batch.obs])


@where_time_runs_out
@pytest.mark.parametrize("n_step", [1, 2, 3, 7])
def test_targets_with_time_limits_as_ends_are_not(chain: Chain, limit: int, n_step: int) -> None:
    cells = walk(chain, limit)
    batch = stored(wrongly(cells)).sample(512, n_step=n_step, gamma=GAMMA)
    wrong = batch.reward + batch.discount * VALUE[batch.next_obs] != VALUE[batch.obs]
    assert wrong.any()
    if n_step == 1:
        assert (wrong == cells.only_truncated[batch.index]).all()


@pytest.mark.parametrize(("chain", "limit", "n_step", "reward", "discount", "next_state", "wrong"), [
    (CYCLE, 1, 1, 3.0, 0.5, 1, 3.0),  # 3 + 2 / 2
    (CYCLE, 1, 3, 3.0, 0.5, 1, 3.0),  # the limit ends the window: as above
    (CYCLE, 2, 3, 3.0, 0.25, 0, 3.0),  # 3 + 0 / 2, + 4 / 4
    (CYCLE, 5, 3, 3.75, 0.125, 1, 4.0),  # 3 + 0 / 2 + 3 / 4, + 2 / 8; the limit is out of sight
    (CYCLE, 5, 7, 3.9375, 0.03125, 1, 3.9375),  # 3 + 3 / 4 + 3 / 16, + 2 / 32
    (ENDING, 1, 3, 3.0, 0.5, 1, 3.0),  # 3 + 2 / 2
    (ENDING, 2, 3, 4.0, 0.0, 0, 4.0),  # 3 + 2 / 2; ended and out of time at once: it ended
    (ENDING, 5, 1, 3.0, 0.5, 1, 4.0),  # 3 + 2 / 2
    (ENDING, 5, 3, 4.0, 0.0, 0, 4.0),  # 3 + 2 / 2
])  # fmt: skip
def test_the_first_cell_by_hand(
    chain: Chain, limit: int, n_step: int, reward: float, discount: float, next_state: int, wrong: float
) -> None:
    """One episode from state 0; `wrong` is the target if time limits are taken for ends."""
    length = min(limit, 2) if chain.ends else limit
    cells = walk(chain, limit, num_cells=length)
    batch = stored(cells).sample(64, n_step=n_step, gamma=GAMMA)
    first = int(batch.index.argmin())
    assert batch.index[first] == 0
    assert (batch.reward[first], batch.discount[first], batch.next_obs[first]) == (reward, discount, next_state)
    assert reward + discount * VALUE[next_state] == 4.0

    batch = stored(wrongly(cells)).sample(64, n_step=n_step, gamma=GAMMA)
    first = int(batch.index.argmin())
    assert batch.reward[first] + batch.discount[first] * VALUE[batch.next_obs[first]] == wrong


@every_chain
@every_limit
@pytest.mark.parametrize("n_step", [1, 3])
def test_algorithms_regress_to_the_true_values(chain: Chain, limit: int, n_step: int) -> None:
    q_network = rl.QNetwork(STATES, STATES, hidden_sizes=())
    gaussian = rl.GaussianActorCritic(STATES, BOX, hidden_sizes=())
    with torch.no_grad():
        q_network.critic[2].weight.copy_(VALUE.expand(2, 2))
        q_network.critic[2].bias.zero_()
        gaussian.value_network[2].weight.copy_(VALUE)
        gaussian.value_network[2].bias.zero_()
    cells = walk(chain, limit)
    batch = stored(cells).sample(64, n_step=n_step, gamma=GAMMA)
    for dqn in (rl.DQN(q_network), rl.DoubleDQN(q_network)):
        assert torch.equal(batch.reward + batch.discount * dqn.next_value(batch), VALUE[batch.obs])
    batch = stored(cells, BOX).sample(64, n_step=n_step, gamma=GAMMA)
    assert torch.equal(rl.IQL(gaussian).critic_target(batch), VALUE[batch.obs])


class Paths(NamedTuple):
    """All trajectories of one start and time limit, each [T, N] but `probability` [N].

    Those that end early are filled up with cells of absurd rewards, which must not reach back beyond the end.
    """

    probability: Tensor
    state: Tensor
    reward: Tensor
    next_state: Tensor
    terminated: Tensor
    truncated: Tensor
    is_real: Tensor


def trajectories(state: int, num_steps: int) -> Iterator[tuple[float, list[tuple[int, int, bool]]]]:
    """Yield each trajectory's probability and its (state, next state, terminated) steps."""
    if num_steps == 0:
        yield 1.0, []
        return
    for probability, next_state, terminated in BRANCHES[state]:
        for rest_probability, rest in trajectories(next_state, 0 if terminated else num_steps - 1):
            yield probability * rest_probability, [(state, next_state, terminated), *rest]


def all_paths(start: int, limit: int) -> Paths:
    paths = list(trajectories(start, limit))
    shape = (limit, len(paths))
    probability = torch.tensor([p for p, _ in paths], dtype=torch.float64)
    state, next_state = torch.zeros(shape, dtype=torch.int64), torch.zeros(shape, dtype=torch.int64)
    terminated, is_real = torch.zeros(shape, dtype=torch.bool), torch.zeros(shape, dtype=torch.bool)
    for n, (_, steps) in enumerate(paths):
        for t, (here, there, ended) in enumerate(steps):
            state[t, n], next_state[t, n], terminated[t, n], is_real[t, n] = here, there, ended, True
    reward = torch.where(is_real, CHANCE_REWARD[state], 1e6)
    truncated = torch.zeros(shape, dtype=torch.bool)
    truncated[-1] = True
    return Paths(probability, state, reward, next_state, terminated, truncated, is_real)


def expected(paths: Paths, lambda_: float) -> tuple[Tensor, Tensor]:
    """Return the expected advantage of each step [T], and the expected return of the start."""
    value, next_value = CHANCE_VALUE[paths.state], CHANCE_VALUE[paths.next_state]
    done = paths.terminated | paths.truncated
    advantage, return_ = gae(paths.reward, value, next_value, paths.terminated, done, CHANCE_GAMMA, lambda_)
    advantage = torch.where(paths.is_real, advantage, 0.0)
    return (advantage * paths.probability).sum(1), (return_[0] * paths.probability).sum()


@every_start
@every_limit
@every_lambda
def test_expected_advantage_is_zero_and_expected_return_is_the_value(start: int, limit: int, lambda_: float) -> None:
    paths = all_paths(start, limit)
    assert paths.probability.sum().item() == pytest.approx(1.0)
    advantage, return_ = expected(paths, lambda_)
    torch.testing.assert_close(advantage, torch.zeros_like(advantage), atol=1e-9, rtol=0)
    torch.testing.assert_close(return_, CHANCE_VALUE[start])
