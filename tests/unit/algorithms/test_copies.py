"""Copies and pickles of algorithms: equal, apart from the original, and trained on as it is."""

import copy
import pickle
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch

import rltrainer as rl
from tests.fakes import POLICY_OPTIONS, built, counting_envs
from tests.resume.runs import ALGORITHMS

WAYS: dict[str, Callable[[Any], Any]] = {
    "pickle": lambda algorithm: pickle.loads(pickle.dumps(algorithm)),
    "deepcopy": copy.deepcopy,
}
way = pytest.mark.parametrize("duplicate", WAYS.values(), ids=WAYS.keys())


def make(kind: str, **params: Any) -> Any:
    algorithm_class, policy_class, action_space = ALGORITHMS[kind]
    rl.seed(1)
    options: dict[str, Any] = {"normalize_reward": True} if policy_class is rl.ActorCritic else {}
    options |= POLICY_OPTIONS.get(algorithm_class, {})
    envs = counting_envs(truncates=True, action_space=action_space)
    policy = policy_class.for_envs(envs, hidden_sizes=(4,), normalize_obs=True, **options)
    return built(algorithm_class, policy, algorithm_class.params_class(**params))


def train(algorithm: Any) -> None:
    envs = counting_envs(truncates=True, action_space=algorithm.policy.action_space)
    common: dict[str, Any] = {"max_epochs": 1, "epoch_num_steps": 20, "collection_step_num_env_steps": 10}
    size = 5 if algorithm.trains_recurrent else 8  # whole envs
    common |= {"batch_size": size, "seed": 3, "show_progress": False, "verbose": False}
    if isinstance(algorithm, rl.OnPolicyAlgorithm):
        collector = rl.Collector(algorithm.policy, envs)
        algorithm.run_training(rl.OnPolicyTrainerParams(training_collector=collector, **common))
    else:
        buffer = rl.ReplayBuffer(100, envs.single_observation_space, envs.single_action_space, num_envs=2)
        collector = rl.Collector(algorithm.policy, envs, buffer)
        algorithm.run_training(rl.OffPolicyTrainerParams(training_collector=collector, **common))


def tensors(value: Any) -> Iterator[torch.Tensor]:
    for item in value.values() if isinstance(value, dict) else []:
        yield from tensors(item)
    if isinstance(value, torch.Tensor):
        yield value.clone()


def are_equal(one: Any, other: Any) -> bool:
    pairs = zip(tensors(one.state_dict()), tensors(other.state_dict()), strict=True)
    return all(torch.equal(a, b) for a, b in pairs)


@way
@pytest.mark.parametrize("kind", ALGORITHMS)
def test_a_copy_is_equal_and_trains_on_equally(kind: str, duplicate: Callable[[Any], Any]) -> None:
    algorithm = make(kind)
    for _ in range(2):  # new, and trained
        made = duplicate(algorithm)
        assert are_equal(made, algorithm)
        assert made.params == algorithm.params
        train(made)
        assert not are_equal(made, algorithm)
        train(algorithm)
        assert are_equal(made, algorithm)


@way
@pytest.mark.parametrize("optimizer", [torch.optim.AdamW, torch.optim.RMSprop])
def test_an_optimizer_of_the_users_is_copied(optimizer: Any, duplicate: Callable[[Any], Any]) -> None:
    algorithm = make("dqn", optimizer=optimizer)
    train(algorithm)
    made = duplicate(algorithm)
    train(made)
    train(algorithm)
    assert are_equal(made, algorithm)


def test_lambdas_are_copied_but_not_pickled() -> None:
    algorithm = make("dqn", lr=lambda progress: 1e-3, optimizer=lambda parameters: torch.optim.Adam(parameters))
    made = copy.deepcopy(algorithm)
    train(made)
    train(algorithm)
    assert are_equal(made, algorithm)
    with pytest.raises((pickle.PicklingError, AttributeError), match="lambda"):  # as pickle says of any lambda
        pickle.dumps(algorithm)
