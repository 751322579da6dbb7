"""Files of earlier formats: what they hold arrives, bit for bit, and the run goes on."""

import json
import shutil
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file

import rltrainer as rl
from rltrainer.errors import CheckpointError
from rltrainer.hooks import BatchRecorder
from rltrainer.state_file import CHECKSUM, read_state
from tests.fakes import counting_envs
from tests.resume.runs import BOX, build
from tests.resume.test_midway import ENVS, collector_in
from tests.resume.wanderers import Wanderer

CORPUS = Path(__file__).parent / "corpus"
OLD_RUNS = [path for path in sorted(CORPUS.glob("format_*/*")) if path.is_dir()]
GRADIENT_STEPS = {
    "ppo": 24, "recurrent_ppo": 16, "dqn": 10, "format_1/dqn": 7, "dqn_prioritized": 10, "c51": 10, "sac": 10,
    "sac_mixed": 10, "offline_bc": 8, "offline_sac_prioritized": 8,
}  # fmt: skip
FORMATS = ["format_2", "format_3"]
"""Those whose folder holds everything."""


def tensors_in(state: Any, name: str) -> dict[str, torch.Tensor]:
    if isinstance(state, torch.Tensor):
        return {name: state}
    if isinstance(state, list):
        state = dict(enumerate(state))
    items = state.items() if isinstance(state, dict) else ()
    return {k: v for key, value in items for k, v in tensors_in(value, f"{name}.{key}").items()}


def assert_holds(state: Any, file: Path, kind: str) -> None:
    """Compare with the tensors in the file, read without our own reader."""
    found, expected = tensors_in(state, kind), load_file(file)
    expected.pop(CHECKSUM, None)
    assert found.keys() == expected.keys()
    for name, tensor in expected.items():
        assert torch.equal(found[name].cpu(), tensor), name


@pytest.mark.parametrize("path", OLD_RUNS, ids=lambda path: f"{path.parent.name}-{path.name}")
def test_an_old_checkpoint_goes_on(path: Path) -> None:
    trainer = build(path.name)
    trainer.restore(path)
    for name, part in {"algorithm": trainer.algorithm, **trainer.params.parts()}.items():
        assert_holds(part.state_dict(), path / f"{name}.safetensors", name)
    num_steps = GRADIENT_STEPS.get(f"{path.parent.name}/{path.name}", GRADIENT_STEPS[path.name])
    assert (trainer.epoch, trainer.gradient_step) == (2, num_steps)
    assert trainer.run().epoch == 3


def test_an_old_algorithm_file_with_an_optimizer_of_torch() -> None:
    envs = counting_envs(2, action_space=BOX)
    params = rl.SACParams(optimizer=lambda parameters: torch.optim.AdamW(parameters, lr=0.7))
    algorithm = rl.SAC(rl.SquashedActorCritic.for_envs(envs, hidden_sizes=(8,)), params)
    file = CORPUS / "format_1" / "sac_adamw.safetensors"
    algorithm.load(file)
    assert_holds(algorithm.state_dict(), file, "algorithm")


@pytest.mark.parametrize("version", FORMATS)
def test_files_that_say_what_they_hold(version: str) -> None:
    file = CORPUS / version / "sac.safetensors"
    algorithm: Any = rl.load(file)
    assert_holds(algorithm.state_dict(), file, "algorithm")
    assert algorithm.params == rl.SACParams(lr=rl.LinearSchedule(1e-3), gamma=0.9)
    assert algorithm.policy.net_params == rl.NetParams(hidden_sizes=(4,), activation=torch.nn.ELU)
    space = algorithm.policy.observation_space
    assert space.keys() == {"choice", "numbers"}
    assert algorithm.policy.action_space.contains(rl.load_policy(file).predict(space.sample()))
    policy: Any = rl.load_policy(CORPUS / version / "q_network.safetensors")
    assert_holds({"policy": policy.state_dict()}, CORPUS / version / "q_network.safetensors", "policy")
    assert policy.predict(space.sample()) in (0, 1)


def test_an_old_buffer_file() -> None:
    file = CORPUS / "format_1" / "buffer.safetensors"
    buffer = rl.ReplayBuffer.load(file)
    assert (len(buffer), buffer.capacity, buffer.num_envs) == (30, 40, 2)
    assert_holds(buffer.state_dict(), file, "replay_buffer")


