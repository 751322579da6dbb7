"""Files of earlier formats: what they hold arrives, bit for bit, and the run goes on."""

from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file

import rltrainer as rl
from tests.fakes import counting_envs
from tests.resume.runs import BOX, build

CORPUS = Path(__file__).parent / "corpus"
OLD_RUNS = [path for path in sorted(CORPUS.glob("format_*/*")) if path.is_dir()]


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
    assert found.keys() == expected.keys()
    for name, tensor in expected.items():
        assert torch.equal(found[name].cpu(), tensor), name


@pytest.mark.parametrize("path", OLD_RUNS, ids=lambda path: f"{path.parent.name}-{path.name}")
def test_an_old_checkpoint_goes_on(path: Path) -> None:
    trainer = build(path.name)
    trainer.restore(path)
    for name, part in {"algorithm": trainer.algorithm, **trainer.params.parts()}.items():
        assert_holds(part.state_dict(), path / f"{name}.safetensors", name)
    assert (trainer.epoch, trainer.gradient_step) == {
        "ppo": (2, 24), "dqn": (2, 7), "sac": (2, 10), "offline_bc": (2, 8)
    }[path.name]  # fmt: skip
    assert trainer.run().epoch == 3


def test_an_old_algorithm_file_with_an_optimizer_of_torch() -> None:
    envs = counting_envs(2, action_space=BOX)
    params = rl.SACParams(optimizer=lambda parameters: torch.optim.AdamW(parameters, lr=0.7))
    algorithm = rl.SAC(rl.SquashedActorCritic.for_envs(envs, hidden_sizes=(8,)), params)
    file = CORPUS / "format_1" / "sac_adamw.safetensors"
    algorithm.load(file)
    assert_holds(algorithm.state_dict(), file, "algorithm")


def test_files_that_say_what_they_hold() -> None:
    file = CORPUS / "format_2" / "sac.safetensors"
    algorithm: Any = rl.load(file)
    assert_holds(algorithm.state_dict(), file, "algorithm")
    assert algorithm.params == rl.SACParams(lr=rl.LinearSchedule(1e-3), gamma=0.9)
    assert algorithm.policy.net_params == rl.NetParams(hidden_sizes=(4,), activation=torch.nn.ELU)
    space = algorithm.policy.observation_space
    assert space.keys() == {"choice", "numbers"}
    assert algorithm.policy.action_space.contains(rl.load_policy(file).predict(space.sample()))
    policy: Any = rl.load_policy(CORPUS / "format_2" / "q_network.safetensors")
    assert_holds({"policy": policy.state_dict()}, CORPUS / "format_2" / "q_network.safetensors", "policy")
    assert policy.predict(space.sample()) in (0, 1)


def test_an_old_buffer_file() -> None:
    file = CORPUS / "format_1" / "buffer.safetensors"
    buffer = rl.ReplayBuffer.load(file)
    assert (len(buffer), buffer.capacity, buffer.num_envs) == (30, 40, 2)
    assert_holds(buffer.state_dict(), file, "replay_buffer")


def test_an_old_checkpoint_continues_its_log_and_no_other(tmp_path: Path) -> None:
    saved = (CORPUS / "format_1" / "ppo.jsonl").read_bytes()
    later = b'{"kind": "test", "step": 60, "test/score": 5.0}\n'
    for name, data in (("log.jsonl", saved + later), ("other.jsonl", later * 50)):
        path = tmp_path / name
        path.write_bytes(data)
        trainer = build("ppo", logger=rl.JSONLinesLogger(path))
        if name == "other.jsonl":
            with pytest.warns(RuntimeWarning, match="other.jsonl: is not the log that the checkpoint knows"):
                trainer.restore(CORPUS / "format_1" / "ppo")
            trainer.run()
            assert path.read_bytes() == data
            assert (tmp_path / "other-2.jsonl").exists()
        else:
            trainer.restore(CORPUS / "format_1" / "ppo")
            assert path.read_bytes() == saved
            trainer.run()
            assert path.read_bytes().startswith(saved)
