"""Run an algorithm's updates: as written or compiled, step by step, as a loop of the CPU, or as CUDA graphs."""

import contextlib
import dataclasses
import enum
import functools
import itertools
import logging
import warnings
from collections.abc import Callable, Hashable, Iterable, Iterator, Sequence
from functools import partial
from typing import Any, Literal

import torch
from torch import Tensor, nn

from rltrainer.execution.compiler import (
    TESTED,
    can_trace_gradients,
    compiler_options,
    compilers_reason,
    tracing_gradients,
    with_code_of_its_own,
)
from rltrainer.execution.cpu_loop import LOOPS_TESTED, CompiledFunction, CompiledLoop, loops_are_tested, loops_are_wrong
from rltrainer.execution.cuda_graph import CudaGraphs, CudaRecorder, undone
from rltrainer.execution.fingerprint import Fingerprint
from rltrainer.nets.normalizer import warn_once
from rltrainer.nets.weight_dtype import cast
from rltrainer.plan import UpdateCallbacks, UpdatePlan
from rltrainer.types import UpdateResult

# From this many gradient steps on, compiling saves more time than it takes: for any networks, for large ones, and of
# steps that are recorded as CUDA graphs, whose launches cost nothing without it (estimated: 30 s at 0.3 ms a step).
# With an empty cache, on one core of an AMD EPYC: DQN 13 s at 0.37 ms a step (36,000 steps), PPO 12 s at 0.77 ms; of
# the large ones SAC 13 to 16 s at 2.2 ms (7,000 steps), TD3 21 s, as its two kinds of steps are two graphs, at 1.2 ms.
LONG_RUN, LONG_RUN_OF_LARGE, LARGE, LONG_RUN_OF_RECORDED = 50_000, 20_000, 50_000, 100_000
STEPS_PER_CUDA_GRAPH = 32
"""Largest number of gradient steps in one CUDA graph: a longer one gains nothing and takes memory."""
COMPARED_STEPS, TOLERANCE = 4, 1e-6
"""Steps of a loop that are compared with separate ones, if its version of torch was not tested. After hundreds of steps
the rounding of one would have grown."""

Step = Callable[..., Any]


class Scope(enum.IntEnum):
    """The largest part of an update that one graph may hold."""

    NONE = 0
    """Less than a gradient step: a user's optimizer or function is called between its operations."""
    STEP = 1
    """One gradient step: a callback is called around it."""
    STEPS = 2
    """Some gradient steps: Python decides between them, without a look at their numbers."""
    UPDATE = 3
    """Everything, such as the processing of a rollout, or the sampling of batches."""


def scope_of(
    plan: UpdatePlan, methods: Iterable[Callable[..., Any]], is_ours: bool, can_stop: bool, ends_groups: bool
) -> tuple[Scope, str]:
    """Return how much of an update that calls these methods one graph may hold, and what prevents more.

    `is_ours` if all optimizers are ours, `can_stop` if one may end an update early, and `ends_groups` if an update ends
    with the rest of a group of accumulated gradients.
    """
    if not is_ours or plan.leaves_graph:
        return Scope.NONE, "a function of yours is called between its operations"
    if plan.callbacks.before is not None or plan.callbacks.after is not None:
        return Scope.STEP, "a callback is given its batches"
    for method in methods:
        # A graph would repeat what a user's own method has decided on the host.
        if not method.__module__.startswith("rltrainer."):
            return Scope.STEPS, f"it has a method {method.__name__} of its own"
    if plan.update.accumulate > 1 and ends_groups:
        return Scope.STEPS, "gradients are accumulated"
    if can_stop:
        return Scope.STEPS, "target_kl may end it"
    return Scope.UPDATE, ""


@dataclasses.dataclass
class IndexedSteps:
    """The arguments of gradient steps: one after another (`each`), or in compiled code as `at(index, *args)`.

    `index` [1] is below `num`.
    """

    num: int
    at: Callable[..., tuple[Any, ...]]
    args: Sequence[Any]
    each: Iterable[tuple[Any, ...]]


