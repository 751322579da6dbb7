"""Gradient steps as graphs, with a stand-in for CUDA: what is replayed must be what would have been run."""

import dataclasses
import itertools
from collections.abc import Callable
from typing import Any

import pytest
import torch

import rltrainer as rl
from rltrainer.algorithms.minibatches import OnPolicyBatch, Split, minibatches
from rltrainer.execution.cuda_graph import MAX_GRAPHS, CudaGraphs, _copy, _take_apart
from rltrainer.execution.execution import STEPS_PER_CUDA_GRAPH
from rltrainer.plan import UpdateCallbacks
from tests.batches import collected
from tests.contract.test_all_algorithms import assert_same_state, make, transitions, update
from tests.devices.second_device import second_device
from tests.fakes import counting_envs, tiny_actor_critic


def tensors_in(value: Any) -> list[torch.Tensor]:
    found: list[torch.Tensor] = []
    _take_apart(value, found)
    return found


class Rerun:
    """Stands in for a device: captures by running a function, replays by running it again into the same outputs."""

    def __init__(self) -> None:
        self.num_captures = self.num_replays = 0

    def warm_up(self, function: Callable[[], Any]) -> None:
        for _ in range(2):
            function()

    def capture(self, function: Callable[[], Any], generators: Any = ()) -> Callable[[], Any]:
        self.num_captures += 1
        result = function()
        outputs = tensors_in(result)

        def replay() -> Any:
            self.num_replays += 1
            _copy(outputs, tensors_in(function()))
            return result

        return replay


class Unable(Rerun):
    def capture(self, function: Callable[[], Any], generators: Any = ()) -> Callable[[], Any]:
        function()
        raise RuntimeError("operation not permitted when stream is capturing\nmore")


def with_graph(algorithm: Any, recorder: Rerun) -> Any:
    algorithm._execution._record_with(recorder)
    return algorithm


def test_the_steps_of_an_update_are_one_graph_up_to_a_limit() -> None:
    recorder, shape = Rerun(), (STEPS_PER_CUDA_GRAPH + 8, 4)
    plain, graphed = make("sac"), with_graph(make("sac"), recorder)
    results = [[each.update(transitions(each, *shape, seed=seed)) for each in (plain, graphed)] for seed in range(2)]
    for one, other in results:  # looked at after all of them: nothing may be in the graph's memory
        assert other.floats() == one.floats()
        assert torch.equal(other.td_error, one.td_error)
    assert (recorder.num_captures, recorder.num_replays) == (2, 4)  # of 32 steps and of 8
    assert_same_state(plain, graphed)


def test_a_bad_gradient_while_a_graph_is_recorded_counts_once() -> None:
    algorithm = with_graph(make("bc"), Rerun())
    with pytest.raises(rl.errors.NonFiniteError):
        algorithm.update(transitions(algorithm, 16, weight=torch.full((16,), float("inf"))))
    algorithm.check_faults()
    assert float(algorithm.optimizer.method.num_steps) == 0


def test_a_capture_that_fails_changes_nothing_and_says_so() -> None:
    plain, graphed = make("sac"), with_graph(make("sac"), Unable())
    update(plain)
    with pytest.warns(UserWarning, match="a CUDA graph failed, it runs without: operation not permitted when .*ing$"):
        update(graphed)
    assert not graphed.has_cuda_graph
    update(plain)
    update(graphed)  # no second warning
    assert_same_state(plain, graphed)


def test_an_argument_that_cannot_be_compared_is_a_step_without_a_graph() -> None:
    graph = CudaGraphs(lambda x, other: x + 1, list, Rerun())
    with pytest.warns(UserWarning, match="it runs without: its arguments hold a object"):
        assert graph(torch.zeros(()), object()) == 1
    assert not graph.is_on


def test_an_error_of_the_step_is_raised_and_its_changes_are_undone() -> None:
    state = torch.zeros(())

    def step(x: torch.Tensor) -> None:
        state.add_(x)
        raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        CudaGraphs(step, lambda: [state], Rerun())(torch.ones(()))
    assert state == 0


def test_so_many_graphs_and_no_more() -> None:
    recorder = Rerun()
    graph = CudaGraphs(lambda x: x.sum(), list, recorder)
    for size in range(1, MAX_GRAPHS + 5):
        assert graph(torch.ones(size)) == size
    assert recorder.num_captures == MAX_GRAPHS


def test_true_needs_a_cuda_device_and_auto_takes_none_on_the_cpu() -> None:
    algorithm = make("sac")
    algorithm.attach(rl.UpdatePlan())
    assert not algorithm.has_cuda_graph
    assert algorithm.plan.runtime.cuda_graph is False
    text = (
        r'RuntimeParams.cuda_graph: must be "auto" or False for networks on cpu; got True \(bool\)\. Move the policy, `'
    )
    with pytest.raises(rl.errors.ParamsError, match=text):
        algorithm.attach(rl.UpdatePlan(lambda: 0.5, runtime=rl.RuntimeParams(cuda_graph=True)))
    assert algorithm.plan.progress() == 0.0


