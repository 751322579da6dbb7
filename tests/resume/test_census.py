"""State census: a restored trainer must equal the saved one in everything that can be reached from it.

Any number, array, tensor or generator that changes while training and is in no checkpoint shows up here as a
difference, unless the list of exceptions names it with a reason.
"""

import dataclasses
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import rltrainer as rl
from tests.resume.runs import RUNS, build, digest

EXCEPTIONS = {
    r"timing|collect_time|_time$|_started$": "seconds",
    r"_collector\.(_checker\.)?_episodes\.(num_valid|_ended|open|_quota)": "counts of the last collection alone",
    r"_collector\._(limit|selection\._before|checker\._(began|has_warned|num_before|num_now))$": "set at a start of "
    "a collection",
    r"_episodes\._infos": "of the last step, and whether a warning was given",
    r"\.envs\b|(_env_state|_autoreset)\._(envs|saver|check)": "compared in test_midway.py",
    r"\.adapter\._(next|result|starting|autoreset\._first_obs|has_truncated)": "memory of the last step",
    r"\.adapter\._check_step\._": "what the last step that was checked looked like",
    r"_clock\.(num_steps|_began|_num_resets)$": "counted since the last reset of all envs; of one by one, only the "
    "difference of the first two says something, and test_midway.py compares that",
    r"history\._(rows|used|capacity)$": "with actions of episodes that are over; the rest is compared below",
    r"test_collector": "every test step starts its envs and seeds from the beginning",
    r"_ring\.token$": "whose steps came last: the envs of a restored run start anew, and continue nothing",
    r"_bar\b": "what is shown",
    r"\._returns\.": "returns to go, worked out from the ring when they are first asked for",
    r"_ring\.(_table|_is_table_old)$": "derived from how much is stored, made anew when needed",
    r"\._load_state_dict_pre_hooks\.|_tree\._newest_hook$": "numbered through a process, hooks of all modules together",
    r"sampler\._(beta|exponent)$": "of the progress of the last draw",
    r"exploration\._kept": "bounds of the action space as tensors, made at the first use",
    r"\._hooks\.(context|_open|_minibatch)\b": "of the training step under way, and whether hooks are set up",
    r"^trainer\._collected\b": "of the training step under way",
    r"^trainer\._profiler\.": "of one recording, which no resume goes on with",
    r"^trainer\._checkpoints\._(since|ended_step)$": "where the interval of saves counts from",
    r"state\.phase$": "that the next run continues is what restoring means",
    r"_selection\.(acting|initial|replacing|random|explore)$": "set at the start of every collection",
    r"params\.buffer\.(_|)(storage|obs|action|reward|terminated|truncated|final)": "offline data is the user's file",
}
# A rollout is used up by its update, and overwritten by the next collection.
UNWALKED = (rl.RolloutBuffer, type(re), type(len), type(lambda: 0), type)


def walk(value: Any, path: str, seen: set[int]) -> Iterator[tuple[str, Any]]:
    """Yield every leaf that can be reached, with its path."""
    if any(re.search(pattern, path) for pattern in EXCEPTIONS):
        return
    if value is None or isinstance(value, bool | int | float | str | bytes):
        yield path, value
        return
    if isinstance(value, tuple):
        for i, item in enumerate(value):
            yield from walk(item, f"{path}.{i}", seen)
        return
    if id(value) in seen or isinstance(value, UNWALKED):
        return
    seen.add(id(value))
    if isinstance(value, torch.Tensor):
        yield path, value.detach().clone()
    elif isinstance(value, np.ndarray):
        yield path, torch.from_numpy(value.copy()) if value.dtype != object else str(value)
    elif isinstance(value, torch.Generator):
        yield path, value.get_state()
    elif isinstance(value, np.random.Generator):
        yield path, str(value.bit_generator.state)
    elif isinstance(value, dict):
        for i, (key, item) in enumerate(value.items()):
            yield from walk(item, f"{path}.{key if isinstance(key, str | int) else i}", seen)
    elif isinstance(value, list):
        for i, item in enumerate(value):
            yield from walk(item, f"{path}.{i}", seen)
    else:
        for name, item in attributes(value).items():
            yield from walk(item, f"{path}.{name}", seen)


def attributes(value: Any) -> dict[str, Any]:
    if type(value).__module__.split(".")[0] not in ("rltrainer", "torch", "tests", "collections"):
        return {}
    if dataclasses.is_dataclass(value) and not hasattr(value, "__dict__"):
        return {field.name: getattr(value, field.name) for field in dataclasses.fields(value)}
    return dict(getattr(value, "__dict__", {}))


def census(trainer: Any) -> dict[str, Any]:
    return dict(walk(trainer, "trainer", set()))


def differences(one: dict[str, Any], other: dict[str, Any]) -> list[str]:
    def same(a: Any, b: Any) -> bool:
        if isinstance(a, torch.Tensor) and isinstance(b, torch.Tensor):
            return a.shape == b.shape and torch.equal(a, b)
        return type(a) is type(b) and (a == b or a != a)

    missing = object()
    return [path for path in one | other if not same(one.get(path, missing), other.get(path, missing))]


def saved_and_restored(name: str, path: Path) -> tuple[Any, Any]:
    """Return a trainer after an epoch, and one that was restored from it; both with their envs where they go on."""
    trainer = build(name)
    trainer.execute_epoch()
    trainer.save(path)
    restored = build(name)
    restored.restore(path)
    bring_envs_back(trainer, restored)
    return trainer, restored


def bring_envs_back(trainer: Any, restored: Any) -> None:
    """Let the envs of a run that was restored be where those of the other one are: its next collection does so."""
    collectors = [each.params.collectors().get("training_collector") for each in (trainer, restored)]
    if collectors[1] is not None and not collectors[1].needs_reset:
        collectors[1]._resume()
    elif collectors[1] is not None:
        for collector in collectors:
            collector.reset()


@pytest.mark.parametrize("name", RUNS)
def test_nothing_that_changes_is_left_out(name: str, tmp_path: Path) -> None:
    trainer, restored = saved_and_restored(name, tmp_path / "checkpoint")
    found = census(trainer)
    assert len(found) > 50
    assert differences(found, census(restored)) == []
    assert digest(trainer) == digest(restored)


@pytest.mark.parametrize("name", ["ppo", "sac", "offline_iql"])
def test_the_census_sees_what_training_changes(name: str) -> None:
    trainer = build(name)
    trainer.reset()
    before = census(trainer)
    trainer.execute_epoch()
    changed = differences(before, census(trainer))
    for kind in (r"policy.*weight", r"optimizer.*mean", r"generator", r"gradient_step$", r"state\.(best|epochs)"):
        assert any(re.search(kind, path) for path in changed), kind


@pytest.mark.parametrize("where", ["algorithm", "params.training_collector", "params.training_collector.buffer"])
def test_a_counter_that_nobody_saves_is_found(where: str, tmp_path: Path) -> None:
    trainer, restored = saved_and_restored("sac", tmp_path / "checkpoint")
    owner = trainer
    for attribute in where.split("."):
        owner = getattr(owner, attribute)
    owner.num_calls = 3
    assert differences(census(trainer), census(restored)) == [f"trainer.{where}.num_calls"]
