"""Advantages of a minibatch with one step are 0 where they are standardised: an error, since no actor would learn."""

from typing import Any

import pytest
import torch

import rltrainer as rl
from rltrainer.errors import ParamsError
from tests import batches
from tests.fakes import counting_envs

ALGORITHMS: dict[str, Any] = {
    "PPO": (rl.PPO, rl.PPOParams()), "A2C": (rl.A2C, rl.A2CParams(normalize_advantage=True)),
    "IMPALA": (rl.IMPALA, rl.IMPALAParams(normalize_advantage=True)), "RecurrentPPO": (rl.RecurrentPPO, rl.PPOParams()),
    "TRPO": (rl.TRPO, rl.TRPOParams()), "REINFORCE": (rl.REINFORCE, rl.REINFORCEParams()),
}  # fmt: skip


def algorithm_of(name: str, envs: Any, params: Any = None) -> Any:
    algorithm, of_name = ALGORITHMS[name]
    return algorithm(algorithm.policy_class.for_envs(envs, hidden_sizes=(4,)), params or of_name)


def trainer_of(name: str, num_envs: int, num_steps: int | None, batch_size: int | None, params: Any = None) -> Any:
    envs = counting_envs(num_envs)
    algorithm = algorithm_of(name, envs, params)
    settings = rl.OnPolicyTrainerParams(
        training_collector=rl.Collector(algorithm.policy, envs), collection_step_num_env_steps=num_steps,
        collection_step_num_episodes=1 if num_steps is None else None, batch_size=batch_size, epoch_num_steps=4,
        max_epochs=1, show_progress=False, verbose=False, seed=1,
    )  # fmt: skip
    return settings.create_trainer(algorithm)


@pytest.mark.parametrize(
    ("name", "num_envs", "num_steps", "batch_size"),
    [
        ("PPO", 2, 8, 1), ("PPO", 1, 1, 64), ("PPO", 1, 1, None), ("PPO", 1, 3, 2), ("PPO", 3, 9, 2),
        ("PPO", 2, None, 1), ("PPO", 2, None, 2), ("A2C", 2, 8, 1), ("IMPALA", 2, 8, 1), ("RecurrentPPO", 4, 4, 1),
        ("RecurrentPPO", 3, 3, 2), ("RecurrentPPO", 1, 1, None), ("TRPO", 1, 1, 64), ("REINFORCE", 1, 1, None),
    ],
)  # fmt: skip
def test_a_trainer_refuses_them(name: str, num_envs: int, num_steps: int | None, batch_size: int | None) -> None:
    field = f"{name}Params.standardize_return" if name == "REINFORCE" else f"{name}Params.normalize_advantage"
    field = field.replace("Recurrent", "")
    given = None if name in ("TRPO", "REINFORCE") else batch_size
    of_what = "" if num_steps is None else f" of the rollout's {num_steps}"
    with pytest.raises(ParamsError) as caught:
        trainer_of(name, num_envs, num_steps, batch_size)
    assert str(caught.value) == (
        f"{name}.batch_size: must leave no minibatch with one step{of_what}, as {field}=True makes its advantage 0: "
        f"no actor is trained; got {given!r} ({type(given).__name__}). "
        f"Take larger minibatches, collect more, or set {field}=False."
    )


@pytest.mark.parametrize(
    ("name", "num_envs", "num_steps", "batch_size"),
    [
        ("PPO", 2, 8, 2), ("PPO", 1, 4, 3), ("PPO", 1, 5, 4), ("PPO", 2, 8, None), ("PPO", 2, None, 3),
        ("RecurrentPPO", 1, 4, 4), ("RecurrentPPO", 4, 4, 2), ("TRPO", 2, 8, 1),
    ],
)  # fmt: skip
def test_others_train(name: str, num_envs: int, num_steps: int | None, batch_size: int | None) -> None:
    trainer = trainer_of(name, num_envs, num_steps, batch_size)
    before = [p.detach().clone() for p in trainer.algorithm.policy.actor.parameters()]
    trainer.run()
    assert any(not torch.equal(p, old) for p, old in zip(trainer.algorithm.policy.actor.parameters(), before))  # noqa: B905


def test_without_standardising_one_cell_is_enough() -> None:
    for name, params in (("PPO", rl.PPOParams(normalize_advantage=False)), ("A2C", rl.A2CParams())):
        assert trainer_of(name, 1, 1, 1, params=params).run().gradient_step == 4


def one_cell(algorithm: Any) -> rl.Rollout:
    """Return a rollout of three steps, of which one is valid."""
    obs, zero = torch.zeros(3, 1, *algorithm.policy.observation_space.shape), torch.zeros(3, 1)
    valid = torch.tensor([[True], [False], [False]])
    return batches.rollout(obs, zero.long(), zero + 1, valid=valid, extra={"log_prob": zero})


@pytest.mark.parametrize("name", ["PPO", "A2C", "IMPALA", "TRPO", "REINFORCE"])
def test_an_update_by_hand_refuses_a_rollout_with_one_valid_cell(name: str) -> None:
    algorithm = algorithm_of(name, counting_envs(1))
    with pytest.raises(ParamsError, match=rf"^{name}\.batch_size: must leave no minibatch with one step of the roll"):
        algorithm.update(one_cell(algorithm), None, 1)
