"""`strict=False` loads what fits and names the rest; what is damaged changes nothing."""

from pathlib import Path
from typing import Any

import gymnasium as gym
import numpy as np
import pytest
import torch
from torch import nn

import rltrainer as rl
from rltrainer.errors import CheckpointError
from rltrainer.nets.normalizer import running_moments
from rltrainer.state.state_file import read_state, write_state
from tests.unit.algorithms.test_part_state import ACTION, OBS, assert_refused, batch, change, contents, make_sac, same


def saved(algorithm: rl.Algorithm, tmp_path: Path) -> Path:
    algorithm.save(tmp_path / "file")
    return tmp_path / "file"


def actor_critic(obs: Any = OBS, action: Any = ACTION, seed: int = 0, **options: Any) -> rl.ActorCritic:
    rl.seed(seed)
    return rl.ActorCritic.for_spaces(obs, action, **({"hidden_sizes": (4,)} | options))


def test_what_fits_is_loaded_and_the_rest_is_named(tmp_path: Path) -> None:
    one, other = make_sac(hidden_sizes=(4, 4)), make_sac(seed=1, hidden_sizes=(4, 5))
    before = contents(other)
    left_out = other.load(saved(one, tmp_path), strict=False)
    assert left_out.missing_keys == left_out.unexpected_keys == []
    actor = [name for name in left_out.mismatched_keys if name.startswith("policy.actor")]
    sizes = {name: tuple(one.policy.state_dict()[name.removeprefix("policy.")].shape) for name in actor}
    assert sorted(sizes.values()) == [(4,), (4, 4), (4, 4)]  # the second layer, and the head that reads its five units
    assert {"actor_optimizer", "critic_optimizer"} <= set(left_out.mismatched_keys)
    for part in ("policy", "target_critic"):
        for key, value in other.state_dict()[part].items():
            source = before if f"{part}.{key}" in left_out.mismatched_keys else contents(one)
            assert torch.equal(value, source[f".{part}.{key}"]), key
    other.update(batch())


def test_what_only_one_of_them_has_is_named(tmp_path: Path) -> None:
    plain, normalizing = make_sac(), make_sac(seed=1, normalize_obs=True)
    file = saved(plain, tmp_path)
    with pytest.raises(CheckpointError, match="missing in the saved state"):
        normalizing.load(file)
    left_out = normalizing.load(file, strict=False)
    assert [name for name in left_out.missing_keys if "obs_normalizer" not in name] == []
    assert len(left_out.missing_keys) == 3
    left_out = plain.load(saved(normalizing, tmp_path), strict=False)
    assert len(left_out.unexpected_keys) == 3
    assert left_out.missing_keys == left_out.mismatched_keys == []
    assert left_out.describe().startswith("only in the file: policy.obs_normalizer.")


def test_statistics_are_loaded_together_or_not_at_all(tmp_path: Path) -> None:
    wide = gym.spaces.Box(-1.0, 1.0, (5,), np.float32)
    one, other = (rl.PPO(actor_critic(obs, normalize_obs=True)) for obs in (wide, OBS))
    running_moments(one.policy)[0].update(torch.rand(9, 5))
    left_out = other.load(saved(one, tmp_path), strict=False)
    torn = [name for name in left_out.mismatched_keys if "moments" in name]
    assert [name.rpartition(".")[2] for name in torn] == ["mean", "var", "count"]
    assert running_moments(other.policy)[0].count == 0


def test_bounds_of_actions_stay(tmp_path: Path) -> None:
    wide = gym.spaces.Box(-2.0, 2.0, (2,), np.float32)
    one, other = make_sac(), rl.SAC(rl.SquashedActorCritic.for_spaces(OBS, wide, hidden_sizes=(4,)))
    left_out = other.load(saved(one, tmp_path), strict=False)
    assert left_out.mismatched_keys == ["policy.action_low", "policy.action_high"]
    assert other.policy.action_high.tolist() == [2.0, 2.0]
    assert torch.equal(next(other.policy.actor.parameters()), next(one.policy.actor.parameters()))


