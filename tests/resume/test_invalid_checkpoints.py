"""Checkpoints with right checksums and wrong contents: an error with nothing changed, or harmless; no other error.

Every value in every part of a checkpoint is replaced in turn by what does not belong there.
"""

import json
import warnings
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch

import rltrainer as rl
from rltrainer.checkpoint import read_checkpoint
from rltrainer.errors import CheckpointError
from tests.resume.runs import build, digest
from tests.resume.test_resume import forget_what_led_there

MISSING = object()
REPLACEMENTS: list[Any] = [MISSING, None, -1, 2**80, float("nan"), "text", []]


def tensors_like(tensor: torch.Tensor) -> Iterator[torch.Tensor]:
    """Yield tensors of other shapes, dtypes and values."""
    yield tensor.reshape(-1)[:-1] if tensor.numel() else torch.zeros(3)
    yield tensor.unsqueeze(0)
    yield tensor.to(torch.float16 if tensor.is_floating_point() else torch.float32)
    if tensor.is_floating_point():
        yield torch.full_like(tensor, float("nan"))
        yield -tensor.abs() - 1
    elif tensor.dtype != torch.bool:
        yield torch.full_like(tensor, torch.iinfo(tensor.dtype).max)
        yield torch.full_like(tensor, torch.iinfo(tensor.dtype).min)


def wrong_values(value: Any) -> Iterator[Any]:
    yield from REPLACEMENTS
    if isinstance(value, torch.Tensor):
        yield from tensors_like(value)
    else:
        yield torch.zeros(2)
    if isinstance(value, dict):
        yield value | {"unknown": 1}
    if isinstance(value, list):
        yield [*value, 7]


def paths(value: Any) -> Iterator[tuple[Any, ...]]:
    """Yield the way to every value in a state, those of containers too; of lists to the first."""
    items: list[tuple[Any, Any]] = []
    if isinstance(value, dict):
        items = list(value.items())
    elif isinstance(value, list):
        items = list(enumerate(value))[:1]
    for key, item in items:
        yield (key,)
        yield from ((key, *rest) for rest in paths(item))


def at(state: Any, path: tuple[Any, ...]) -> Any:
    for key in path:
        state = state[key]
    return state


def changed(state: Any, path: tuple[Any, ...], value: Any) -> Any:
    """Return a state with one value replaced; everything that is not on its way is shared."""
    result: Any = dict(state) if isinstance(state, dict) else list(state)
    if len(path) > 1:
        result[path[0]] = changed(state[path[0]], path[1:], value)
    elif value is MISSING:
        del result[path[0]]
    else:
        result[path[0]] = value
    return result


def fingerprint(trainer: Any, log: Path) -> Any:
    """Return all that a failed restore must leave alone."""
    collectors = trainer.params.collectors().values()
    return (
        digest(trainer),
        None if trainer.params.logger is None else json.dumps(trainer.params.logger.state_dict(), default=str),
        log.read_bytes() if log.exists() else b"",
        [optimizer.method.lr for optimizer in trainer.algorithm._optimizers()],
        [(c.adapter._clock.state(), c.needs_reset, c.adapter.is_fresh) for c in collectors],
        torch.get_rng_state().sum().item(),
        (trainer.state.phase, trainer.state.runtime),
        trainer.algorithm.plan.runtime,
    )


def under_way(name: str, log: Path) -> Any:
    trainer = build(name, logger=rl.JSONLinesLogger(log, training_interval=1, update_interval=1))
    trainer.reset()
    for _ in range(2):
        trainer.execute_epoch()
    return trainer


def saved_in_an_epoch(name: str, path: Path, log: Path) -> None:
    """Save in the middle of an epoch, so that every field is in use."""
    trainer = build(name, logger=rl.JSONLinesLogger(log, training_interval=1, update_interval=1))
    trainer.reset()
    trainer.execute_epoch()
    object.__setattr__(trainer.params, "save_checkpoint_fn", lambda *_: trainer.save(path, overwrite=True))
    trainer.execute_epoch()


