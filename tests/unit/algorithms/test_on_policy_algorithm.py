"""The sizes of minibatches: no larger than the rollout, and few different ones."""

from typing import Any

import pytest
import torch

import rltrainer as rl
from rltrainer.algorithms import OnPolicyBatch
from rltrainer.tree import map_tree
from tests.batches import collected
from tests.fakes import CountingEnv, ScriptedOnPolicy, counting_envs, tiny_actor_critic


class NotesSizes(ScriptedOnPolicy):
    """Remembers the size of each minibatch, and how many of its cells count."""

    def __init__(self, policy: rl.Policy) -> None:
        super().__init__(policy)
        self.sizes: list[tuple[int, int]] = []

    def gradient_step(self, batch: OnPolicyBatch) -> rl.UpdateResult:
        self.sizes.append((len(batch.weight), int(batch.weight.sum())))
        return super().gradient_step(batch)


def sizes(lengths: list[int], batch_size: int | None, **options: Any) -> list[tuple[int, int]]:
    """Train for one epoch in envs with episodes of these lengths."""
    todo = iter(lengths)
    envs = rl.make_vec(lambda: CountingEnv(length=next(todo)), len(lengths), backend="sync", seed=1)
    algorithm = NotesSizes(tiny_actor_critic(envs))
    params = rl.OnPolicyTrainerParams(
        training_collector=rl.Collector(algorithm.policy, envs), batch_size=batch_size, max_epochs=1, seed=1,
        epoch_num_steps=1, show_progress=False, verbose=False, **options,
    )  # fmt: skip
    algorithm.run_training(params)
    return algorithm.sizes


def by_episodes(num: int) -> dict[str, Any]:
    return {"collection_step_num_env_steps": None, "collection_step_num_episodes": num}


STEPS, EPISODES = {"collection_step_num_env_steps": 20}, by_episodes(5)


@pytest.mark.parametrize(
    ("lengths", "batch_size", "options", "expected"),
    [
        # A batch is no larger than a rollout of steps.
        *[([5, 5], size, STEPS, [(20, 20)]) for size in (99_999, 21, 20, None)],
        ([5, 5], 19, STEPS, [(19, 10), (19, 10)]),
        # Rollouts of episodes are padded to a power of two, unless they have it: 2 + 2 + 2 steps of the first env,
        # 9 + 9 of the second, 24 valid ones of 36. A batch is no larger than was asked for.
        *[([2, 9], size, EPISODES, [(32, 24)]) for size in (99_999, 32, None)],
        ([2, 9], 30, EPISODES, [(30, 24)]),
        ([2, 9], 16, EPISODES, [(16, 12), (16, 12)]),
        ([4, 4], None, by_episodes(4), [(16, 16)]),
    ],
)
def test_sizes_of_minibatches_and_their_valid_steps(
    lengths: list[int], batch_size: int | None, options: Any, expected: Any
) -> None:
    assert sizes(lengths, batch_size, **options) == expected


def test_a_direct_update_knows_the_limit_too() -> None:
    envs = counting_envs(2)
    algorithm = NotesSizes(tiny_actor_critic(envs))
    algorithm.update(collected(algorithm.policy, envs, 6), 99_999, 2)
    assert algorithm.sizes == [(12, 12)] * 2


class WholeEnvs(NotesSizes):
    """Takes what one env did in a minibatch, after a look at all."""

    def before_batches(self, samples: OnPolicyBatch) -> dict[str, torch.Tensor]:
        return {"cells": samples.weight.sum()}

    def batches(self, samples: OnPolicyBatch, batch_size: int | None, repeat: int) -> Any:
        for _ in range(repeat):
            yield from (_of_env(samples, env) for env in range(samples.weight.shape[1]))


def _of_env(samples: OnPolicyBatch, env: int) -> OnPolicyBatch:
    return OnPolicyBatch(*map_tree(lambda x: x[:, env], tuple(samples.fields().values())))


def test_an_algorithm_makes_its_own_batches() -> None:
    envs = counting_envs(3)
    algorithm = WholeEnvs(tiny_actor_critic(envs))
    result = algorithm.update(collected(algorithm.policy, envs, 5), 4, 2)
    assert algorithm.sizes == [(5, 5)] * 6
    assert result.floats() == {"loss": 3.5, "cells": 15.0}


def test_minibatches_are_asked_for_one_by_one_and_a_step_that_is_replaced_in_an_update_is_seen() -> None:
    class Replaces(NotesSizes):
        def batches(self, samples: OnPolicyBatch, batch_size: int | None, repeat: int) -> Any:
            found = super().batches(samples, batch_size, repeat)
            yield next(found)
            self.gradient_step = lambda batch: rl.UpdateResult({"loss": 0.0})  # type: ignore[method-assign]
            yield from found

    envs = counting_envs(3)
    algorithm = Replaces(tiny_actor_critic(envs))
    assert algorithm.update(collected(algorithm.policy, envs, 5), 5, 2).num_gradient_steps == 6
    assert algorithm.sizes == [(5, 5)]
