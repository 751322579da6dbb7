"""Gradient steps as graphs, with a stand-in for CUDA: what is replayed must be what would have been run."""

import copy
import dataclasses
import itertools
import types
from collections.abc import Callable
from typing import Any

import pytest
import torch

import rltrainer as rl
from rltrainer.algorithms.minibatches import OnPolicyBatch, Split, minibatches
from rltrainer.execution.cuda_graph import MAX_GRAPHS, CudaGraphs, _copy, _take_apart
from rltrainer.execution.execution import STEPS_PER_CUDA_GRAPH
from tests.contract.test_all_algorithms import ALL, assert_same_state, make, rollout, transitions
from tests.contract.test_all_algorithms import update as contract_update
from tests.fakes import counting_envs


def tensors_in(value: Any) -> list[torch.Tensor]:
    found: list[torch.Tensor] = []
    _take_apart(value, found)
    return found


class Rerun:
    """Stands in for a device: captures by running a function, replays by running it again into the same outputs.

    Between replays it spoils the outputs, as the memory of a graph may be.
    """

    def __init__(self) -> None:
        self.num_captures = self.num_replays = 0
        self.outputs: list[torch.Tensor] = []

    def warm_up(self, function: Callable[[], Any]) -> None:
        for _ in range(2):
            function()

    def capture(self, function: Callable[[], Any], generators: Any = ()) -> Callable[[], Any]:
        self.num_captures += 1
        result = function()
        outputs = tensors_in(result)

        def replay() -> Any:
            self.spoil()
            self.num_replays += 1
            _copy(outputs, tensors_in(function()))
            self.outputs = outputs
            return result

        return replay

    def spoil(self) -> None:
        for output in self.outputs:
            output.fill_(77)


class Unable(Rerun):
    def capture(self, function: Callable[[], Any], generators: Any = ()) -> Callable[[], Any]:
        function()
        raise RuntimeError("operation not permitted when stream is capturing\nmore")


def with_graph(algorithm: Any, recorder: Rerun) -> Any:
    algorithm._execution._record_with(recorder)
    return algorithm


