"""The rules of MinAtar's Breakout, as functions of tensors."""

import numpy as np
import torch
from gymnasium import spaces
from torch import Tensor

from rltrainer.envs.tensors.tensor_env import TensorEnv

State = tuple[Tensor, Tensor]


class Breakout(TensorEnv):
    """MinAtar/Breakout-v1: hit bricks with a ball, and do not let it fall, on a board of 10 x 10 cells.

    A step repeats the action before it with a probability of 0.1. This action is "no move" at the start of an
    episode, where MinAtar takes the last one of the episode before.

    Source: Young and Tian, MinAtar (2019), arXiv:1903.03176.
    """

    # A state is integers [N, 9], as they are named in `transition`, and which cells have a brick [N, 100].

    observation_space = spaces.Box(0.0, 1.0, (10, 10, 4), np.bool_)  # type: ignore[arg-type]  # gymnasium types float32 only
    action_space = spaces.Discrete(3)
    num_first_uniforms = num_step_uniforms = 1

    def first_state(self, uniform: Tensor) -> State:
        """Return a full wall [N, 100] and, in numbers [N, 9], a ball that falls inwards, from the left or the right."""
        from_right = (uniform[:, 0] >= 0.5).to(torch.int32)
        x, move_x, zero = 9 * from_right, 1 - 2 * from_right, torch.zeros_like(from_right)
        numbers = torch.stack([x, zero + 3, move_x, zero + 1, x, zero + 3, zero + 4, zero, zero], -1)
        return numbers, _wall(uniform.device).expand(len(uniform), 100)

    def observe(self, state: State) -> Tensor:
        """Return the board [N, 10, 10, 4]: the paddle, the ball, its cell before, and the bricks."""
        x, y, _, _, last_x, last_y, paddle, _, _ = state[0].unbind(-1)
        cells = torch.arange(100, device=x.device)
        planes = [cells == (10 * row + column)[:, None] for row, column in ((9, paddle), (y, x), (last_y, last_x))]
        return torch.stack([*planes, state[1]], -1).view(-1, 10, 10, 4)

    def transition(self, state: State, action: Tensor, uniform: Tensor) -> tuple[State, Tensor, Tensor]:
        """Move the paddle by an action [N], then the ball; the episode ends when it falls."""
        (x, y, move_x, move_y, _, _, paddle, was_in_brick, last_action), bricks = state[0].unbind(-1), state[1]
        action = torch.where(uniform[:, 0] < 0.1, last_action, action.to(torch.int32))
        paddle = (paddle + (action == 2).int() - (action == 1).int()).clamp(0, 9)
        next_x, next_y = x + move_x, y + move_y
        hits_side = (next_x < 0) | (next_x > 9)
        next_x = next_x.clamp(0, 9)
        # A ball that has just broken a brick flies through the next one, if it comes into it at once.
        hit = bricks & (torch.arange(100, device=x.device) == (10 * next_y + next_x)[:, None])
        is_in_brick = hit.any(-1)
        breaks = is_in_brick & (was_in_brick == 0)
        bricks = bricks & ~(hit & breaks[:, None])
        is_low = next_y == 9
        bricks = bricks | ((is_low & ~bricks.any(-1))[:, None] & _wall(x.device))
        is_above, is_beside = x == paddle, next_x == paddle
        bounces = (next_y < 0) | breaks | (is_low & (is_above | is_beside))
        turns = hits_side ^ (is_low & is_beside & ~is_above)  # a paddle that is hit from the side sends the ball back
        next_y = torch.where(bounces, y, next_y)
        move_x, move_y = torch.where(turns, -move_x, move_x), torch.where(bounces, -move_y, move_y)
        ball = [next_x, next_y, move_x, move_y, x, y]
        numbers = torch.stack([*ball, paddle, is_in_brick.int(), action], -1)
        return (numbers, bricks), breaks.to(torch.float32), is_low & ~bounces


def _wall(device: torch.device) -> Tensor:
    """Return which of the 100 cells have a brick at first [100]: the cells of rows 1 to 3."""
    cells = torch.arange(100, device=device)
    return (cells >= 10) & (cells < 40)
