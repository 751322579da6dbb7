"""The encoder of small images: its sizes, its channel axis, its file, MinAtar through the real package."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from gymnasium import spaces

import rltrainer as rl
from rltrainer.errors import SpaceError

BYTES = spaces.Box(0, 255, (10, 9, 4), np.uint8)
NET = rl.NetParams(encoder=rl.SmallConvEncoder, hidden_sizes=())


def test_either_channel_axis_gives_the_same_features() -> None:
    last, first = rl.SmallConvEncoder(BYTES), rl.SmallConvEncoder(spaces.Box(0, 255, (4, 10, 9), np.uint8))
    assert last.linear[0].in_features == 16 * 8 * 7  # type: ignore[union-attr]  # a layer
    first.load_state_dict(last.state_dict())
    image = torch.randint(0, 256, (3, 10, 9, 4), dtype=torch.uint8)
    assert last(image).shape == (3, 128)
    assert last(image).abs().sum() > 0
    assert torch.equal(last(image), first(image.movedim(-1, 1)))
    of_floats = rl.SmallConvEncoder(spaces.Box(0, 1, (10, 9, 4), np.float32))
    of_floats.load_state_dict(last.state_dict())
    torch.testing.assert_close(of_floats(image.float() / 255), last(image))
    assert rl.SmallConvEncoder(spaces.Box(0, 1, (10, 10, 10), np.bool_)).channels_last  # MinAtar's Seaquest


@pytest.mark.parametrize("space", [spaces.Box(0, 1, (3, 2, 9)), spaces.Box(0, 1, (9, 9)), spaces.Discrete(3)])
def test_other_spaces_are_errors(space: Any) -> None:
    text = "SmallConvEncoder.space: must be a Box of three axes, at least 3 x 3; got "
    with pytest.raises(SpaceError) as caught:
        rl.SmallConvEncoder(space)
    assert str(caught.value).startswith(text)


def test_a_file_names_it(tmp_path: Path) -> None:
    policy = rl.QNetwork.for_spaces(BYTES, spaces.Discrete(3), NET)
    policy.save(tmp_path / "policy.safetensors")
    loaded = rl.load_policy(tmp_path / "policy.safetensors")
    obs = np.random.default_rng(1).integers(256, size=(5, 10, 9, 4), dtype=np.uint8)
    np.testing.assert_array_equal(loaded.predict(obs), policy.predict(obs))


@pytest.mark.parametrize("game", ["Asterix", "Breakout", "Freeway", "Seaquest", "SpaceInvaders"])
def test_minatar_is_played(game: str) -> None:
    pytest.importorskip("minatar")
    envs = rl.make_vec(f"MinAtar/{game}-v1", 2, seed=1, wrappers=[])
    policy = rl.QNetwork.for_envs(envs, NET)
    spaces = envs.single_observation_space, envs.single_action_space
    buffer = rl.ReplayBuffer(200, *spaces, num_envs=2)
    rl.Collector(policy, envs, buffer).collect(num_steps=200)
    batch = buffer.sample(64)
    assert batch.obs.dtype == torch.bool
    assert batch.obs.any()
    assert policy.critic(batch.obs).shape == (64, envs.single_action_space.n)  # type: ignore[attr-defined]  # Discrete


def test_dqn_learns_in_minatar() -> None:
    pytest.importorskip("minatar")
    recipe = rl.recipes.get("dqn", "MinAtar/Breakout-v1").with_fields(
        num_env_steps=1200, max_epochs=1, test_step_num_episodes=2, warmup_num_env_steps=1000, lr=1e-3,
        target_update_interval=50, verbose=False, show_progress=False, initial_test=False,
    )  # fmt: skip
    result = recipe.make_trainer().run()
    assert result.gradient_step == 200
    assert result.epochs[-1].update is not None


def test_minatar_without_its_package(monkeypatch: pytest.MonkeyPatch) -> None:
    import sys

    monkeypatch.setitem(sys.modules, "minatar", None)
    with pytest.raises(rl.errors.MissingExtraError, match=r'pip install "\.\[minatar\]"'):
        rl.make_vec("MinAtar/Breakout-v1", 2)
