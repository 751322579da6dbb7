"""An algorithm that holds state which a checkpoint would miss says so before it trains."""

import random
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

import rltrainer as rl
from rltrainer.errors import ParamsError
from tests.contract.test_all_algorithms import make, rollout, transitions

LINEAR = nn.Linear(2, 2)
UNSAVED: dict[str, Callable[[Any], Any]] = {
    "[0]": lambda a: [LINEAR],
    "['a']": lambda a: {"a": torch.zeros(())},
    "['a'][1]": lambda a: {"a": (1, nn.Parameter(torch.zeros(2)))},
    "[1][0]": lambda a: [None, [a.make_optimizer(a.params, linear=LINEAR)]],
    "": lambda a: torch.optim.SGD(LINEAR.parameters(), lr=1.0),
    "[1]": lambda a: [1, torch.Generator()],
}
DIRECT = {
    "a Adam here": lambda a: torch.optim.Adam(a.policy.parameters()),
    "a StepLR here": lambda a: torch.optim.lr_scheduler.StepLR(torch.optim.SGD(LINEAR.parameters(), lr=1.0), 1),
    "a Generator here": lambda a: np.random.default_rng(0),
    "a Random here": lambda a: random.Random(0),
}


@pytest.mark.parametrize("path", UNSAVED)
def test_state_in_containers_is_named(path: str, tmp_path: Path) -> None:
    algorithm = make("sac")
    algorithm.thing = UNSAVED[path](algorithm)
    for call in (lambda: algorithm.attach(rl.UpdatePlan()), lambda: algorithm.save(tmp_path / "file")):
        with pytest.raises(ParamsError) as caught:
            call()
        assert str(caught.value).startswith(f"SAC.thing{path}: a ")
        assert "is not saved, so a resumed run would continue without it." in str(caught.value)


@pytest.mark.parametrize("text", DIRECT)
def test_what_is_never_saved_is_named_where_it_is_assigned(text: str) -> None:
    algorithm = make("sac")
    algorithm.thing = DIRECT[text](algorithm)
    with pytest.raises(ParamsError, match=rf"SAC\.thing: {text} is not saved"):
        algorithm.attach(rl.UpdatePlan())


def test_what_is_saved_elsewhere_may_be_listed() -> None:
    algorithm = make("sac")
    algorithm.networks = [algorithm.policy.actor, algorithm.target_critic, algorithm.critic.ensemble]
    algorithm.weights = list(algorithm.policy.parameters())
    algorithm.optimizers = {"actor": algorithm.actor_optimizer}
    algorithm.sizes, algorithm.names = [1, 2.0, "x", None], {"a": np.zeros(3)}
    algorithm.attach(rl.UpdatePlan())
    algorithm.update(transitions(algorithm, 16))
    algorithm.state_dict()


class Silent(rl.BC):
    def gradient_step(self, batch: Any, noise: Any = None) -> Any:
        super().gradient_step(batch, noise)


class SilentA2C(rl.A2C):
    def gradient_step(self, batch: Any) -> Any:
        return super().gradient_step(batch).metrics


def test_a_gradient_step_that_returns_nothing_is_named() -> None:
    algorithm = Silent(make("bc").policy)
    text = (
        r"Silent\.gradient_step: must return an UpdateResult; got None \(NoneType\)\. End it with return UpdateResult"
    )
    with pytest.raises(TypeError, match=text):
        algorithm.update(transitions(algorithm, 16))
    on_policy = SilentA2C(make("a2c").policy)
    with pytest.raises(TypeError, match=r"SilentA2C\.gradient_step: must return an UpdateResult; got \{"):
        on_policy.update(rollout(on_policy), batch_size=8, repeat=1)
