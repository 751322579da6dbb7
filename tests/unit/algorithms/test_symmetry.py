"""PPO's `symmetry`: the update is one on twice the rows, the mirror loss by hand, and functions that mirror nothing."""

import dataclasses
from pathlib import Path
from typing import Any

import gymnasium as gym
import numpy as np
import pytest
import torch
from torch import Tensor

import rltrainer as rl
from rltrainer.errors import CheckpointError, ParamsError
from rltrainer.functional.losses import standardize
from rltrainer.tree import map_tree
from tests import batches
from tests.compile.test_compiled_updates import COMPILED
from tests.compile.traced import _traced_only as _traced_only

LEG = gym.spaces.Box(-1.0, 1.0, (2,), np.float32)
OBS = gym.spaces.Dict({"left": LEG, "right": LEG, "action_mask": gym.spaces.MultiBinary(3)})
LEGS = gym.spaces.Dict({"left": LEG, "right": LEG})
BOX = gym.spaces.Box(-1.0, 1.0, (2,), np.float32)


def exchanged(obs: Any) -> Any:
    """Exchange left and right, in another order of the keys than the space's."""
    masks = {"action_mask": obs["action_mask"].flip(-1)} if "action_mask" in obs else {}
    return {"right": obs["left"], "left": obs["right"], **masks}


def flip(action: Tensor) -> Tensor:
    return action.flip(-1)


def reverse(action: Tensor) -> Tensor:
    return 2 - action


def sgd(parameters: Any) -> torch.optim.Optimizer:
    """Return an optimizer that makes no large step of a gradient that is 0 but for rounding."""
    return torch.optim.SGD(parameters)


def make(space: Any = BOX, obs: Any = LEGS, symmetry: Any = None, **params: Any) -> Any:
    rl.seed(1)
    policy = rl.ActorCritic.for_spaces(obs, space, hidden_sizes=(8,), normalize_obs=True)
    g = batches.generator(5)
    # Left and right have other means and deviations: the mirror image of what is normalised is none of the env's.
    seen = {"left": 3 + torch.randn(50, 2, generator=g), "right": 5 * torch.randn(50, 2, generator=g)}
    policy.obs_normalizer.update(seen | ({"action_mask": torch.zeros(50, 3)} if obs is OBS else {}))
    algorithm = rl.PPO(policy, rl.PPOParams(**{"lr": 1e-2, "optimizer": sgd, "symmetry": symmetry, **params}))
    return algorithm


def rollout(algorithm: Any, seed: int = 0) -> rl.Rollout:
    g, shape = batches.generator(seed), (8, 4)
    obs, last = ({key: torch.randn(*of, 2, generator=g) for key in LEGS} for of in (shape, shape[1:]))
    action: Any = torch.randn(*shape, 2, generator=g)
    if algorithm.policy.has_mask:
        action = 2 * torch.randint(2, shape, generator=g)
        obs["action_mask"], last["action_mask"] = (torch.tensor([1, 0, 1]).expand(*x, 3) for x in (shape, shape[1:]))
    valid = torch.rand(shape, generator=g) < 0.8
    return batches.rollout(obs, action, torch.randn(shape, generator=g), last_obs=last, valid=valid)


CASES = {"box": (BOX, LEGS, flip), "masked choices": (gym.spaces.Discrete(3), OBS, reverse)}


@pytest.mark.parametrize("case", CASES)
def test_an_update_is_one_on_the_rows_and_their_mirror_images(case: str) -> None:
    space, obs, action = CASES[case]
    algorithm = make(space, obs, rl.Symmetry(obs=exchanged, action=action), value_clip=0.2)
    data = rollout(algorithm)
    plain = make(space, obs, normalize_advantage=False, value_clip=0.2)
    with torch.no_grad():
        samples = plain.process(data).flatten()
    samples.advantage = standardize(samples.advantage, samples.weight)  # of the originals
    raw = map_tree(lambda x: x.flatten(0, 1), data.obs)
    there = dataclasses.replace(samples, obs=plain.policy.normalize(exchanged(raw)), action=action(samples.action))
    fields = {name: map_tree(lambda *x: torch.cat(x), x, there.fields()[name]) for name, x in samples.fields().items()}
    plain.gradient_step(type(samples)(**fields))
    before = make(space, obs).update(data, None, 1).floats()
    found = algorithm.update(data, None, 1).floats()
    expected = dict(plain.policy.named_parameters())
    for name, p in algorithm.policy.named_parameters():
        torch.testing.assert_close(p, expected[name], rtol=1e-5, atol=1e-6)
    for name in ("entropy", "approx_kl", "clip_fraction", "explained_variance"):
        assert found[name] == pytest.approx(before[name], abs=1e-6)  # of the originals
    assert found["policy_loss"] != pytest.approx(before["policy_loss"], abs=1e-5)