class Execution:
    """Takes an algorithm's gradient steps, compiled and as CUDA graphs if the plan says so."""

    # A step that can be compiled samples no random numbers and has no branch on a tensor's value: it gets all numbers
    # as arguments, and changes tensors in place. At an operation that no graph can hold (a `print`, an optimizer of the
    # user's) the graph breaks. Compiled steps give the numbers of eager ones up to rounding, CUDA graphs exactly the
    # numbers of their steps. After a change of the algorithm that they depend on, steps are compiled or recorded again;
    # see `Fingerprint`. Of the owner it uses `_step`, `_tensors` (all that a step changes), `all_networks`, and the
    # `methods_of_update` of `all_algorithms`.

    def __init__(self, owner: Any) -> None:
        self._owner, self._eager = owner, owner._step
        self._compiled: Step | None = None
        self._layout: list[Any] = []
        self._graph: CudaGraphs | None = None
        self._whole: tuple[Any, CudaGraphs] | None = None
        self._whole_state: str | None = None
        self._fingerprint: Fingerprint | None = None
        self._states: dict[Hashable, tuple[str, Any]] = {}
        self._callbacks = UpdateCallbacks()
        self._recorder: CudaRecorder | None = None
        self._functions: dict[str, CompiledFunction] = {}
        self._loop: CompiledLoop | None = None
        self.loop: Literal["auto"] | bool = "auto"
        self._is_ours = self._is_planned = False
        self.is_compiled = False

    def __reduce__(self) -> tuple[Any, ...]:
        """Copy without the compiled step, which would train the original's networks."""
        return type(self), (self._owner,)

    def check_plan(self, plan: UpdatePlan, is_ours: bool) -> None:
        """Raise a `ParamsError` if a plan asks for a CUDA graph that cannot be; arguments as of `attach`."""
        if plan.runtime.cuda_graph is not True:
            return
        device, rule = next(self._owner.policy.parameters()).device, 'must be "auto" or False'
        if device.type != "cuda":
            hint = 'Move the policy, `.to("cuda")`, before its algorithm is built.'
            plan.runtime.raise_invalid("cuda_graph", f"{rule} for networks on {device}", hint)
        if plan.leaves_graph or plan.is_shared:
            hint = "UpdatePlan.callbacks.on_loss, and other ranks, are called between its operations."
            plan.runtime.raise_invalid("cuda_graph", f"{rule} with callbacks of losses, or with several ranks", hint)
        if not is_ours:
            hint = "Leave out the optimizer of the algorithm's params: a torch.optim optimizer cannot be captured."
            plan.runtime.raise_invalid("cuda_graph", f"{rule} with an optimizer of your own", hint)

    def attach(self, plan: UpdatePlan, step: Step, is_ours: bool) -> None:
        """Run a step by a plan from the next update on; `is_ours` if all optimizers are ours: a graph can hold them."""
        policy: nn.Module = self._owner.policy
        device = next(policy.parameters()).device
        self._callbacks = plan.callbacks
        tensors = [(x.shape, x.stride(), x.dtype) for x in self._owner._tensors()]
        layout = [plan.precision, plan.update, plan.callbacks.on_loss, plan.all_reduce, plan.ranks, *tensors]
        if layout != self._layout:
            self._layout, self._compiled, self._states, self._loop = layout, None, {}, None
            self._eager, self._is_planned = step, step != self._owner._step
        is_recorded = plan.runtime.cuda_graph
        if is_recorded == "auto":
            # Launching the kernels of an uncompiled step takes several times as long as running them.
            is_recorded = device.type == "cuda" and is_ours and not (plan.leaves_graph or plan.is_shared)
        self.is_compiled = _decide(plan, device, sum(p.numel() for p in policy.parameters()), is_recorded)
        if self.is_compiled and self._compiled is None:
            # Where a graph breaks, the compiler looks at `.grad` of what is on the way, and torch warns of that.
            warnings.filterwarnings("ignore", message="The .grad attribute of a Tensor that is not a leaf")
            # On a GPU the compiler recommends TF32, which rounds more: `PrecisionParams.tf32` leaves that to the user.
            warnings.filterwarnings("ignore", message="TensorFloat32 tensor cores for float32 matrix multiplication")
            step = with_code_of_its_own(self._eager)
            self._compiled = torch.compile(step, options=compiler_options(device, is_ours))
        self._is_ours, self.loop = is_ours, plan.runtime.loop
        self._record_with(CudaRecorder(device) if is_recorded else None)

    def _record_with(self, recorder: CudaRecorder | None) -> None:
        """Record the steps if there is a recorder; have a fingerprint of compiled or recorded ones."""
        is_recorded = recorder is not None
        self._recorder, self._whole = recorder, None
        self._graph = None if recorder is None else CudaGraphs(self._run_compiled, self._owner._tensors, recorder)
        is_watched = self.is_compiled or is_recorded
        given = self._owner, self._owner.all_networks(), self._owner._tensors(), is_recorded, self._states
        self._fingerprint = Fingerprint(*given) if is_watched else None

    @property
    def has_cuda_graph(self) -> bool:
        """True if gradient steps run as CUDA graphs."""
        return self._graph is not None and self._graph.is_on

    @property
    def is_whole(self) -> bool:
        """True while a whole update is recorded, which then waits for no number of the device."""
        return self._whole_state is not None

    def scope(self) -> tuple[Scope, str]:
        """Return how much of an update one graph may hold, and what prevents more."""
        owner = self._owner
        can_stop = any(optimizer.can_stop for optimizer in owner._optimizers())
        methods = [getattr(each, name) for each in owner.all_algorithms() for name in each.methods_of_update]
        return scope_of(owner.plan, methods, self._is_ours, can_stop, owner.ends_groups)

    def may_record(self) -> bool:
        """Return whether a CUDA graph may hold a whole update; the log says once why it may not."""
        if not self.has_cuda_graph or (self._whole is not None and not self._whole[1].is_on):
            return False
        scope, reason = self.scope()
        if scope < Scope.UPDATE:
            say_once(f"{type(self._owner).__name__}: an update is several CUDA graphs instead of one, as {reason}")
        return scope is Scope.UPDATE

    def recorded(
        self, update: Step, generators: Sequence[torch.Generator], key: Any = None, tensors: Sequence[Tensor] = ()
    ) -> Step:
        """Return a whole update as one CUDA graph for each of its arguments, if it `may_record`.

        It draws from `generators`, and beside the owner's own it may change `tensors`. With another `key` than before
        it is recorded again.
        """
        assert self._recorder is not None, "asked for by `may_record`"
        assert self._fingerprint is not None, "made with the recorder"
        if self._whole is None or self._whole[0] != key:

            def whole(state: str, *args: Any) -> Any:
                self._whole_state = state
                try:
                    return update(*args)
                finally:
                    self._whole_state = None

            own = self._owner._tensors
            graphs = CudaGraphs(whole, lambda: [*own(), *tensors], self._recorder, generators, "the update")
            self._whole = key, graphs
        return partial(self._whole[1], self._fingerprint())

    def call(self, name: str, function: Callable[..., Any], *args: Any) -> Any:
        """Return what a pure function of the owner returns, on the CPU compiled if steps are."""
        if not self._is_compiled_on_host:
            return function(*args)
        if name not in self._functions:
            self._functions[name] = CompiledFunction(name, function)
        with self._owner.plan.ranks.in_graphs():
            return self._functions[name](*args)

    def _in_weight_dtype(self, steps: Iterable[tuple[Any, ...]]) -> Iterable[tuple[Any, ...]]:
        dtype = self._owner.policy.weight_dtype
        return steps if dtype is torch.float32 else (cast(args, dtype) for args in steps)

    @property
    def _is_compiled_on_host(self) -> bool:
        return self.is_compiled and self._graph is None and self._owner.device.type == "cpu"

    @property
    def can_loop(self) -> bool:
        """True if the steps of an update may be one compiled loop on the CPU."""
        if not self._is_compiled_on_host or self.loop is False or self._owner.plan.varies_in_length:
            return False
        return self.scope()[0] is Scope.UPDATE and not (self.loop == "auto" and loops_are_wrong())

    def _run_loop(self, steps: IndexedSteps) -> UpdateResult | None:
        """Return the result of steps in compiled code; None if their loop cannot be compiled, and nothing was done."""
        assert self._fingerprint is not None, "made with what is compiled"
        (args,), num_steps = self._in_weight_dtype([tuple(steps.args)]), steps.num
        if self._loop is None:
            owner, step, args_at = self._owner, self._eager, steps.at

            def metrics_at(index: Tensor, *args: Any) -> dict[str, Tensor]:
                results = [step(*args_at(index, *args))]
                owner._measure(results)
                return {name: torch.as_tensor(x) for name, x in results[0].metrics.items()}

            self._loop = CompiledLoop("an update", metrics_at, is_checked=True)
        is_traced = torch._dynamo.config.trace_autograd_ops
        with contextlib.nullcontext() if is_traced else tracing_gradients(), self._owner.plan.ranks.in_graphs():
            if self.loop == "auto" and not loops_are_tested():
                self.loop = self._is_right(self._loop, min(num_steps, COMPARED_STEPS), args)
                plan: UpdatePlan = self._owner.plan
                self._owner.plan = dataclasses.replace(plan, runtime=dataclasses.replace(plan.runtime, loop=self.loop))
            sums = self._loop(self._fingerprint(), num_steps, *args) if self.loop else None
        return None if sums is None else UpdateResult({k: x / num_steps for k, x in sums.items()}, num_steps)

    def _is_right(self, loop: CompiledLoop, num_steps: int, args: Sequence[Any]) -> bool:
        """Return whether a loop's steps equal separate ones, on all ranks; leave everything as it was."""
        assert self._fingerprint is not None, "made with what is compiled"
        state, ranks, results = self._owner._tensors(), self._owner.plan.ranks, list[list[Tensor]]()
        span, is_compiled = torch.tensor([0, num_steps]), True
        for is_loop in (True, False):
            with undone(state):
                sums = loop(self._fingerprint(), num_steps, *args) if is_loop else None
                is_compiled &= sums is not None or not is_loop
                # Steps also stand for a loop that cannot be compiled, as other ranks wait for its exchanges.
                taken = loop.uncompiled(span, *args) if sums is None else sums
                results.append([x.detach().to(torch.float64, copy=True) for x in (*taken.values(), *state)])
        near = partial(torch.allclose, rtol=TOLERANCE, atol=TOLERANCE, equal_nan=True)
        is_right = is_compiled and all(map(near, *results))
        num_right = int(ranks.sum(torch.tensor([int(is_right)])))
        if num_right < ranks.world:
            text = f"torch {torch.__version__}: the steps of an update run one by one, as a compiled loop of them"
            warn_once(f"{text} {'gave other numbers' if is_compiled else 'could not be made'}")
        return bool(num_right == ranks.world)

    def run(self, steps: Iterable[tuple[Any, ...]] | IndexedSteps) -> list[UpdateResult]:
        """Take the gradient steps of an update, given the arguments of each, and return their results."""
        if isinstance(steps, IndexedSteps):
            if (found := self._run_loop(steps)) is not None:
                return [found]
            steps = steps.each
        results: list[Any] = []
        if has_callbacks := self._callbacks.before is not None or self._callbacks.after is not None:
            steps = self._with_callbacks(steps, results)
        steps = self._in_weight_dtype(steps)
        if self._fingerprint is None:
            for args in steps:  # no comprehension: it would be one more frame to read through
                step = self._eager if self._is_planned else self._owner.step_as_written()  # a callback may replace it
                results.append(step(*args))
            return results
        # The compiler and the graphs keep what they make by this name.
        state = self._whole_state or self._fingerprint()
        if self._whole_state is not None or (self._graph is None and not has_callbacks):
            return self._run_compiled(state, steps)
        run, size = self._graph or self._run_compiled, 1 if has_callbacks else STEPS_PER_CUDA_GRAPH
        steps = iter(steps)
        while some := list(itertools.islice(steps, size)):
            results += run(self._fingerprint() if has_callbacks else state, some)  # a callback may have changed it
        return results

    def _with_callbacks(self, steps: Iterable[tuple[Any, ...]], results: list[Any]) -> Iterator[tuple[Any, ...]]:
        """Yield the arguments of each step; call back before it, and after it if no optimizer left it out.

        `results` has the result of the last step when it asks for the arguments of another one.
        """
        callbacks, skips = self._callbacks, self._owner.plan.skips_steps
        may_leave_out = [o for o in self._owner.optimizers_by_loss().values() if skips or o.can_stop]
        num_left_out = sum(optimizer.num_left_out for optimizer in may_leave_out)
        for batch, *more in steps:
            taken = callbacks.replace_batch(batch)
            yield taken, *more
            before, num_left_out = num_left_out, sum(optimizer.num_left_out for optimizer in may_leave_out)
            if callbacks.after is not None and num_left_out == before:
                callbacks.after(taken, results[-1])

    def _run_compiled(self, state: str, steps: Iterable[tuple[Any, ...]]) -> list[Any]:
        if not self.is_compiled or self._compiled is None:
            return [self._eager(*args) for args in steps]
        if not torch._dynamo.config.trace_autograd_ops:  # a trainer has switched it on once for all its updates
            with tracing_gradients():
                return self._run_compiled(state, steps)
        with self._owner.plan.ranks.in_graphs():
            return self._run_each(self._compiled, state, steps)

    def _run_each(self, compiled: Step, state: str, steps: Iterable[tuple[Any, ...]]) -> list[Any]:
        results, steps = [], iter(steps)
        for args in steps:
            try:
                results.append(compiled(state, *args))
            except Exception as error:
                # Nothing was run yet: a graph is compiled before its first operation. The step's own errors are raised.
                if (reason := compilers_reason(error)) is None:
                    raise
                self.is_compiled = False
                warnings.warn(f"compiling the gradient step failed, it runs uncompiled: {reason}", stacklevel=3)
                return [*results, *(self._eager(*each) for each in (args, *steps))]
        return results


