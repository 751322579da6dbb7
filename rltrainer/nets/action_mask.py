"""Action masks: which discrete actions are allowed, as the leaf `action_mask` of a Dict observation says.

The leaf is no input of a network: encoders and normalisers leave it out. Heads put what is not allowed at -1e8 before
they choose, so it is never drawn, has no entropy and no gradient (Huang & Ontanon 2022, A Closer Look at Invalid Action
Masking in Policy Gradient Algorithms).
"""

import torch
from gymnasium import spaces
from torch import Tensor

from rltrainer.errors import SpaceError
from rltrainer.spaces import ACTION_MASK, Space, has_action_mask, num_choices

EXCLUDED = -1e8
"""Logit or value of what is not allowed: finite, as 0 * -inf is NaN."""


def require_mask(owner: str, observation_space: Space, action_space: Space) -> bool:
    """Return whether observations hold an action mask.

    Raises:
        SpaceError: it is not one flag for each choice of the action space; the text names `owner`.
    """
    if not has_action_mask(observation_space):
        return False
    leaf, sizes = observation_space[ACTION_MASK], num_choices(action_space)  # type: ignore[index]  # a Dict
    expected = "be left out, or have another name, as actions are no choices" if sizes is None else None
    if sizes is not None and (not isinstance(leaf, spaces.Box | spaces.MultiBinary) or leaf.shape != (sum(sizes),)):
        expected = f"be a MultiBinary({sum(sizes)}), or a Box of shape ({sum(sizes)},): a flag for each choice"
    if expected is not None:
        raise SpaceError(f'{owner}.observation_space["{ACTION_MASK}"]: must {expected}; got {leaf} for {action_space}')
    return True


def excluded(values: Tensor, mask: Tensor) -> Tensor:
    """Return logits or values [B, A] with those of choices that a mask [B, A] does not allow at -1e8."""
    return torch.where(mask, values, EXCLUDED)


def allowed(action: Tensor, mask: Tensor, space: Space, generator: torch.Generator | None) -> Tensor:
    """Replace choices that are not allowed by ones drawn uniformly from those that are.

    So what was drawn uniformly from all choices becomes uniform among the allowed ones.

    Args:
        action: [N], or [N, D] for D choices.
        mask: [N, A] bool; of D choices one after the other.
    """
    sizes = num_choices(space)
    assert sizes is not None, "policies accept masks of choices only"
    start = torch.as_tensor(getattr(space, "start", 0), device=action.device).expand(len(sizes))
    place = action.reshape(len(action), len(sizes)) - start
    score = torch.rand(mask.shape, generator=generator, device=mask.device).add_(1).mul_(mask)
    for d, (flags, scores) in enumerate(zip(torch.split(mask, sizes, 1), torch.split(score, sizes, 1), strict=True)):
        is_allowed = flags.gather(1, place[:, d : d + 1].clamp(min=0)).squeeze(1)
        place[:, d] = torch.where(is_allowed, place[:, d], scores.argmax(1))
    return (place + start).reshape(action.shape)
