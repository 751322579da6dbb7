"""Distillation: losses by hand, what a teacher is asked and what it is not changed by, students with memory, errors."""

from pathlib import Path
from typing import Any

import gymnasium as gym
import numpy as np
import pytest
import torch

import rltrainer as rl
from rltrainer.errors import CheckpointError
from rltrainer.nets.distributions import Categorical, DiagonalGaussian
from rltrainer.state.state_file import read_state, write_state
from tests import batches

PLACE = gym.spaces.Box(-1.0, 1.0, (1,), np.float32)
OBS = gym.spaces.Dict(place=PLACE, speed=PLACE)
BOX = gym.spaces.Box(np.array([-2.0], np.float32), np.array([6.0], np.float32))
DISCRETE = gym.spaces.Discrete(3, start=4)
SEES_PLACE = rl.NetParams(hidden_sizes=(16,), keys=("place",))


def teacher_of(space: Any = BOX, obs: Any = OBS, cls: Any = rl.ActorCritic, **options: Any) -> Any:
    return cls.for_spaces(obs, space, **{"hidden_sizes": (4,), "normalize_obs": True, **options})


def make(student: Any = rl.ActorCritic, space: Any = BOX, teacher: Any = None, **params: Any) -> Any:
    rl.seed(1)
    policy = student.for_spaces(OBS, space, SEES_PLACE, normalize_obs=True)
    algorithm = rl.Distillation(policy, teacher or teacher_of(space), rl.DistillationParams(**params))
    algorithm.seed(2)
    return algorithm


def rollout(algorithm: Any, seed: int = 0, num_rows: int = 6) -> rl.Rollout:
    g, shape = batches.generator(seed), (num_rows, 4)
    obs, last = ({key: 2 * torch.rand(*of, 1, generator=g) - 1 for key in OBS} for of in (shape, shape[1:]))
    action = torch.zeros(*shape, *algorithm.policy.action_space.shape)  # the student's own, of which nothing is learned
    extra = {name: torch.zeros(*shape, *algorithm.policy.columns[name][0]) for name in algorithm.columns}
    return batches.rollout(obs, action, torch.full(shape, torch.nan), last_obs=last, extra=extra)


@pytest.mark.parametrize(("loss", "expected"), [("mse", [0.17, 5.0]), ("huber", [0.085, 1.5])])
def test_the_losses_of_a_box_by_hand(loss: Any, expected: list[float]) -> None:
    """Errors (.5, -.3) and (1, 3): the means of .25, .09 and of 1, 9; Huber's of .125, .045 and of .5, 2.5."""
    mean = torch.tensor([[0.5, -0.3], [1.0, 3.0]], requires_grad=True)
    found = make(loss=loss).imitation_loss(DiagonalGaussian(mean, torch.tensor([5.0, -5.0])), torch.zeros(2, 2))
    assert found.tolist() == pytest.approx(expected)


def test_the_loss_of_choices_by_hand() -> None:
    logits = torch.tensor([[0.5, 0.3, 0.2]]).log()
    found = make(space=DISCRETE).imitation_loss(Categorical(logits, start=4), torch.tensor([5]))
    assert found.tolist() == pytest.approx([1.203973])  # -log .3


@pytest.mark.parametrize("student", [
    rl.SquashedActorCritic, *(pytest.param(x, marks=pytest.mark.full) for x in (rl.ActorCritic, rl.GaussianActorCritic))
])  # fmt: skip
def test_a_student_learns_the_actions_of_its_teacher_in_the_envs_scale(student: Any) -> None:
    teacher = teacher_of()
    with torch.no_grad():
        teacher.actor[2].linear.bias.fill_(4.0)
    algorithm = make(student, teacher=teacher, lr=3e-2)
    before = {name: x.clone() for name, x in teacher.state_dict().items()}
    deviation = {name: p.clone() for name, p in algorithm.policy.named_parameters() if name.endswith("log_std")}
    for seed in range(12):
        algorithm.update(rollout(algorithm, seed), 8, 2)
    obs = {key: x[0] for key, x in rollout(algorithm).obs.items()}
    assert algorithm.policy.act(obs).flatten().tolist() == pytest.approx([4.0] * 4, abs=0.3)
    assert all(torch.equal(x, before[name]) for name, x in teacher.state_dict().items())
    assert algorithm.policy.obs_normalizer.moments["0"].count == 12 * 24  # the student's own
    parameters = dict(algorithm.policy.named_parameters())
    assert all(torch.equal(parameters[name], x) for name, x in deviation.items())


def test_the_teacher_reads_all_in_eval_mode_by_its_own_statistics() -> None:
    teacher = teacher_of(DISCRETE, cls=rl.QNetwork, net=rl.NetParams(dropout=0.5))
    teacher.obs_normalizer.update({"place": torch.randn(9, 1), "speed": 5 + torch.randn(9, 1)})
    algorithm = make(space=DISCRETE, teacher=teacher)
    algorithm.policy.train()
    data = rollout(algorithm)
    expected = teacher.eval().act({key: x.flatten(0, 1) for key, x in data.obs.items()}).view(6, 4)
    teacher.train()
    samples, _ = algorithm._processed(data)
    assert torch.equal(samples.action, expected)
    assert teacher.training


@pytest.mark.parametrize("space", [BOX, DISCRETE])
def test_a_student_with_memory_learns_from_whole_envs(space: Any) -> None:
    algorithm = make(rl.RecurrentActorCritic, space)
    assert (algorithm.columns, make().columns) == (("state",), ())
    losses = [algorithm.update(rollout(algorithm, seed), None, 2).floats()["loss"] for seed in range(2)]
    assert losses[-1] < losses[0]


def test_a_file_holds_the_teacher_and_no_larger_one(tmp_path: Path) -> None:
    algorithm = make(rl.RecurrentActorCritic)
    algorithm.teacher.obs_normalizer.update({"place": torch.randn(9, 1), "speed": 5 + torch.randn(9, 1)})
    path = tmp_path / "distillation.safetensors"
    algorithm.save(path)
    again: Any = rl.load(path)
    obs = {key: x[0] for key, x in rollout(algorithm).obs.items()}
    assert torch.equal(again.teacher.act(obs), algorithm.teacher.act(obs))
    assert again.policy.net_params.keys == ("place",)
    state = read_state(path, "algorithm", CheckpointError)
    for sizes, text in {
        (400, 400): r"its teacher takes \d+ numbers, and it has \d+ bytes",
        (100_000, 10_000): r"has \d+ bytes, too few for layers of \[100000, 10000\] units",
    }.items():
        state["construction"]["options"]["teacher"]["options"]["net"]["fields"]["hidden_sizes"] = list(sizes)
        write_state(path, "algorithm", state)
        assert type(rl.load_policy(path)) is rl.RecurrentActorCritic
        with pytest.raises(CheckpointError, match=text):
            rl.load(path)