@functools.cache
def say_once(text: str) -> None:
    """Log a text once in a process."""
    logging.getLogger("rltrainer").info(text)


def _decide(plan: UpdatePlan, device: torch.device, num_parameters: int, is_recorded: bool) -> bool:
    """Return whether to compile; log the choice of "auto" in one line."""
    choice = plan.runtime.compile
    if choice == "auto":
        long_run = LONG_RUN_OF_LARGE if num_parameters >= LARGE else LONG_RUN
        long_run = LONG_RUN_OF_RECORDED if is_recorded else long_run
        num_steps = plan.num_gradient_steps
        choice = num_steps is not None and num_steps >= long_run
        text = "compile='auto': %s (%s gradient steps planned, %d parameters on %s; compiled from %d steps on)"
        how = "each gradient step is one compiled graph" if choice else "gradient steps run uncompiled"
        logging.getLogger("rltrainer").info(text, how, num_steps, num_parameters, device.type, long_run)
    if choice:
        _warn_of_untested(device)
    if choice and not can_trace_gradients():
        text = f"torch {torch.__version__} cannot trace torch.autograd.grad (torch._dynamo.config.trace_autograd_ops)"
        warnings.warn(f"{text}: gradient steps run uncompiled", stacklevel=4)
        return False
    return choice


def _warn_of_untested(device: torch.device) -> None:
    """Say once what is off with a version of torch that was not tested."""
    off = []
    if not torch.__version__.startswith(TESTED):
        off.append("each compiled step checks again all that it has read")
    if device.type == "cpu" and not loops_are_tested():
        off.append("rollouts of envs of tensors run row by row")
        how = "run one by one" if loops_are_wrong() else "are one loop only if its first steps equal separate ones"
        off.append(f"the steps of an update {how}")
    if off:
        text = f"rltrainer was not tested with torch {torch.__version__}, so compiled runs may be slower:"
        warn_once(f"{text} {'; '.join(off)}. Tested: {LOOPS_TESTED[0]}x to {LOOPS_TESTED[-1]}x")
