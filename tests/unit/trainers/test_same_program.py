"""Processes of a run whose programs differ: each of them names the field, both values and both ranks."""

import re
from functools import partial
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

import rltrainer as rl
from rltrainer.errors import ParamsError
from rltrainer.ranks.ranks import Ranks
from rltrainer.ranks.torch_ranks import process_ranks
from rltrainer.tools.runs.ranked import run_ranks
from rltrainer.trainers.same_program import require_same_program
from tests.fakes import counting_envs, run_in_threads
from tests.unit.tools.refusals import error_text


class Doubles(rl.TrainerHook):
    """Changes what is learned, by a factor."""

    def __init__(self, factor: float) -> None:
        self.factor, self._note = factor, object()

    def batch_process(self, ctx: Any, batch: Any) -> Any:
        return None


def made(fields: dict[str, Any]) -> tuple[Any, Any]:
    """Return an algorithm and params of its trainer; fields go to where they belong."""
    given = dict(fields)
    envs = counting_envs(given.pop("num_envs", 4))
    net = rl.ActorCritic.for_envs(envs, **{"hidden_sizes": (8,), **given.pop("policy", {})})
    kind = given.pop("algorithm", rl.PPO)
    algorithm = kind(net, kind.params_class(**given.pop("params", {})))
    given.pop("change", lambda _: None)(algorithm)
    return algorithm, rl.OnPolicyTrainerParams(**{"training_collector": rl.Collector(net, envs), "seed": 5, **given})


def off_policy(fields: dict[str, Any]) -> tuple[Any, Any]:
    envs = counting_envs(4)
    algorithm = rl.DQN(rl.QNetwork.for_envs(envs, hidden_sizes=(8,)))
    spaces = envs.single_observation_space, envs.single_action_space
    buffer = rl.PrioritizedReplayBuffer(
        **{"capacity": 64, **fields}, num_envs=4, **dict(zip(NAMES, spaces, strict=True))
    )
    return algorithm, rl.OffPolicyTrainerParams(training_collector=rl.Collector(algorithm.policy, envs, buffer))


def explore(std: float, algorithm: Any) -> None:
    algorithm.policy.exploration = rl.GaussianNoise(lambda progress: std * progress)


def explore_by_numpy(std: float, algorithm: Any) -> None:
    algorithm.policy.exploration = noise = rl.GaussianNoise(std)
    object.__setattr__(noise, "settings", lambda progress: {"std": np.float32(std)})


def freeze(algorithm: Any) -> None:
    next(algorithm.policy.parameters()).requires_grad_(False)


def of(**parallel: Any) -> dict[str, Any]:
    return {"runtime": rl.RuntimeParams(parallel=rl.ParallelParams(**parallel))}


