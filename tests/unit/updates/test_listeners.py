"""Who listens inside an update: what they are given, what they may change, and that listening alone changes no bit."""

import copy
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import rltrainer as rl
from rltrainer.plan import UpdateCallbacks
from rltrainer.updates.optimizer import Optimizer
from tests.compile.test_compiled_updates import MAKERS, make, transitions, update
from tests.contract.test_all_algorithms import assert_same_state
from tests.unit.execution.test_cuda_graph import Rerun, with_graph

LOSSES = {
    "sac": ["critic", "actor", "temperature"], "td3": ["critic"], "iql": ["value", "actor", "critic"], "bc": ["loss"]
}  # fmt: skip
"""Those of the first gradient step of some; an algorithm with one optimizer has a "loss"."""


class Ear:
    """Listens everywhere, and writes down what it hears."""

    def __init__(self) -> None:
        self.heard: list[Any] = []

    def before(self, batch: Any) -> None:
        self.heard.append(("before", type(batch).__name__))

    def on_loss(self, name: str, loss: Tensor, step: Any) -> None:
        assert loss.requires_grad
        self.heard.append((name, loss.dim()))

    def after(self, batch: Any, result: rl.UpdateResult) -> None:
        self.heard.append(("after", result.num_gradient_steps))

    def average(self, gradient: Tensor) -> Tensor:
        self.heard.append(("average", gradient.dim()))
        return gradient.clone()

    def plan(self) -> rl.UpdatePlan:
        return rl.UpdatePlan(callbacks=UpdateCallbacks(self.before, self.on_loss, self.after), all_reduce=self.average)


def attached(name: str, **callbacks: Any) -> Any:
    algorithm, all_reduce = make(name), callbacks.pop("all_reduce", None)
    algorithm.attach(rl.UpdatePlan(callbacks=UpdateCallbacks(**callbacks), all_reduce=all_reduce))
    return algorithm


@pytest.mark.parametrize("name", MAKERS)
def test_listening_changes_no_bit_of_uncompiled_steps(name: str) -> None:
    plain, heard, ear = make(name), make(name), Ear()
    heard.attach(ear.plan())
    for seed in range(4):
        one, other = update(plain, seed), update(heard, seed)
        assert other.floats() == one.floats()
    assert_same_state(plain, heard)
    batch = "Sequences" if plain.trains_recurrent else "OnPolicyBatch"
    batch = batch if isinstance(plain, rl.OnPolicyAlgorithm) else "Transitions"
    start = ear.heard.index(("before", batch))  # TRPO's policy has taken its step
    first = ear.heard[start : ear.heard.index(("after", 1)) + 1]
    first = [event for event in first if event != ("average", 0)]  # of a scale that is part of a loss
    losses = [event for event, _ in first[1:-1:2]]
    told = [event for loss in losses for event in ((loss, 0), ("average", 1))]
    assert first == [("before", batch), *told, ("after", 1)]
    assert losses == LOSSES.get(name, losses)
    assert {f"{loss}_optimizer".removeprefix("loss_") for loss in losses} <= plain.attributes().keys()


def test_a_batch_may_be_replaced() -> None:
    changed, expected = make("dqn"), make("dqn")

    def double(batch: rl.Transitions) -> rl.Transitions:
        batch = copy.copy(batch)
        batch.reward = batch.reward * 2
        return batch

    changed.attach(rl.UpdatePlan(callbacks=UpdateCallbacks(before=double)))
    update(changed, seed=0)
    expected.update(double(transitions(expected, seed=0)))
    assert_same_state(changed, expected)


def test_a_loss_may_be_replaced() -> None:
    # Adam's step goes by the sign of the first gradient: minus the loss moves every weight the other way.
    plain, turned = make("bc", max_grad_norm=None), attached("bc", on_loss=lambda name, loss, step: -loss)
    before = [p.detach().clone() for p in plain.policy.parameters()]
    update(plain, seed=0)
    update(turned, seed=0)
    for old, one, other in zip(before, plain.policy.parameters(), turned.policy.parameters(), strict=True):
        torch.testing.assert_close(one - old, old - other)


