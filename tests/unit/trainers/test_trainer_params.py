"""Every field of every params class against every kind of wrong value."""

import dataclasses
import json
from typing import Any

import numpy as np
import pytest

import rltrainer as rl
from rltrainer.errors import ParamsError
from rltrainer.nets.normalizer import warn_once
from tests.fakes import counting_envs, replay_of, tiny_actor_critic


def online(cls: type[Any], **changes: Any) -> Any:
    envs = counting_envs()
    policy = tiny_actor_critic(envs)
    training = rl.Collector(policy, envs, replay_of(envs, 10) if cls is rl.OffPolicyTrainerParams else None)
    options = {"training_collector": training, "test_collector": rl.Collector(policy, counting_envs())}
    return cls(**(options | changes))


def offline(cls: type[Any], **changes: Any) -> Any:
    envs = counting_envs()
    policy = tiny_actor_critic(envs)
    buffer = replay_of(envs, 10)
    rl.Collector(policy, envs, buffer).collect(num_steps=10)
    return cls(**({"buffer": buffer, "test_collector": rl.Collector(policy, envs)} | changes))


MAKERS = {rl.OnPolicyTrainerParams: online, rl.OffPolicyTrainerParams: online, rl.OfflineTrainerParams: offline}


@pytest.mark.parametrize("cls", MAKERS)
def test_json_round_trip(cls: type[Any]) -> None:
    params = MAKERS[cls](cls, seed=3, batch_size=7, training_fn=print)
    live = {f.name: getattr(params, f.name) for f in dataclasses.fields(params) if not f.compare}
    text = params.to_json()
    assert cls.from_json(text, **live) == params
    assert json.loads(text)["fields"]["training_fn"] == {"live": "print"}
    with pytest.raises(ParamsError, match="JSON holds only the name"):
        cls.from_json(text)
    with pytest.raises(ParamsError, match="unknown field 'batch_sise'. Did you mean 'batch_size'"):
        cls.from_json(text, batch_sise=3, **live)


def test_several_agents_are_reduced() -> None:
    stats = rl.CollectStats(4, 4, np.array([[1.0, 3.0], [2.0, 6.0]]), np.array([2, 2]), 0.1)
    reduced = stats.reduce_agents(lambda returns: returns[:, 1])
    assert reduced.returns.tolist() == [3.0, 6.0]
    with pytest.raises(ParamsError, match="must be given for envs with 2 agents; got None"):
        stats.reduce_agents(None)
    with pytest.raises(ParamsError, match=r"must return shape \(2,\); got shape \(\)"):
        stats.reduce_agents(lambda returns: returns.sum())


@pytest.mark.parametrize(("num_steps", "num_rows"), [(10, None), (9, None), (8, 4), (1, 1)])
def test_a_rollout_of_few_steps_of_each_env_is_named(num_steps: int, num_rows: int | None, caplog: Any) -> None:
    warn_once.cache_clear()
    envs = counting_envs(2)
    algorithm = rl.A2C(tiny_actor_critic(envs))
    collector = rl.Collector(algorithm.policy, envs)
    rl.OnPolicyTrainer(
        algorithm, online(rl.OnPolicyTrainerParams, training_collector=collector, test_collector=None,
                          collection_step_num_env_steps=num_steps, batch_size=None),
    )  # fmt: skip
    words = f"{num_steps} of 2 envs are {num_rows} of each, few to learn from. Take 10 or more."
    assert caplog.messages == (
        [] if num_rows is None else [f"OnPolicyTrainerParams.collection_step_num_env_steps: {words}"]
    )