NAMES = ("observation_space", "action_space")
ADAMW: Any = torch.optim.AdamW
EVERY_THIRD = rl.CheckpointParams("there", every=3)
TWO = (0.1, 0.2)
DIFFERENCES: list[tuple[dict[str, Any], dict[str, Any], str]] = [
    ({}, {"params": {"lr": 0.1}}, r"^PPOParams\.lr: must be the same .*; got 0\.0003 in rank 0 and 0\.1 in rank 1\. "),
    ({}, {"params": {"lr": rl.LinearSchedule(1e-3)}}, r"^PPOParams\.lr: .* and 'LinearSchedule\(start=0\.001"),
    (*({"params": {"lr": lambda p, x=x: x * (1 + p)}} for x in TWO), r"^optimizer over progress: .* got \[0\.1"),
    (*({"params": {"clip": lambda p, x=x: x}} for x in TWO), r"^clip over progress: "),
    ({}, {"params": {"max_grad_norm": None}}, r"^PPOParams\.max_grad_norm: .* 0\.5 in rank 0 and None in rank 1"),
    ({}, {"params": {"optimizer": rl.rms_prop}}, r"^optimizer: .* got 'nothing' in rank 0 and 'RMSprop"),
    (*({"params": {"optimizer": partial(ADAMW, weight_decay=x)}} for x in TWO), r"^optimizer: .* got 'AdamW"),
    ({}, {"algorithm": rl.A2C}, r"^algorithm: .* got 'PPO' in rank 0 and 'A2C' in rank 1"),
    ({}, {"params": {"gamma": 0.9}}, r"^PPOParams\.gamma: "),
    ({}, {"batch_size": 32}, r"^OnPolicyTrainerParams\.batch_size: .* got 64 in rank 0 and 32 in rank 1"),
    ({}, {"collection_step_num_env_steps": 64}, r"^OnPolicyTrainerParams\.collection_step_num_env_steps: "),
    ({}, {"seed": None}, r"^OnPolicyTrainerParams\.seed: .* got 5 in rank 0 and None in rank 1"),
    ({}, {"max_epochs": 3}, r"^OnPolicyTrainerParams\.max_epochs: .* got 100 in rank 0 and 3 in rank 1"),
    ({}, {"update": rl.UpdateParams(accumulate=2)}, r"^OnPolicyTrainerParams\.update\.accumulate: .* 1 in rank 0"),
    ({}, {"checkpoint": EVERY_THIRD}, r"^OnPolicyTrainerParams\.checkpoint: .* got None in rank 0"),
    ({"checkpoint": rl.CheckpointParams("there")}, {"checkpoint": EVERY_THIRD}, r"Params\.checkpoint\.every: "),
    (of(), of(num_shards=2), r"^OnPolicyTrainerParams\.runtime\.parallel\.num_shards: .* got None in rank 0 and 2 in"),
    (of(), of(exact=True), r"^OnPolicyTrainerParams\.runtime\.parallel\.exact: "),
    ({}, {"runtime": rl.RuntimeParams(compile=False)}, r"^OnPolicyTrainerParams\.runtime\.compile: "),
    ({}, {"hooks": [Doubles(2.0)]}, r"^OnPolicyTrainerParams\.hooks: .* got \[\] in rank 0 and \['Doubles'\]"),
    (*({"hooks": [Doubles(x)]} for x in TWO), r"^OnPolicyTrainerParams\.hooks: Doubles\.factor: .* got 0\.1 in rank 0"),
    ({}, {"policy": {"hidden_sizes": (16,)}}, r"^policy\.actor\.\S+: .*out_features=8.*out_features=16"),
    ({}, {"policy": {"activation": nn.SiLU}}, r"^policy\.actor\.\S+: .*SiLU"),
    ({}, {"change": freeze}, r"^policy\.\S+: .*, frozen' in rank 1"),
    (*({"change": partial(explore, x)} for x in TWO), r"^policy\.exploration over progress: "),
    (*({"change": partial(explore_by_numpy, x)} for x in TWO), r"^policy\.exploration\.std: "),
    ({}, {"num_envs": 8}, r"^OnPolicyTrainerParams\.training_collector\.envs: .* '4 of None' in rank 0"),
    ({"capacity": 64}, {"capacity": 128}, r"^OffPolicyTrainerParams\.buffer\.capacity: "),
    ({"alpha": 0.6}, {"alpha": 0.3}, r"^OffPolicyTrainerParams\.buffer\.sampler\.alpha: "),
]  # fmt: skip


def refusal(program: tuple[Any, Any], ranks: Ranks) -> str:
    return error_text(ParamsError, require_same_program, ranks, *program)


@pytest.mark.parametrize(("first", "last", "text"), DIFFERENCES)
def test_all_ranks_name_the_difference(first: Any, last: Any, text: str) -> None:
    make = off_policy if "OffPolicy" in text else made
    found = run_in_threads([partial(refusal, make(fields)) for fields in (first, first, last)])
    assert found == found[:1] * 3
    assert re.search(text.replace("rank 1", "rank 2"), found[0]), found[0]


def test_what_the_first_rank_alone_follows_may_differ() -> None:
    fields = {"verbose": False, "training_fn": print, "hooks": [rl.EarlyStopping(patience=1)]}
    programs = [made(fields), made({"runtime": rl.RuntimeParams(profiler=rl.ProfilerParams())})]
    run_in_threads([lambda ranks, each=each: require_same_program(ranks, *each) for each in programs])


def compare_seeds() -> list[str]:
    """Return the text of the error in each of two processes."""
    text = refusal(made({"seed": process_ranks().rank}), process_ranks())
    with (ranks := process_ranks()).reporting():
        return ranks.from_all(text)


@pytest.mark.full
def test_processes_that_differ_name_the_difference() -> None:
    text = r"OnPolicyTrainerParams.seed: must be the same in all processes of a run; got 0 in rank 0 and 1 in rank 1. "
    assert [each.startswith(text) for each in run_ranks("test", 2, compare_seeds)] == [True, True]