@pytest.mark.parametrize("version", FORMATS)
def test_old_buffers_of_every_kind(version: str) -> None:
    """What was stored last: steps 8 to 19 of two envs (of `num_envs` 2 the last 6 each), frames 3 to 10.

    Frames 3 and 4 begin no stack of three: the first frames of theirs were overwritten.
    """
    for name, cls in (("buffer", rl.ReplayBuffer), ("prioritized", rl.PrioritizedReplayBuffer)):
        file = CORPUS / version / f"{name}.safetensors"
        buffer = cls.load(file)
        assert_holds(buffer.state_dict(), file, "replay_buffer")
        batch = buffer.sample(400)
        assert (len(buffer), buffer.capacity, buffer.num_envs) == (12, 12, 2)
        assert set(batch.reward.tolist()) == {*range(14, 20), *range(-19, -13)}
        assert batch.obs["a"][:, 0].tolist() == pytest.approx((batch.reward.abs() / 20).tolist())
        assert batch.next_obs["a"][:, 0].tolist() == pytest.approx(((batch.reward.abs() + 1) / 20).tolist())
        assert set(batch.reward[batch.terminated].tolist()) == {14, 19}
        if name == "buffer":
            assert torch.equal(batch.extra["x"][:, 0].float(), batch.reward.abs())
    frames = rl.ReplayBuffer.load(CORPUS / version / "frames.safetensors").sample(200)
    assert set(frames.reward.tolist()) == set(range(5, 11))
    assert torch.equal(frames.obs[:, 2, 0, 0], frames.reward.byte())
    assert torch.equal(frames.next_obs[:, 2, 0, 0], frames.reward.byte() + 1)


@pytest.mark.parametrize("version", FORMATS)
def test_an_old_batch(version: str) -> None:
    file = CORPUS / version / "batch.safetensors"
    batch = BatchRecorder.load(file)
    assert isinstance(batch, rl.Transitions)
    tensors = load_file(file)
    assert torch.equal(batch.reward, tensors["batch.fields.reward"])
    assert torch.equal(batch.obs["a"], tensors["batch.fields.obs.a"])


@pytest.mark.parametrize("version", FORMATS)
def test_old_params(version: str) -> None:
    text = (CORPUS / version / "ppo_params.json").read_text()
    assert rl.PPOParams.from_json(text) == rl.PPOParams(lr=rl.CosineSchedule(1e-3), gamma=0.95)
    text = (CORPUS / version / "update_params.json").read_text()
    assert rl.UpdateParams.from_json(text) == rl.UpdateParams(max_grad_norm=2.0)


@pytest.mark.parametrize("version", FORMATS)
def test_old_logs_are_gone_on_from(version: str, tmp_path: Path) -> None:
    shutil.copy(CORPUS / version / "ppo.jsonl", tmp_path / "ppo.jsonl")
    progress: Any = rl.JSONLinesLogger(tmp_path / "ppo.jsonl").read_progress()
    names = ("epoch", "env_step", "best_score", "best_return_std")
    assert tuple(progress[name] for name in names) == (2, 40, 5.0, 0.0)


@pytest.mark.parametrize("path", sorted(CORPUS.glob("run_format_*/*/checkpoint-*")), ids=lambda path: path.name)
def test_an_old_checkpoint_of_a_run_goes_on(path: Path) -> None:
    trainer: Any = build(path.parent.name)
    trainer.restore(path)
    assert_holds(trainer.algorithm.state_dict(), path / "algorithm.safetensors", "algorithm")
    manifest = json.loads((path / "manifest.json").read_text())
    assert manifest["step"] == trainer.state.training_step == int(path.name.removeprefix("checkpoint-"))
    segments = [load_file(path.parent / "segments" / name) for name in manifest["blocks"]["buffer"]["blocks"]]
    assert len(segments) >= 3
    for name, tensor in trainer.params.buffer.state_dict()["data"].items():
        assert torch.equal(torch.cat([segment[f"segment.data.{name}"] for segment in segments]), tensor), name
    assert trainer.run().epoch == 3


def test_a_run_that_was_saved_in_the_middle_of_episodes_goes_on_there() -> None:
    trainer = build("dqn_midway")
    trainer.restore(CORPUS / "midway_1" / "dqn_midway")
    state = trainer.params.training_collector.state_dict()
    assert state["adapter"]["clock"]["episode_step"] == [3, 3]
    trainer.params.training_collector._resume()
    assert trainer.params.training_collector.adapter.obs[:, 1].tolist() == [3, 3]
    for name, part in trainer.params.parts().items():
        assert_holds(part.state_dict(), CORPUS / "midway_1" / "dqn_midway" / f"{name}.safetensors", name)
    assert trainer.run().epoch == 3


@pytest.mark.parametrize("name", ["native", "saveable"])
def test_envs_that_were_saved_in_the_middle_of_episodes_go_on_there(name: str) -> None:
    state = read_state(CORPUS / "midway_1" / f"{name}.safetensors", "collector", CheckpointError)
    with collector_in(ENVS[name], replays=False) as collector:
        collector.load_state_dict(state)
        collector._resume()
        assert collector.adapter.obs.tolist() == state["adapter"]["obs"][0].tolist()
        steps = collector._episodes.running_length.copy()
        assert max(steps) > 1
        collector.collect(num_steps=1)
        assert collector.rollout().starts.tolist() == [False] * len(steps)


def test_old_records_of_episodes() -> None:
    steps = list(rl.replay_episode(CORPUS / "midway_1", 1, 1, Wanderer))
    assert steps[-1].terminated or steps[-1].truncated