def test_a_listener_may_take_the_step_itself() -> None:
    plain, moved = make("sac"), []

    def on_loss(name: str, loss: Tensor, step: Any) -> None:
        step(loss)
        moved.append([p.detach().clone() for p in listening.critic.parameters()])

    listening = attached("sac", on_loss=on_loss)
    for seed in range(3):
        update(plain, seed)
        update(listening, seed)
    assert_same_state(plain, listening)
    assert not all(map(torch.equal, moved[0], make("sac").critic.parameters()))


@pytest.mark.parametrize(("max_grad_norm", "expected"), [(None, [0.7, 1.6]), (2.5, [0.85, 1.8])])
def test_gradients_are_averaged_before_they_are_clipped(max_grad_norm: float | None, expected: list[float]) -> None:
    # Gradients [2, 4] here and [4, 4] there: their mean [3, 4] has norm 5, which is clipped to 2.5.
    linear, sgd = nn.Linear(2, 1, bias=False), lambda parameters: torch.optim.SGD(parameters, lr=0.1)
    linear.load_state_dict({"weight": torch.tensor([[1.0, 2.0]])})
    optimizer = Optimizer({"linear": linear}, 0.1, factory=sgd, max_grad_norm=max_grad_norm)
    other = torch.tensor([4.0, 4.0, 0.0])  # its loss comes last
    optimizer.attach("loss", rl.UpdatePlan(all_reduce=lambda gradient: (gradient + other) / 2), is_compiled=False)
    optimizer.step((linear.weight * torch.tensor([[2.0, 4.0]])).sum())
    assert linear.weight.tolist()[0] == pytest.approx(expected)


def test_a_frozen_parameter_has_a_place_in_the_average() -> None:
    pair = nn.ModuleList([nn.Linear(2, 1, bias=False), nn.Linear(3, 1, bias=False)])
    pair[0].requires_grad_(False)
    optimizer, sizes = Optimizer({"pair": pair}, 0.1), []

    def average(gradient: Tensor) -> Tensor:
        sizes.append(len(gradient))
        return gradient

    optimizer.attach("loss", rl.UpdatePlan(all_reduce=average), is_compiled=False)
    before = pair[0].weight.clone()  # type: ignore[operator]  # a Linear's
    optimizer.step(pair[1].weight.sum())  # type: ignore[operator]
    assert sizes == [6]  # of both, and the loss
    assert torch.equal(pair[0].weight, before)  # type: ignore[arg-type]


def test_a_copy_and_an_algorithm_with_another_plan_call_nobody() -> None:
    ear, algorithm = Ear(), make("sac")
    algorithm.attach(ear.plan())
    update(copy.deepcopy(algorithm), seed=0)
    algorithm.attach(rl.UpdatePlan())
    update(algorithm, seed=0)
    assert ear.heard == []


def test_graphs_hold_one_step_each_for_who_listens_around_them() -> None:
    plain, recorder, heard = make("ppo"), Rerun(), []
    graphed = attached("ppo", before=lambda _: heard.append("before"), after=lambda *_: heard.append("after"))
    with_graph(graphed, recorder)
    for seed in range(2):
        update(plain, seed)
        update(graphed, seed)
    assert_same_state(plain, graphed)
    assert recorder.num_replays == 8
    assert heard == ["before", "after"] * 8


def test_what_is_given_back_is_checked() -> None:
    for callbacks, text in (
        ({"before": lambda batch: 3}, r"UpdateCallbacks\.before: must return a Transitions or None; got 3 \(int\)"),
        ({"on_loss": lambda *_: 0.5}, r"UpdateCallbacks\.on_loss: must return a loss or None; got 0\.5 \(float\)"),
        ({"all_reduce": lambda _: None}, r"UpdatePlan\.all_reduce: must return a tensor of shape \(.*\); got None"),
    ):
        with pytest.raises(TypeError, match=text):
            update(attached("dqn", **callbacks), seed=0)
