"""What a compiled or recorded step must not overlook: whatever of its algorithm changes after the first update."""

import enum
import types
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
import torch._dynamo
from torch import Tensor, nn

import rltrainer as rl
from rltrainer.errors import ParamsError
from rltrainer.execution import execution
from rltrainer.execution.fingerprint import Fingerprint
from rltrainer.nets.mlp import MLP
from tests.compile.test_compiled_updates import DISCRETE, OBS, transitions
from tests.unit.execution.test_cuda_graph import Rerun, with_graph
from tests.unit.updates.test_gradient_faults import WithSpare, spare_of

COMPILED = rl.UpdatePlan(runtime=rl.RuntimeParams(compile=True))
NUMBER = 1.0


def from_module(x: float) -> float:
    return x


class Kind(enum.Enum):
    A = 1
    B = 100


class Settings:
    """A plain object of a user's."""

    class_number = 1.0

    def __init__(self) -> None:
        self.number = 1.0


class Adds(nn.Module):
    """A module with a number, a mode and a method."""

    number = 1.0

    def forward(self, x: Tensor) -> Tensor:
        return x + self.number + (10.0 if self.training else 0.0)


class Subtracts(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        return x - 1000.0


class Sums(rl.BC):
    """Behaviour cloning that reports a sum of everything it can get hold of."""

    class_number = 1.0

    def __init__(self, policy: Any) -> None:
        super().__init__(policy)
        self.number, self.text, self.kind = 1.0, "x", Kind.A
        self.items, self.pair, self.table, self.names = [1.0], (1.0, 2.0), {"a": 1.0}, {1, 2}
        self.settings, self.function, self.module = Settings(), abs, Adds()

    def method(self) -> float:
        return 1.0

    def gradient_step(self, batch: rl.Transitions, noise: Any = None) -> rl.UpdateResult:
        loss = -self.policy.distribution(batch.obs).log_prob(batch.action).mean()
        self.optimizer.step(loss)
        total = self.number + sum(self.items) + sum(self.pair) + sum(self.table.values()) + len(self.names)
        total += self.settings.number + self.settings.class_number + self.function(-1.0) + self.method()
        total += self.class_number
        total += NUMBER + from_module(1.0) + self.kind.value + (100.0 if self.text == "x" else 0.0)
        return rl.UpdateResult({"total": self.module(torch.full((), float(total)))})


CHANGES: dict[str, Callable[[Any], Any]] = {
    "a number": lambda a: setattr(a, "number", 5.0),
    "a text": lambda a: setattr(a, "text", "y"),
    "a choice": lambda a: setattr(a, "kind", Kind.B),
    "a longer list": lambda a: a.items.append(3.0),
    "an item": lambda a: a.items.__setitem__(0, 3.0),
    "another tuple": lambda a: setattr(a, "pair", (1.0, 2.0, 3.0)),
    "a new key": lambda a: a.table.update(b=3.0),
    "a value": lambda a: a.table.update(a=3.0),
    "a larger set": lambda a: a.names.add(3),
    "a mode": lambda a: a.module.eval(),
}
OF_COMPILED_STEPS: dict[str, Callable[[Any], Any]] = {
    "a number of an object": lambda a: setattr(a.settings, "number", 5.0),
    "another object": lambda a: setattr(a, "settings", types.SimpleNamespace(number=7.0, class_number=1.0)),
    "a function": lambda a: setattr(a, "function", lambda x: 50.0),
    "a number of a module": lambda a: setattr(a.module, "number", 5.0),
    "another module": lambda a: setattr(a, "module", Subtracts()),
    "a method of the object": lambda a: setattr(a, "method", lambda: 20.0),
    "a method of a module": lambda a: setattr(a.module, "forward", lambda x: x * 2),
}
OF_CLASSES: dict[str, tuple[Any, str, Any]] = {
    "a class attribute": (Sums, "class_number", 5.0),
    "a class attribute of an object": (Settings, "class_number", 5.0),
    "a method of the class": (Sums, "method", lambda self: 20.0),
    "a number of the program": (__name__, "NUMBER", 5.0),
    "a function of the program": (__name__, "from_module", lambda x: 50.0),
}


@pytest.fixture(autouse=True)
def _traced_only(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Trace as ever, but run what was traced uncompiled: what is looked at is the same, in a tenth of the time."""

    def trace(step: Any, options: dict[str, Any]) -> Any:
        return compile_(step, backend="eager", options={"guard_filter_fn": options["guard_filter_fn"]})

    compile_ = torch.compile
    torch._dynamo.reset()
    torch._dynamo.utils.counters.clear()
    monkeypatch.setattr(execution.torch, "compile", trace)
    yield
    torch._dynamo.reset()


def make(algorithm: Any = Sums) -> Any:
    rl.seed(5)
    made = algorithm(rl.Actor.for_spaces(OBS, DISCRETE, hidden_sizes=(8,)))
    made.attach(COMPILED)
    return made


def with_encoder(encoder: Any) -> Any:
    return lambda policy: rl.BC(rl.Actor.for_spaces(OBS, DISCRETE, rl.NetParams(encoder=encoder, hidden_sizes=(8,))))


def total(algorithm: Any) -> float:
    return float(algorithm.update(transitions(algorithm, seed=0)).floats()["total"])


def assert_seen(algorithm: Any, change: Callable[[], Any]) -> None:
    before = total(algorithm)
    assert total(algorithm) == before
    change()
    algorithm._execution.is_compiled, was_compiled = False, algorithm.is_compiled
    expected = float(algorithm.gradient_step(transitions(algorithm, seed=0)).floats()["total"])
    algorithm._execution.is_compiled = was_compiled
    assert total(algorithm) == expected != before


@pytest.mark.parametrize("name", CHANGES | OF_COMPILED_STEPS)
def test_a_compiled_step_sees_what_an_object_holds(name: str) -> None:
    algorithm = make()
    assert_seen(algorithm, lambda: (CHANGES | OF_COMPILED_STEPS)[name](algorithm))
    assert algorithm.is_compiled


@pytest.mark.parametrize("name", OF_CLASSES)
def test_a_compiled_step_sees_classes_and_programs(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    owner, attribute, value = OF_CLASSES[name]
    change = (f"{owner}.{attribute}", value) if isinstance(owner, str) else (owner, attribute, value)
    assert_seen(make(), lambda: monkeypatch.setattr(*change))


@pytest.mark.parametrize("name", CHANGES)
def test_a_recorded_step_sees_the_plain_attributes_of_its_algorithm(name: str) -> None:
    algorithm, recorder = make(), Rerun()
    algorithm.attach(rl.UpdatePlan())
    with_graph(algorithm, recorder)
    assert_seen(algorithm, lambda: CHANGES[name](algorithm))
    assert recorder.num_captures == 2


@pytest.mark.parametrize("is_attached_again", [False, True])
def test_a_layer_that_is_frozen_stays_and_is_trained_when_it_is_no_longer_frozen(is_attached_again: bool) -> None:
    algorithm, eager = make(rl.BC), make(rl.BC)
    eager.attach(rl.UpdatePlan())
    layers = algorithm.policy.actor[1].layers

    def moved() -> list[bool]:
        before = [layer.weight.detach().clone() for layer in layers]
        algorithm.update(transitions(algorithm, seed=0))
        eager.update(transitions(eager, seed=0))
        return [not torch.equal(layer.weight, old) for layer, old in zip(layers, before, strict=True)]

    assert moved() == [True]
    for requires_grad in (False, True):
        for each in (algorithm, eager):
            each.policy.actor[1].layers[0].requires_grad_(requires_grad)
        if is_attached_again:
            algorithm.attach(COMPILED)
        assert moved() == moved() == [requires_grad]
    assert not eager.is_compiled
    assert sorted(algorithm.optimizer.method.num_missed.unique().tolist()) == [0.0, 2.0]
    assert_same_weights(algorithm, eager)  # one count for both would make the layer's next step 0.6 of what it is


def test_a_gradient_hook_of_a_parameter_that_is_added_later_is_called() -> None:
    algorithm = make(rl.BC)
    algorithm.update(transitions(algorithm, seed=0))
    weight = algorithm.policy.actor[1].layers[0].weight
    before = weight.detach().clone()
    weight.register_hook(torch.zeros_like)
    algorithm.optimizer.method.mean.zero_()
    algorithm.update(transitions(algorithm, seed=0))
    assert torch.equal(weight, before)


NESTED: dict[str, Callable[[Any], Any]] = {
    "another module": lambda layers: layers.activations.__setitem__(0, nn.ReLU()),
    "a method of a leaf": lambda layers: setattr(layers.activations[0], "forward", lambda x: x * 3),
    "a method": lambda layers: setattr(layers, "forward", lambda x: MLP.forward(layers, x) * 2),
}


@pytest.mark.parametrize("name", NESTED)
def test_what_changes_deep_in_a_network_is_seen(name: str) -> None:
    compiled, eager = make(rl.BC), make(rl.BC)
    eager.attach(rl.UpdatePlan(runtime=rl.RuntimeParams(compile=False)))
    losses = []
    for algorithm in (compiled, eager):
        algorithm.optimizer.schedule = 0.0
        before = algorithm.update(transitions(algorithm, seed=0)).floats()["loss"]
        NESTED[name](algorithm.policy.actor[1])
        losses.append(algorithm.update(transitions(algorithm, seed=0)).floats()["loss"])
        assert losses[-1] != before
    assert losses[0] == pytest.approx(losses[1])


def test_a_parameter_that_was_replaced_is_no_longer_trained_in_silence() -> None:
    algorithm = make(rl.BC)
    algorithm.update(transitions(algorithm, seed=0))
    layer = algorithm.policy.actor[1].layers[0]
    layer.weight = nn.Parameter(layer.weight.detach().clone())
    with pytest.raises(ParamsError, match=r"^BC: actor\.\S+weight must stay the same object while it is trained"):
        algorithm.update(transitions(algorithm, seed=0))


def assert_same_weights(compiled: Any, eager: Any) -> None:
    assert compiled.is_compiled
    torch.testing.assert_close(list(compiled.policy.parameters()), list(eager.policy.parameters()), rtol=0, atol=1e-6)
    assert torch.equal(compiled.optimizer.method.num_missed, eager.optimizer.method.num_missed)


def test_a_parameter_that_the_loss_does_not_depend_on_stays() -> None:
    algorithm, eager = (make(with_encoder(WithSpare)) for _ in range(2))
    eager.attach(rl.UpdatePlan())
    before = spare_of(algorithm).spare.weight.detach().clone()
    for each in (algorithm, eager):
        with pytest.warns(UserWarning, match="BC: the loss does not depend on actor"):
            each.update(transitions(each, seed=0))
        each.update(transitions(each, seed=1))
    assert torch.equal(spare_of(algorithm).spare.weight, before)
    for each in (algorithm, eager):
        spare_of(each).uses_spare = True
        for seed in range(2):
            each.update(transitions(each, seed))
    assert not torch.equal(spare_of(algorithm).spare.weight, before)
    assert_same_weights(algorithm, eager)


@pytest.mark.filterwarnings("ignore:BC. the loss does not depend on")
def test_gathered_gradients_leave_it_alone_in_a_compiled_step_too() -> None:
    compiled, eager = (make(with_encoder(WithSpare)) for _ in range(2))
    update = rl.UpdateParams(accumulate=2)
    compiled.attach(rl.UpdatePlan(runtime=COMPILED.runtime, update=update))
    eager.attach(rl.UpdatePlan(update=update))
    for seed in range(8):
        for each in (compiled, eager):
            spare_of(each).uses_spare = seed in (4, 7)  # the first of a group, and the last of another
            each.update(transitions(each, seed))
    assert_same_weights(compiled, eager)
    assert sorted(eager.optimizer.method.num_missed.unique().tolist()) == [0.0, 2.0]


def test_parameters_in_other_memory_and_a_method_that_is_added_to_a_class_are_another_state() -> None:
    class Own(nn.Identity):
        """The last class that is looked at."""

    algorithm = make()
    algorithm.module.part = Own()
    fingerprint = Fingerprint(algorithm, algorithm.all_networks(), algorithm._tensors(), is_recorded=False)
    before = fingerprint()
    assert fingerprint() == before
    Own.more = 1  # type: ignore[attr-defined]  # added
    assert (added := fingerprint()) != before
    weight = algorithm.policy.actor[1].layers[0].weight
    weight.data = weight.data.t().contiguous().t()
    assert fingerprint() not in (added, before)


def test_what_has_changed_back_is_not_traced_again() -> None:
    algorithm = make()
    for _ in range(3):
        for requires_grad in (True, False):
            algorithm.policy.actor[1].requires_grad_(requires_grad)
            total(algorithm)
    # Before the layer was frozen one count of steps served all; afterwards it has its own.
    assert torch._dynamo.utils.counters["stats"]["unique_graphs"] == 3