def test_the_mirror_loss_by_hand() -> None:
    """A mean of (.5, -.1) everywhere, which flipped is (-.1, .5): (.6^2 + .6^2) / 2; the mirrored mean is constant."""
    algorithm = make(symmetry=rl.Symmetry(obs=exchanged, action=flip, augments=False, loss_coef=2.0), entropy_coef=0.0)
    head = algorithm.policy.actor[2]
    with torch.no_grad():
        for parameter in head.linear.parameters():
            parameter.zero_()
        head.linear.bias.copy_(torch.tensor([0.5, -0.1]))
    samples = algorithm.process(rollout(algorithm)).flatten()
    samples.advantage = torch.zeros_like(samples.advantage)
    gradients = []
    algorithm.optimizer.step = lambda loss, parts: gradients.append(torch.autograd.grad(parts[-1], head.linear.bias)[0])
    found = algorithm.gradient_step(samples).floats()
    assert found["mirror_loss"] == pytest.approx(0.36)
    assert found["loss"] == pytest.approx(0.5 * found["value_loss"] + 2 * 0.36, rel=1e-5)
    assert gradients[0].tolist() == pytest.approx([2 * 0.6, -2 * 0.6], rel=1e-5)


@pytest.mark.usefixtures("_traced_only")
@pytest.mark.full
def test_compiled_updates_are_the_uncompiled_ones() -> None:
    eager, compiled = (make(symmetry=rl.Symmetry(obs=exchanged, action=flip, loss_coef=0.5)) for _ in range(2))
    compiled.attach(COMPILED)
    for seed in range(3):
        one, other = (each.update(rollout(each, seed), 10, 2).floats() for each in (eager, compiled))
        assert other == pytest.approx(one, rel=1e-4, abs=1e-6)
    assert compiled.is_compiled


def test_files_name_the_functions(tmp_path: Path) -> None:
    symmetry = rl.Symmetry(obs=exchanged, action=flip, loss_coef=0.5)
    algorithm = make(symmetry=symmetry)
    algorithm.save(tmp_path / "ppo.safetensors")
    with pytest.raises(CheckpointError, match=r"Symmetry.obs: the file only names 'exchanged'. Pass what that is"):
        rl.load(tmp_path / "ppo.safetensors", classes=[sgd])
    again: Any = rl.load(tmp_path / "ppo.safetensors", classes=[exchanged, flip, sgd])
    assert again.params == algorithm.params
    assert again.params.symmetry.action is flip
    text = algorithm.params.to_json()
    assert rl.PPOParams.from_json(text, symmetry=symmetry, optimizer=sgd) == algorithm.params
    with pytest.raises(ParamsError, match="JSON holds only the name 'exchanged'; pass symmetry=..."):
        rl.PPOParams.from_json(text, optimizer=sgd)


@pytest.mark.full
@pytest.mark.parametrize(("options", "least", "most"), [
    (None, 0.3, 2.0), ({}, 0.0, 0.01), ({"loss_coef": 1.0}, 0.0, 0.01),
    ({"augments": False, "loss_coef": 10.0}, 0.0, 0.01),
])  # fmt: skip
def test_a_policy_of_a_mirrored_env_becomes_equivariant(options: Any, least: float, most: float) -> None:
    """One side only is seen, at places from .6 to 1; rewarded are actions near 2 x place - 1, which the mirror negates.

    The side is a part of the observation: without a mirror, nothing tells what it does on the other side.
    """
    rl.seed(1)
    space, g, progress = gym.spaces.Box(0.0, 1.0, (2,), np.float32), batches.generator(), [0.0]
    policy = rl.ActorCritic.for_spaces(space, BOX, hidden_sizes=(32,), log_std_init=-1.0)
    symmetry = None if options is None else rl.Symmetry(obs=lambda obs: 1 - obs, action=torch.neg, **options)
    algorithm = rl.PPO(policy, rl.PPOParams(lr=rl.LinearSchedule(1e-2), gamma=0.0, symmetry=symmetry))
    algorithm.attach(rl.UpdatePlan(lambda: progress[0]))
    for k in range(NUM_UPDATES):
        progress[0] = k / NUM_UPDATES
        place = 0.6 + 0.4 * torch.rand(32, 64, 1, generator=g)
        obs = with_side(place)
        with torch.no_grad():
            action = policy.distribution(obs).sample(g)
        algorithm.update(batches.rollout(obs, action, -(action - (2 * place - 1)).square().sum(-1)), 512, 4)
    places = torch.linspace(0.6, 1.0, 9).unsqueeze(1)
    obs = with_side(places)
    error = float((policy.act(1 - obs) + policy.act(obs)).abs().max())
    assert least <= error < most
    torch.testing.assert_close(policy.act(obs), (2 * places - 1).expand(9, 2), rtol=0.0, atol=0.1)


def with_side(place: torch.Tensor) -> torch.Tensor:
    return torch.cat([place, torch.ones_like(place)], -1)


NUM_UPDATES = 100
