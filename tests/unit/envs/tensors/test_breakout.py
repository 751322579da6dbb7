"""Breakout of tensors equals MinAtar's own, step by step, under the same states, actions and random numbers."""

import random
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from rltrainer.envs.tensors.breakout import Breakout, State

breakout = pytest.importorskip("minatar.environments.breakout")
MOVES = [(-1, -1), (1, -1), (1, 1), (-1, 1)]
"""What a ball's direction in MinAtar adds to x and y."""
ACTIONS = [0, 1, 3]
"""The minimal actions in MinAtar's list of all: no move, left, right."""


def state_of(game: Any, last_action: int = 0) -> State:
    ball = [game.ball_x, game.ball_y, *MOVES[game.ball_dir], game.last_x, game.last_y]
    numbers = torch.tensor([[*ball, game.pos, int(game.strike), last_action]], dtype=torch.int32)
    return numbers, torch.as_tensor(game.brick_map == 1).reshape(1, 100)


def assert_same(state: State, game: Any, last_action: int) -> None:
    for found, expected in zip(state, state_of(game, last_action), strict=True):
        assert torch.equal(found, expected)
    np.testing.assert_array_equal(Breakout().observe(state)[0], game.state())


def random_game(source: random.Random) -> Any:
    game = breakout.Env()
    game.ball_x, game.ball_y, game.ball_dir = (
        source.randrange(10),
        source.choice([*range(9), 8, 8, 8]),
        source.randrange(4),
    )
    game.last_x, game.last_y = source.randrange(10), source.randrange(10)
    game.pos = min(max(game.ball_x + source.randrange(-2, 3), 0), 9)
    game.strike = source.random() < 0.3
    game.brick_map[1:4] = [[source.random() < 0.5 for _ in range(10)] for _ in range(3)]
    if source.random() < 0.2:
        game.brick_map[:] = 0
    return game


def test_a_step_is_that_of_minatar() -> None:
    source, rules = random.Random(1), Breakout()
    seen = {"reward": 0, "terminated": 0, "refilled": 0, "caught": 0}
    for _ in range(400):
        game, action, last_action = random_game(source), source.randrange(3), source.randrange(3)
        is_sticky = source.random() < 0.3
        state, was_empty, was_low = state_of(game, last_action), not game.brick_map.any(), game.ball_y == 8
        uniform = torch.tensor([[0.0999 if is_sticky else 0.1]])
        state, reward, terminated = rules.transition(state, torch.tensor([action]), uniform)
        taken = last_action if is_sticky else action
        expected, is_over = game.act(ACTIONS[taken])
        assert_same(state, game, taken)
        assert (reward.item(), terminated.item()) == (expected, is_over)
        seen["reward"] += expected
        seen["terminated"] += is_over
        seen["refilled"] += was_empty and bool(game.brick_map.any())
        seen["caught"] += was_low and game.ball_y == 8
    assert all(count >= 5 for count in seen.values()), seen
    assert (reward.dtype, terminated.dtype, rules.observe(state).dtype) == (torch.float32, torch.bool, torch.bool)


def test_a_long_game_is_that_of_minatar() -> None:
    rules, game = Breakout(), breakout.Env()
    game.ball_x, game.ball_dir = 9, 3
    game.last_x = 9
    state, score = rules.first_state(torch.tensor([[0.5]])), 0
    for _ in range(400):  # the paddle follows the ball, and no action is repeated
        action = int(np.sign(game.ball_x - game.pos)) % 3
        action = {0: 0, 1: 2, 2: 1}[action]
        state, reward, terminated = rules.transition(state, torch.tensor([action]), torch.full((1, 1), 0.5))
        expected, is_over = game.act(ACTIONS[action])
        assert_same(state, game, action)
        assert (reward.item(), terminated.item()) == (expected, is_over)
        score += expected
        if is_over:
            break
    assert score > 5


@pytest.mark.parametrize(("uniform", "x", "direction"), [(0.0, 0, 2), (0.499, 0, 2), (0.5, 9, 3), (0.999, 9, 3)])
def test_first_states(uniform: float, x: int, direction: int) -> None:
    game: Any = breakout.Env()
    game.ball_x = game.last_x = x
    game.ball_dir = direction
    assert_same(Breakout().first_state(torch.tensor([[uniform]])), game, 0)


def test_spaces_are_those_of_minatar() -> None:
    from minatar.gym import BaseEnv

    env = BaseEnv("breakout", use_minimal_action_set=True)
    assert (Breakout.observation_space, Breakout.action_space) == (env.observation_space, env.action_space)
    assert env.game.sticky_action_prob == 0.1
    assert Breakout.max_episode_steps is None


def test_games_do_not_touch_each_other() -> None:
    source, rules = random.Random(2), Breakout()
    games = [random_game(source) for _ in range(20)]
    states = [state_of(game) for game in games]
    together: Any = tuple(torch.cat(leaf) for leaf in zip(*states, strict=True))
    action = torch.arange(20) % 3
    after, reward, terminated = rules.transition(together, action, torch.full((20, 1), 0.5))
    for n, state in enumerate(states):
        alone: Any = rules.transition(state, action[n : n + 1], torch.full((1, 1), 0.5))
        found: tuple[Tensor, ...] = (after[0][n], after[1][n], reward[n], terminated[n])
        for here, there in zip(found, (*alone[0], *alone[1:]), strict=True):
            assert torch.equal(here, there[0])