def update(algorithm: Any, seed: int, batch_size: int = 16) -> rl.UpdateResult:
    if isinstance(algorithm, rl.OnPolicyAlgorithm):
        valid = torch.ones(8, 3, dtype=torch.bool)
        valid[5, 1] = False  # 23 cells: the minibatches are padded
        return algorithm.update(rollout(algorithm, seed=seed, valid=valid), batch_size=batch_size // 2, repeat=2)
    return algorithm.update(transitions(algorithm, batch_size, seed=seed))


@pytest.mark.parametrize("name", ALL)
def test_ten_updates_are_those_without_a_graph(name: str) -> None:
    recorder = Rerun()
    plain, graphed = make(name), with_graph(make(name), recorder)
    results = [(update(plain, seed), update(graphed, seed)) for seed in range(10)]
    recorder.spoil()
    assert (recorder.num_captures, recorder.num_replays) == (1, 10)
    assert_same_state(plain, graphed)
    for one, other in results:  # looked at after all of them: nothing may be in the graph's memory
        assert other.floats() == one.floats()
        assert (one.td_error is None) is (other.td_error is None)
        assert one.td_error is None or torch.equal(one.td_error, other.td_error)


@pytest.mark.parametrize(
    ("cls", "params"),
    [(rl.TD3, rl.TD3Params(actor_update_interval=2)), (rl.DQN, rl.DQNParams(target_update_interval=4))],
)
def test_td3_has_a_graph_for_each_turn_and_dqn_copies_its_target_in_time(cls: Any, params: Any) -> None:
    recorder = Rerun()
    plain, graphed = (cls(copy.deepcopy(make(cls.__name__.lower()).policy), params) for _ in range(2))
    for algorithm in (plain, with_graph(graphed, recorder)):
        algorithm.seed(3)
    for seed in range(10):
        one, other = update(plain, seed), update(graphed, seed)
        assert other.floats() == one.floats()
        assert cls is rl.DQN or ("actor_loss" in other.metrics) is (seed % 2 == 1)
        assert cls is rl.TD3 or int(graphed.target_critic.num_calls) == seed + 1
    assert (recorder.num_captures, recorder.num_replays) == (2 if cls is rl.TD3 else 1, 10)
    assert_same_state(plain, graphed)


def test_the_steps_of_an_update_are_one_graph_up_to_a_limit() -> None:
    recorder, num_steps = Rerun(), STEPS_PER_CUDA_GRAPH + 8
    plain, graphed = make("sac"), with_graph(make("sac"), recorder)
    for seed in range(2):
        one = plain.update(transitions(plain, num_steps, 4, seed=seed))
        other = graphed.update(transitions(graphed, num_steps, 4, seed=seed))
        assert other.floats() == one.floats()
        assert torch.equal(other.td_error, one.td_error)
    assert (recorder.num_captures, recorder.num_replays) == (2, 4)  # of 32 steps and of 8
    assert_same_state(plain, graphed)


def test_a_step_sees_the_same_memory_at_each_replay() -> None:
    algorithm, seen = make("sac"), []
    plain_step = algorithm._step

    def step(*args: Any) -> Any:
        seen.append([x.data_ptr() for x in (*tensors_in(args), *algorithm._tensors())])
        return plain_step(*args)

    algorithm._execution._eager = step
    with_graph(algorithm, Rerun())
    for seed in range(5):
        update(algorithm, seed)
    assert len(seen) == 2 + 1 + 5
    assert all(pointers == seen[0] for pointers in seen)


@pytest.mark.parametrize("name", ["sac", "ppo"])
def test_a_bad_gradient_is_left_out_and_named(name: str) -> None:
    algorithm = with_graph(make(name), Rerun())
    update(algorithm, 0)
    before = copy.deepcopy(algorithm.policy.state_dict())
    bad = torch.full((16,) if name == "sac" else (8, 3), float("nan"))
    with pytest.raises(rl.errors.NonFiniteError, match=r"the gradient of .* is not finite"):
        contract_update(algorithm, reward=bad)
    after = algorithm.policy.state_dict()
    trained = [key for key, _ in algorithm.policy.named_parameters() if key.startswith("critic")]
    assert all(torch.equal(before[key], after[key]) for key in trained)
    update(algorithm, 1)  # told once


def test_a_bad_gradient_while_a_graph_is_recorded_counts_once() -> None:
    algorithm = with_graph(make("bc"), Rerun())
    with pytest.raises(rl.errors.NonFiniteError):
        algorithm.update(transitions(algorithm, 16, weight=torch.full((16,), float("inf"))))
    algorithm.check_faults()
    assert float(algorithm.optimizer.method.num_steps) == 0


def test_a_capture_that_fails_changes_nothing_and_says_so() -> None:
    plain, graphed = make("sac"), with_graph(make("sac"), Unable())
    update(plain, 0)
    with pytest.warns(
        UserWarning, match="as a CUDA graph failed, it runs without: operation not permitted when .*ing$"
    ):
        update(graphed, 0)
    assert not graphed.has_cuda_graph
    update(plain, 1)
    update(graphed, 1)  # no second warning
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


def test_a_copy_shares_no_graph_and_trains_itself() -> None:
    recorder = Rerun()
    algorithm = with_graph(make("sac"), recorder)
    update(algorithm, 0)
    copied, before = copy.deepcopy(algorithm), copy.deepcopy(algorithm.state_dict())
    assert copied._execution._graph is None
    assert algorithm.has_cuda_graph
    update(copied, 1)
    assert all(torch.equal(before["policy"][key], value) for key, value in algorithm.policy.state_dict().items())
    plain = make("sac")
    update(plain, 0)
    update(plain, 1)
    assert_same_state(plain, copied)


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


def test_an_optimizer_of_the_users_is_captured_neither_by_auto_nor_at_all(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("rltrainer.execution.execution.CudaRecorder", lambda device: Rerun())
    monkeypatch.setattr("torch.compile", lambda step, **options: step)
    on_cuda, own = make("bc"), rl.BC(make("bc").policy, rl.BCParams(optimizer=torch.optim.SGD))
    for algorithm in (on_cuda, own):
        moved = types.SimpleNamespace(**vars(algorithm), _step=algorithm._step, _tensors=list, _networks=list)
        moved.policy = OnCuda()
        monkeypatch.setattr(algorithm._execution, "_owner", moved)
    for compile_ in (True, False):
        plan = rl.UpdatePlan(runtime=rl.RuntimeParams(compile=compile_))
        on_cuda.attach(plan)
        own.attach(plan)
        assert on_cuda.has_cuda_graph is on_cuda.plan.runtime.cuda_graph is True
        assert not own.has_cuda_graph
    plan = rl.UpdatePlan(runtime=rl.RuntimeParams(compile=False, cuda_graph=True))
    on_cuda.attach(plan)
    assert on_cuda.has_cuda_graph
    with pytest.raises(rl.errors.ParamsError, match=r"RuntimeParams.cuda_graph: .* with an optimizer of your own; got"):
        own.attach(plan)


class OnCuda:
    def parameters(self) -> Any:
        return iter([_Parameter()])


class _Parameter:
    device = torch.device("cuda", 0)

    def numel(self) -> int:
        return 1


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
    policy = rl.ActorCritic.for_envs(envs, hidden_sizes=(4,))
    one = rl.Collector(policy, envs, rl.RolloutBuffer(5, 2, envs.single_observation_space, envs.single_action_space))
    one.collect(num_steps=10)
    data = one.rollout()
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