@pytest.mark.parametrize(
    ("name", "part"),
    [
        ("ppo", "algorithm"), ("ppo", "training_collector"), ("ppo", "logger"), ("ppo", "trainer"),
        ("ppo_midway", "training_collector"), ("dqn_midway", "training_collector"),
        ("sac", "algorithm"), ("sac", "buffer"), ("offline_bc", "buffer"), ("offline_bc", "trainer"),
        ("sac_mixed", "buffer"), ("dqn_prioritized", "buffer"), ("recurrent_ppo", "training_collector"),
        ("td3", "algorithm"), ("c51", "algorithm"),
    ],
)  # fmt: skip
def test_whatever_is_wrong_in_a_part_is_refused_and_nothing_changes(
    name: str, part: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    saved_in_an_epoch(name, tmp_path / "checkpoint", tmp_path / "saved.jsonl")
    states = read_checkpoint(tmp_path / "checkpoint")
    log = tmp_path / "log.jsonl"
    trainer = under_way(name, log)
    before = fingerprint(trainer, log)
    num_refused = num_accepted = 0
    for path in paths(states[part]):
        if path[0] in ("params", "construction"):
            continue  # settings, compared as they are; and what only `rl.load` looks at
        for value in wrong_values(at(states[part], path)):
            wrong = states | {part: changed(states[part], path, value)}
            opened = SimpleNamespace(path=tmp_path / "wrong", states=lambda *_, wrong=wrong: wrong)
            monkeypatch.setattr("rltrainer.trainers.trainer.open_checkpoint", lambda *_, opened=opened: opened)
            try:
                with warnings.catch_warnings():
                    warnings.simplefilter("ignore")
                    trainer.restore(tmp_path / "wrong")
            except CheckpointError as error:
                num_refused += 1
                assert str(tmp_path / "wrong") in str(error)  # noqa: PT017
                assert fingerprint(trainer, log) == before, (path, value)
            else:
                num_accepted += 1
                before = fingerprint(trainer, log)
    assert num_refused > 10
    assert num_accepted < 0.3 * num_refused


def test_a_warning_that_is_an_error_comes_before_anything_changes(tmp_path: Path) -> None:
    saved = build("dqn")
    saved.reset()
    saved.execute_epoch()
    saved.params.training_collector.collect(num_steps=4)  # in the middle of an episode
    forget_what_led_there(saved, tmp_path / "checkpoint")
    trainer = under_way("dqn", tmp_path / "log.jsonl")
    before = fingerprint(trainer, tmp_path / "log.jsonl")
    with pytest.raises(UserWarning, match="start a new episode"):
        trainer.restore(tmp_path / "checkpoint")
    assert fingerprint(trainer, tmp_path / "log.jsonl") == before


def test_a_preparation_that_fails_is_undone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    saved_in_an_epoch("offline_iql", tmp_path / "checkpoint", tmp_path / "saved.jsonl")
    trainer = under_way("offline_iql", tmp_path / "log.jsonl")
    before = fingerprint(trainer, tmp_path / "log.jsonl")

    def fail(buffer: rl.ReplayBuffer) -> None:
        trainer.algorithm.policy.obs_normalizer.reset()
        trainer.algorithm.generator.manual_seed(1)
        raise MemoryError

    monkeypatch.setattr(trainer.algorithm, "prepare", fail)
    with pytest.raises(MemoryError):
        trainer.restore(tmp_path / "checkpoint")
    assert fingerprint(trainer, tmp_path / "log.jsonl") == before


def test_envs_that_fail_to_start_are_met_by_the_next_collection(tmp_path: Path) -> None:
    saved_in_an_epoch("dqn", tmp_path / "checkpoint", tmp_path / "saved.jsonl")
    trainer = build("dqn")

    def fail(**_: Any) -> None:
        raise RuntimeError("no more memory on the simulator")

    trainer.params.training_collector.envs.reset = fail
    trainer.restore(tmp_path / "checkpoint")
    with pytest.raises(RuntimeError, match="no more memory on the simulator"):
        trainer.run()


def test_a_refused_restore_resets_no_env_and_breaks_no_trace(tmp_path: Path) -> None:
    saved_in_an_epoch("dqn", tmp_path / "checkpoint", tmp_path / "saved.jsonl")
    trainer = build("dqn")
    trainer.reset()
    collector = trainer.params.training_collector
    collector.collect(num_steps=4)
    resets, reset = [], collector.envs.reset
    collector.envs.reset = lambda **options: resets.append(1) or reset(**options)
    object.__setattr__(trainer.params, "batch_size", 3)
    with pytest.raises(CheckpointError, match="batch_size was 8 when it was saved and is 3 now"):
        trainer.restore(tmp_path / "checkpoint")
    collector.collect(num_steps=4)
    assert resets == []
    sample = trainer.buffer.sample(200, n_step=4, gamma=1.0)
    # The first cell of each env sees four steps ahead, through the failed restore.
    first = sample.obs[:, 1] == 0
    assert sample.next_obs[first, 1].unique().tolist() == [4]
    assert sample.reward[first].unique().tolist() == [4]


def test_an_accepted_restore_leaves_the_log_of_another_run_alone(tmp_path: Path) -> None:
    saved_in_an_epoch("ppo", tmp_path / "checkpoint", tmp_path / "saved.jsonl")
    other = build("ppo", max_epochs=9, logger=rl.JSONLinesLogger(tmp_path / "log.jsonl", training_interval=1))
    other.run()
    before = (tmp_path / "log.jsonl").read_bytes()
    trainer = build("ppo", logger=rl.JSONLinesLogger(tmp_path / "log.jsonl"))
    with pytest.warns(RuntimeWarning, match="log.jsonl: is not the log that the checkpoint knows"):
        trainer.restore(tmp_path / "checkpoint")
    trainer.run()
    assert (tmp_path / "log.jsonl").read_bytes() == before
    assert (tmp_path / "log-2.jsonl").exists()