def test_the_file_of_another_algorithm(tmp_path: Path) -> None:
    a2c, ppo = rl.A2C(actor_critic()), rl.PPO(actor_critic(seed=1))
    file = saved(a2c, tmp_path)
    with pytest.raises(CheckpointError, match="PPO: the state was saved by 'A2C'"):
        ppo.load(file)
    assert ppo.load(file, strict=False).missing_keys == []
    assert same(dict(ppo.policy.state_dict()), dict(a2c.policy.state_dict()))


def test_an_optimizer_that_fits_is_loaded(tmp_path: Path) -> None:
    one, other = make_sac(), make_sac(seed=1, num_steps=0)
    state = one.state_dict()
    del state["temperature"]
    write_state(tmp_path / "file", "algorithm", state)
    assert other.load(tmp_path / "file", strict=False).missing_keys == ["temperature"]
    assert same(
        {k: v for k, v in contents(other).items() if "actor_optimizer" in k},
        {k: v for k, v in contents(one).items() if "actor_optimizer" in k},
    )


@pytest.mark.parametrize(
    ("path", "value", "text"),
    [
        ("policy", 3, "SAC.policy: expected a mapping, found 3"),
        ("policy/action_low", 3, "SAC.policy.action_low: expected a tensor, found 3"),
        ("temperature/log_alpha", float("inf"), "SAC.temperature.log_alpha: expected a tensor, found inf"),
        ("temperature/log_alpha", torch.tensor(float("nan")), "SAC.temperature.log_alpha: holds NaN or infinity"),
    ],
)
def test_what_is_damaged_changes_nothing(path: str, value: Any, text: str, tmp_path: Path) -> None:
    write_state(tmp_path / "file", "algorithm", change(make_sac().state_dict(), path, lambda _: value))
    algorithm = make_sac(seed=1)
    before = contents(algorithm)
    with pytest.raises(CheckpointError) as caught:
        algorithm.load(tmp_path / "file", strict=False)
    assert text in str(caught.value)
    assert same(contents(algorithm), before)
    assert_refused(algorithm, read_state(tmp_path / "file", "algorithm", CheckpointError), text)


def test_a_policy_with_another_head(tmp_path: Path) -> None:
    three, two = gym.spaces.Discrete(3), gym.spaces.Discrete(2)
    one, other = actor_critic(action=three), actor_critic(action=two, seed=1)
    one.save(tmp_path / "policy")
    before = {name: value.clone() for name, value in other.state_dict().items()}
    with pytest.raises(CheckpointError, match=r"policy: policy.actor\S*: expected shape \(2, 4\), found \(3, 4\)"):
        other.load(tmp_path / "policy")
    assert same(dict(other.state_dict()), before)
    left_out = other.load(tmp_path / "policy", strict=False)
    heads = left_out.mismatched_keys
    assert [tuple(before[name].shape) for name in heads] == [(2, 4), (2,)]
    for name, value in other.state_dict().items():
        assert torch.equal(value, before[name] if name in heads else one.state_dict()[name])


class Grows(rl.Actor):
    """A class that has had another network since its file was written."""

    width = 0

    def __init__(self, *args: Any, **options: Any) -> None:
        super().__init__(*args, **options)
        if self.width:
            self.added = nn.Linear(self.width, 1)


def test_classes_that_have_changed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    rl.BC(Grows.for_spaces(OBS, ACTION, hidden_sizes=(4,))).save(tmp_path / "file")
    assert rl.load(tmp_path / "file", classes=[Grows], strict=False).policy.width == 0
    monkeypatch.setattr(Grows, "width", 2)
    for load in (rl.load, rl.load_policy):
        with pytest.raises(CheckpointError, match="its policy takes 31 numbers, and it holds 28"):
            load(tmp_path / "file", classes=[Grows])
        text = r"file: not all of it was loaded; missing in the file: (policy\.)?added.weight, (policy\.)?added.bias"
        with pytest.warns(UserWarning, match=text) as caught:
            load(tmp_path / "file", classes=[Grows], strict=False)
        assert caught[0].filename == __file__
    monkeypatch.setattr(Grows, "width", 100)  # a file that says it holds what it does not may not take much memory
    with pytest.raises(CheckpointError, match="its policy takes 129 numbers, and it holds 28"):
        rl.load(tmp_path / "file", classes=[Grows], strict=False)