def test_no_graph_holds_an_optimizer_or_a_listener_of_the_users() -> None:
    with second_device():
        own = rl.BC(make("bc").policy.to("cuda"), rl.BCParams(optimizer=torch.optim.SGD))
        own.attach(rl.UpdatePlan(runtime=rl.RuntimeParams(compile=False)))
        assert own.plan.runtime.cuda_graph is own.has_cuda_graph is False
        ours = rl.BC(own.policy)
        ours.attach(rl.UpdatePlan(runtime=rl.RuntimeParams(cuda_graph=True)))
        assert ours.has_cuda_graph
        listeners = UpdateCallbacks(on_loss=lambda name, loss, step: None)
        for algorithm, callbacks, text in (
            (own, UpdateCallbacks(), "an optimizer of your own"),
            (ours, listeners, "callbacks of losses, or with several ranks"),
        ):
            plan = rl.UpdatePlan(runtime=rl.RuntimeParams(cuda_graph=True), callbacks=callbacks)
            with pytest.raises(rl.errors.ParamsError, match=f'cuda_graph: must be "auto" or False with {text}; got'):
                algorithm.attach(plan)


@dataclasses.dataclass(slots=True)
class Marked(OnPolicyBatch):
    mark: torch.Tensor = dataclasses.field(kw_only=True)


def make_samples(weight: torch.Tensor) -> Marked:
    column = torch.arange(float(len(weight)))
    return Marked(*[column] * 6, weight, {"version": 10 * column}, mark=column + 100)


def split_of(num_steps: int, size: int) -> Split:
    return Split(num_steps, size, -(-num_steps // size), -(-num_steps // size))


@pytest.mark.parametrize(("num_samples", "batch_size"), [(23, 8), (24, 8), (3, 8), (17, 4), (8, 8)])
def test_minibatches_hold_each_sample_once_with_extras_and_in_their_class(num_samples: int, batch_size: int) -> None:
    seen = []
    samples, generator = make_samples(torch.ones(num_samples)), torch.Generator().manual_seed(1)
    for batch in minibatches(samples, split_of(num_samples, batch_size), generator, 1):
        assert isinstance(batch, Marked)
        assert len(batch.weight) == batch_size
        assert torch.equal(batch.extra["version"], 10 * batch.obs)
        assert torch.equal(batch.mark, batch.obs + 100)
        seen += batch.obs[batch.weight == 1].tolist()
    order = torch.randperm(num_samples, generator=torch.Generator().manual_seed(1)).tolist()
    assert seen == (order if num_samples != batch_size else sorted(order))  # one batch is taken as it is


@pytest.mark.parametrize(("batch_size", "sizes"), [(4, [3, 3]), (8, [6]), (10, [6])])
def test_minibatches_leave_out_what_weighs_nothing(batch_size: int, sizes: list[int]) -> None:
    samples = make_samples(torch.tensor([0.0, 1, 1, 0, 1, 1, 1, 1]))
    batches = list(minibatches(samples, split_of(6, batch_size), torch.Generator().manual_seed(1), 1))
    assert all(len(batch.weight) == batch_size for batch in batches)
    padding = torch.cat([batch.obs[batch.weight == 0] for batch in batches]).tolist()
    assert padding == [0.0, 3.0] if batch_size == 8 else {1, 2, 4, 5, 6, 7}.issuperset(padding)  # 8: taken as it is
    seen = [batch.obs[batch.weight == 1].tolist() for batch in batches]
    assert [len(cells) for cells in seen] == sizes
    assert sorted(itertools.chain.from_iterable(seen)) == [1, 2, 4, 5, 6, 7]
    assert not list(minibatches(make_samples(torch.zeros(8)), split_of(0, batch_size), torch.Generator(), 1))


def test_a_rollouts_extras_reach_the_gradient_step() -> None:
    envs = counting_envs(2, length=3)
    policy = tiny_actor_critic(envs)
    data = collected(policy, envs, 5)
    data.extra = {"row": torch.arange(5).unsqueeze(1).expand(5, 2) + 100 * data.obs[..., 1].long()}

    class Watching(rl.PPO):
        def gradient_step(self, batch: OnPolicyBatch) -> rl.UpdateResult:
            seen.append((batch.obs[:, 1], batch.extra["row"]))
            return super().gradient_step(batch)

    seen: list[tuple[torch.Tensor, torch.Tensor]] = []
    Watching(policy).update(data, 3, 2)
    assert len(seen) == 8
    for step, row in seen:
        assert torch.equal(step.long(), row // 100)
