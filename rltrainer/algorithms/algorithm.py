"""The base class of all algorithms: a policy, the networks and optimizers that train it, and their state."""

import copy
import dataclasses
import itertools
import json
import math
from collections.abc import Callable, Collection
from functools import partial
from pathlib import Path
from typing import Annotated, Any, ClassVar, Protocol, TypeVar

import torch
from torch import Tensor, nn

from rltrainer.algorithms import part_state
from rltrainer.errors import CheckpointError, NonFiniteError, ParamsError, ReturnedError, readable
from rltrainer.execution.execution import Execution
from rltrainer.files.atomic_write import write_errors
from rltrainer.nets.blocks import has_batch_norm
from rltrainer.nets.mlp import Dropout
from rltrainer.nets.module_state import IncompatibleKeys
from rltrainer.nets.policy import Policy
from rltrainer.nets.target import Accumulation, TargetNetwork
from rltrainer.nets.weight_dtype import ENTRY, WeightDtype, cast, dtype_entry, saved_dtype, set_weight_dtype
from rltrainer.plan import RuntimeParams, UpdatePlan, unattached
from rltrainer.schedules import ScheduledValue
from rltrainer.seeding import make_generator, reseed
from rltrainer.state.params import Params
from rltrainer.state.plain import Constructed, to_plain
from rltrainer.state.state_file import read_state, write_state
from rltrainer.types import Load, Rollout, State, UpdateResult
from rltrainer.updates.adam import Adam
from rltrainer.updates.optimizer import Optimizer, OptimizerFactory
from rltrainer.updates.planned_step import planned_step
from rltrainer.updates.transforms import Reduce
from rltrainer.validation.field_rules import (
    AnyPath,
    Flag,
    NonNegativeFloat,
    PositiveFloat,
    Rule,
    Scheduled,
    UnitFloat,
    checked,
    is_finite,
)
from rltrainer.validation.hints import ARGUMENTS
from rltrainer.validation.suggestions import SuggestsAttributes

T = TypeVar("T")
TModule = TypeVar("TModule", bound=nn.Module)
TResult = TypeVar("TResult", covariant=True)
NO_PARTS = {"algorithm", "construction", ENTRY}
"""Keys of a state that name no part."""
Betas = Annotated[
    tuple[float, float],
    Rule(
        "two numbers in [0, 1)",
        lambda v: isinstance(v, tuple | list) and len(v) == 2 and all(is_finite(beta) and 0 <= beta < 1 for beta in v),
    ),
]
_HOW = "Pass a class such as torch.optim.RMSprop, or a function from parameters to an optimizer."


@dataclasses.dataclass(frozen=True, kw_only=True, repr=False)
class AlgorithmParams(Params):
    """Hyperparameters that all algorithms have."""

    gamma: UnitFloat = 0.99
    """Discount factor per env step."""
    lr: PositiveFloat | Scheduled = 3e-4
    """Learning rate, or a schedule of it over progress."""
    max_grad_norm: PositiveFloat | None = None
    """Gradients are scaled down to this global L2 norm, per optimizer; None does not clip."""
    adam_eps: PositiveFloat = 1e-8
    """Epsilon of Adam."""
    adam_betas: Betas = (0.9, 0.999)
    """Decay rates of Adam's averages of gradients and of their squares."""
    weight_decay: NonNegativeFloat = 0.0
    """Each step takes this share of every parameter, times the learning rate, apart from Adam's averages (AdamW,
    Loshchilov & Hutter 2019); biases decay too. A learned temperature has no decay, and Adam's usual betas."""
    optimizer: (
        Annotated[OptimizerFactory, Rule("a callable (parameters) -> torch.optim.Optimizer", callable, _HOW)] | None
    ) = dataclasses.field(default=None, compare=False)
    """Makes the optimizer; None is Adam. `lr` overwrites its learning rate."""

    def __post_init__(self) -> None:
        super().__post_init__()
        object.__setattr__(self, "adam_betas", tuple(self.adam_betas))  # hashable, and equal to what a file restores
        if self.optimizer is not None:
            self._must_be_left_out("adam_betas", "weight_decay", why="Set it in the optimizer of your own.")

    def _must_be_left_out(self, *fields: str, why: str) -> None:
        """Refuse values of inherited fields that this algorithm would ignore."""
        for field in fields:
            if getattr(self, field) != getattr(type(self), field):
                self.raise_invalid(field, "must be left out", why)


class Runnable(Protocol[TResult]):
    """A trainer."""

    def run(self) -> TResult:
        """Train."""


class TrainerMaker(Protocol[TResult]):
    """Trainer params."""

    def create_trainer(self, algorithm: Any) -> Runnable[TResult]:
        """Return the trainer that these params configure."""


class Algorithm(SuggestsAttributes, metaclass=Constructed):
    """Owner of the policy, other networks, optimizers, target networks and the generator of its noise.

    All attributes that are modules, optimizers, tensors or generators are its state; a subclass only assigns them. The
    policy is already on its device.

    Raises:
        ParamsError: policy or params are of another class, or the policy has a memory that the algorithm cannot train.
    """

    policy_class: ClassVar[type[Any]] = Policy
    """Class of the policies that it trains, with its subclasses."""
    policy_options: ClassVar[dict[str, Any]] = {}
    """Options of that class with another default here; `rl.train` and recipes give them to the policies they make."""
    shared_options: ClassVar[tuple[str, ...]] = ()
    """Fields of its params that its policy has as options; `rl.train` and recipes give them to both."""
    params_class: ClassVar[type[AlgorithmParams]] = AlgorithmParams
    """Class of its hyperparameters, with its subclasses."""
    trains_recurrent: ClassVar[bool] = False
    """True if updates replay sequences, for policies with memory."""
    uses_batch_stats: ClassVar[bool] = False
    """True if updates pass `batch_stats` to networks, for policies with a batch norm in their `NetParams`."""
    columns: tuple[str, ...] = ()
    """Names of the columns in `extra` that its updates read; a buffer must declare them."""
    methods_of_update: ClassVar[tuple[str, ...]] = ()
    """Names of the methods that a graph of a whole update holds: a user's own may decide on the host."""
    occasional_metrics: ClassVar[tuple[str, ...]] = ()
    """Names of the metrics that only some updates report, such as a delayed actor's loss."""
    ends_groups: ClassVar[bool] = False
    """True if an update ends with the rest of a group of accumulated gradients; else the next update continues it."""

    _construction: str  # the metaclass sets it

    @classmethod
    def argument_hint(cls, name: str) -> str:
        """Return the hint that a keyword is a field of the params, or ""."""
        fields, params = cls.params_class.__dataclass_fields__, cls.params_class.__name__
        ours = next((ours for ours in (name, *ARGUMENTS.get(name, ())) if ours in fields), None)
        return f" {ours!r} is a field of {params}: write {params}({ours}=...)." if ours else ""

    def __init__(self, policy: Policy, params: AlgorithmParams | None = None) -> None:
        params = self.params_class() if params is None else params
        self._check_construction(policy, params)
        self.policy, self.params = policy, params
        self._built_for = (policy,)  # in a tuple, or it would be saved twice
        self.gamma = params.gamma
        self.plan = unattached(policy.weight_dtype)
        self.num_ranks = 1  # of the plan; a compiled step asks for this number
        self.reduce = Reduce()  # over the ranks of the plan
        self.device = policy.device
        self.generator = make_generator(None, self.device)
        self._execution = Execution(self)
        self.accumulation: Accumulation | None = None

    @classmethod
    def _check_construction(cls, policy: Any, params: object) -> None:
        """Raise a `ParamsError` unless a policy and params are of the classes that this algorithm is made of."""
        name, policy_class, params_class = cls.__name__, cls.policy_class.__name__, cls.params_class.__name__
        if not isinstance(policy, cls.policy_class):
            hint = f"Build it with {policy_class}.for_envs(envs)."
            if isinstance(policy, Params):
                hint = f"The policy comes first: {name}(policy, params)."
            found = f"the class {policy.__name__}" if isinstance(policy, type) else type(policy).__name__
            found = f"{policy!r} (str)" if isinstance(policy, str) else found
            raise ParamsError(f"{name}.policy: must be of class {policy_class}; got {found}. {hint}")
        if policy.is_recurrent and not cls.trains_recurrent:
            rule = f"must have no memory, as {name} updates from single steps; got {type(policy).__name__}"
            raise ParamsError(f"{name}.policy: {rule}. RecurrentPPO trains policies with memory.")
        if not cls.uses_batch_stats and has_batch_norm(policy):
            rule = f"must be no batch norm, as updates of {name} leave running statistics where they start"
            raise ParamsError(f"{name}.policy: norm of its NetParams {rule}. CrossQ, XQC and FlashSAC train them.")
        if not isinstance(params, cls.params_class):
            hint = f"Write {params_class}(lr=..., ...)."
            if hasattr(params, "create_trainer"):
                hint = f"Trainer params go to algorithm.run_training; write {params_class}(lr=..., ...) here."
            raise ParamsError.about(name, "params", f"must be of class {params_class}", params, hint)
        for field in cls.shared_options:
            if (value := getattr(params, field)) != (of_policy := getattr(policy, field)):
                rule, hint = f"must be {of_policy}, as in the policy", f"Write {policy_class}(..., {field}={value!r})."
                raise ParamsError.about(params_class, field, rule, value, hint)

    def _step(self, *args: Any) -> UpdateResult:
        """Take one gradient step; the part of an update that is compiled."""
        raise NotImplementedError

    def step_as_written(self) -> Callable[..., UpdateResult]:
        """Return what takes a gradient step where it is neither compiled nor recorded."""
        return self._step

    def attach(self, plan: UpdatePlan) -> None:
        """Apply a trainer's plan from the next update on; `self.plan` holds the resolved settings.

        Raises:
            ParamsError: it cannot be followed, or the algorithm holds state that would not be saved; nothing changed.
        """
        self._check_policy()
        part_state.check_all_is_saved(type(self).__name__, self.attributes(), self._parts())
        optimizers, is_ours = self._optimizers(), all(isinstance(o.method, Adam) for o in self._optimizers())
        self._execution.check_plan(plan, is_ours)
        for optimizer in optimizers:
            optimizer.check_plan(plan)
        if self._may_differ_from(dtype := plan.precision.weight_dtype):
            for part in self.attributes().values():
                part_state.set_part_dtype(part, dtype)
        size = plan.update.accumulate
        if size != (1 if self.accumulation is None else self.accumulation.size):
            self.accumulation = None if size == 1 else Accumulation(size)
        for optimizer in optimizers:
            optimizer.gather_over(self.accumulation)
        for module in itertools.chain.from_iterable(each.modules() for each in self.all_networks()):
            if isinstance(module, TargetNetwork):
                module.accumulation = self.accumulation
            elif isinstance(module, Dropout):
                module.stream.fill_(plan.ranks.rank)
        step = planned_step(self._step, plan, self.device, self.optimizers_by_loss(), self.accumulation)
        self._execution.attach(plan, step, is_ours)
        self.reduce = Reduce(plan, self.is_compiled)
        for name, optimizer in self.optimizers_by_loss().items():
            optimizer.attach(name or "loss", plan, self.is_compiled, self.reduce)
        self.policy.progress, self.policy.is_compiled = plan.progress, self.is_compiled
        self.plan = dataclasses.replace(plan, runtime=self._resolved(plan.runtime))
        self.num_ranks = plan.ranks.world

    def _resolved(self, runtime: RuntimeParams) -> RuntimeParams:
        step = self._execution
        return dataclasses.replace(runtime, compile=step.is_compiled, cuda_graph=self.has_cuda_graph, loop=step.loop)

    def __getstate__(self) -> dict[str, Any]:
        """Copy unattached: the plan leads to a trainer, with envs, buffers and callbacks."""
        return self.__dict__ | {"plan": unattached(self.policy.weight_dtype), "accumulation": None, "num_ranks": 1}

    def set_weight_dtype(self, dtype: torch.dtype) -> None:
        """Bring networks, statistics, optimizers and targets to float32 or float64, in place; as a new trainer does."""
        dtype = checked(type(self).__name__, "set_weight_dtype", dtype, WeightDtype)
        if self._may_differ_from(dtype):
            plan, runtime = unattached(dtype), self._resolved(self.plan.runtime)
            self.attach(dataclasses.replace(self.plan, runtime=runtime, precision=plan.precision))

    def _may_differ_from(self, dtype: torch.dtype) -> bool:
        return not dtype is self.policy.weight_dtype is torch.float32

    @property
    def is_compiled(self) -> bool:
        """True if gradient steps run as a compiled graph."""
        return self._execution.is_compiled

    @property
    def has_cuda_graph(self) -> bool:
        """True if gradient steps run as CUDA graphs."""
        return self._execution.has_cuda_graph

    def seed(self, seed: int) -> None:
        """Seed the generator of minibatches and noise."""
        reseed(self.generator, type(self).__name__, seed)

    def observe(self, rollout: Rollout) -> None:
        """Merge newly collected data into the policy's running statistics; called once at the end of an update step."""
        if self.policy.obs_normalizer is not None:
            self.policy.obs_normalizer.update(rollout.valid_cells(rollout.obs), self.plan.ranks)
        if self.policy.reward_normalizer is not None:
            self.policy.reward_normalizer.update(rollout, self.gamma, self.plan.ranks)

    @property
    def has_statistics(self) -> bool:
        """True if `observe` does anything."""
        normalizers = (self.policy.obs_normalizer, self.policy.reward_normalizer)
        return any(n is not None for n in normalizers) or type(self).observe is not Algorithm.observe

    def run_training(self, params: TrainerMaker[TResult]) -> TResult:
        """Train with trainer params for this kind of algorithm, and return the `InfoStats` of the run."""
        if isinstance(params, type) or not callable(getattr(params, "create_trainer", None)):
            hint = "Hyperparameters belong to the algorithm." if isinstance(params, AlgorithmParams) else ""
            rule = "must be trainer params, such as OnPolicyTrainerParams(training_collector=...)"
            raise ParamsError.about(f"{type(self).__name__}.run_training", "params", rule, params, hint)
        return params.create_trainer(self).run()

    def to_plain(self) -> dict[str, Any]:
        """Return the class and the arguments of the constructor as plain data, for `rl.load`."""
        plain: dict[str, Any] = json.loads(self._construction)
        if plain["options"].get("params", ...) is None:  # defaults may change from release to release
            plain["options"]["params"] = to_plain(self.params)
        return plain

    def state_dict(self) -> State:
        """Return everything that changes while training, and the construction for `rl.load`."""
        self.check_faults()
        part_state.check_all_is_saved(type(self).__name__, self.attributes(), self._parts())
        parts = {name: part_state.part_state(part) for name, part in self._parts().items()}
        said = {"algorithm": type(self).__name__, "construction": self.to_plain()}
        return said | dtype_entry(self.policy.weight_dtype) | parts

    def take_from_first_rank(self) -> None:
        """Take the tensors of the plan's first rank, at the start, and where a callback may have changed them."""
        self.plan.ranks.make_equal(
            lambda: {x: "" for each in self._optimizers() for x in each.shared_tensors} | self._shared_tensors()
        )

    def require_equal_ranks(self) -> None:
        """Raise a `RanksDifferError` if networks, targets or their statistics differ between the plan's ranks."""
        self.plan.ranks.make_equal(self._shared_tensors, self._machine)

    def _machine(self) -> str:
        """Return what decides how numbers are rounded: processors and the way that updates run."""
        gpu = torch.cuda.get_device_name(self.device) if self.device.type == "cuda" else None
        return f"{torch.backends.cpu.get_cpu_capability()} {gpu} {self.plan.runtime}"

    def _shared_tensors(self) -> dict[Tensor, str]:
        """Return the tensors of networks, which are equal in all ranks, and their names."""
        found = {part: name for name, part in self._parts().items() if isinstance(part, Tensor)}
        for name, part in self._parts().items():
            # Without buffers that are not saved, and without extra states: the returns of a rank's own envs.
            saved = part.state_dict() if isinstance(part, nn.Module) else {}
            saved = {key: x for key, x in saved.items() if isinstance(x, Tensor) and not key.endswith("_extra_state")}
            found |= {x: f"{name}.{key}" for key, x in saved.items()}
        return found

    def snapshot(self) -> Load:
        """Return a function that restores the present state."""
        parts = self._parts()
        state = {name: copy.deepcopy(part_state.part_state(part)) for name, part in parts.items()}
        return partial(part_state.load_parts, parts, state)

    def load_state_dict(self, state: State) -> None:
        """Restore what `state_dict` returned, in place; a `CheckpointError` changes nothing."""
        self.prepare_load(state)()

    def prepare_load(self, state: State) -> Load:
        """Check a whole state, and return a function that loads it and cannot fail."""
        name, parts = type(self).__name__, self._parts()
        if state.get("algorithm") != name:
            hint = "rl.load(path) builds what a file holds."
            raise CheckpointError(f"{name}: the state was saved by {readable(state.get('algorithm'))}. {hint}")
        saved_dtype(name, state, self.policy.weight_dtype)
        for part_name in [*parts, *state.keys() - NO_PARTS]:
            if part_name not in state:
                raise CheckpointError(f"{name}: the state has no {part_name!r}")
            if part_name not in parts:
                raise CheckpointError(f"{name}: the state has {part_name!r}, which this {name} has not")
            part_state.check_part(f"{name}.{part_name}", parts[part_name], state[part_name])
        return partial(part_state.load_parts, parts, state)

    def save(self, path: str | Path) -> None:
        """Write the whole algorithm to one safetensors file for `rl.load`, in one step.

        Raises:
            CheckpointError: it could not be written; an earlier file is unchanged.
        """
        path = checked(f"{type(self).__name__}.save", "path", path, AnyPath)
        state = self.state_dict()
        with write_errors(Path(path), CheckpointError):
            write_state(path, "algorithm", state)

    def load(self, path: str | Path, *, strict: bool = True) -> IncompatibleKeys:
        """Restore the algorithm from a file that `save` wrote; the file runs nothing.

        Args:
            path: the file.
            strict: False loads the fitting parts of any algorithm's file: each tensor of a network by name, shape and
                dtype, each optimizer as a whole. The rest stays as it is.

        Returns:
            the names of what was left out; none, unless `strict=False`.

        Raises:
            CheckpointError: the file is missing or damaged, or of another algorithm or shapes; nothing was changed.
        """
        name, left_out = type(self).__name__, IncompatibleKeys([], [], [])
        path, strict = checked(f"{name}.load", "path", path, AnyPath), checked(f"{name}.load", "strict", strict, Flag)
        state = read_state(path, "algorithm", CheckpointError)
        if not strict:
            state, left_out = self.fitting_state(state)
        self.load_state_dict(state)
        return left_out

    def fitting_state(self, state: State) -> tuple[State, IncompatibleKeys]:
        """Return a whole state with the fitting parts of another one, and the names of what was left out."""
        saved = {name: value for name, value in state.items() if name not in NO_PARTS}
        parts, left_out = part_state.fitting_state(self._parts(), saved)
        return {"algorithm": type(self).__name__, **dtype_entry(self.policy.weight_dtype), **parts}, left_out

    def check_faults(self, wait: bool = True) -> None:
        """Raise a `NonFiniteError`, once, if a gradient was not finite; its step was not applied.

        Each update does so at its end, on CUDA perhaps a later one: only `wait` waits for the device.
        """
        for optimizer in self._optimizers():
            if (fault := optimizer.take_fault(wait)) is not None:
                raise self.non_finite_error(fault)

    def non_finite_error(self, fault: str) -> NonFiniteError:
        """Return the error of a step that was not applied."""
        hint = "Lower the learning rate, set max_grad_norm, or look for extreme rewards or observations."
        return NonFiniteError(f"{type(self).__name__}: {fault}; the step was not applied. {hint}")

    @property
    def num_skipped_steps(self) -> int:
        """Number of the optimizers' steps that were left out because the plan says so (`UpdateParams.nonfinite`)."""
        return sum(optimizer.num_skipped for optimizer in self._optimizers())

    def logged_values(self) -> dict[str, float]:
        """Return the numbers of a log beside the metrics: learning rates, skipped steps, scales of the losses."""
        optimizers = self.optimizers_by_loss()
        logged: dict[str, float] = {f"{name}_lr".lstrip("_"): o.method.lr for name, o in optimizers.items()}
        if self.plan.skips_steps:
            logged["skipped_steps"] = self.num_skipped_steps
        scales = {f"{name}_loss_scale".lstrip("_"): o.loss_scale for name, o in optimizers.items()}
        return logged | {name: scale for name, scale in scales.items() if scale is not None}

    @property
    def stop_reason(self) -> str | None:
        """The reason why training cannot continue: "min_loss_scale", see `PrecisionParams`; None if it can."""
        scales = [scale for optimizer in self._optimizers() if (scale := optimizer.loss_scale) is not None]
        return "min_loss_scale" if min(scales, default=math.inf) < self.plan.precision.min_loss_scale else None

    def may_report(self, metric: str) -> bool:
        """Return whether an update may report this metric although the last ones did not."""
        norms = [f"{name}_grad_norm".lstrip("_") for name in self.optimizers_by_loss()]
        return metric in self.occasional_metrics or (self.plan.update.logs_norms and metric in norms)

    def make_optimizer(self, params: AlgorithmParams, lr: Any = None, **modules: nn.Module) -> Optimizer:
        """Return an optimizer over the named modules with the settings of the params; `lr` replaces theirs."""
        lr = params.lr if lr is None else lr
        given = params.max_grad_norm, params.adam_eps, params.optimizer, params.adam_betas, params.weight_decay
        return Optimizer(modules, lr, *given)

    def _placed(self, module: TModule) -> TModule:
        """Bring a module beside the policy to its device and format of weights."""
        set_weight_dtype(module.to(self.device), self.policy.weight_dtype)
        return module

    def _in_weight_dtype(self, value: T) -> T:
        """Return a value with its floating-point tensors in the format of the weights."""
        dtype = self.policy.weight_dtype
        return value if dtype is torch.float32 else cast(value, dtype)

    def _check_policy(self) -> None:
        """Raise a `ParamsError` if another policy took the place of the one that optimizers and targets follow."""
        name = type(self).__name__
        if self.policy is not self._built_for[0]:
            rule = "must stay the one that the algorithm was built with"
            text = f"{name}.policy: {rule}; got another {type(self.policy).__name__}"
            raise ParamsError(f"{text}. Copy weights into it, or build a {name}.")

    def _begin_update(self) -> None:
        self._check_policy()
        progress = self.plan.progress()
        for follower in self.attributes().values():
            if isinstance(follower, (Optimizer, ScheduledValue)):  # a union takes twice as long
                follower.set_progress(progress)

    def _check_results(self, results: list[UpdateResult]) -> None:
        for result in results:
            if not isinstance(result, UpdateResult):
                rule, hint = "must return an UpdateResult", 'End it with return UpdateResult({"loss": loss.detach()}).'
                raise ReturnedError.about(type(self).__name__, "gradient_step", rule, result, hint)

    def _end_update(self) -> None:
        for optimizer in self._optimizers():
            optimizer.unused.report(type(self).__name__)
        self.check_faults(wait=False)

    def _average_metrics(self, result: UpdateResult) -> UpdateResult:
        """Average the metrics of a result over ranks; `td_error` stays of this rank's batch alone."""
        result.metrics = self.plan.ranks.means(result.metrics, self.device)
        return result

    def all_algorithms(self) -> "list[Algorithm]":
        """Return the algorithms that train as one: itself, and the one that it is around."""
        return [self]

    def attributes(self) -> dict[str, Any]:
        """Return the attributes of all `all_algorithms` by name, among which the state is."""
        own, *wrapped = map(vars, self.all_algorithms())
        return wrapped[0] | own if wrapped else own

    def optimizers_by_loss(self) -> dict[str, Optimizer]:
        """Return the optimizers by the loss that each minimises: `actor` of `actor_optimizer`, `` of `optimizer`."""
        found = {name: value for name, value in self.attributes().items() if isinstance(value, Optimizer)}
        return {name.removesuffix("optimizer").rstrip("_"): optimizer for name, optimizer in found.items()}

    def _optimizers(self) -> list[Optimizer]:
        return [value for value in self.attributes().values() if isinstance(value, Optimizer)]

    def all_networks(self) -> list[nn.Module]:
        """Return the modules whose state is the algorithm's: the policy, other networks, statistics."""
        return [part for part in self._parts().values() if isinstance(part, nn.Module)]

    def _tensors(self) -> list[Tensor]:
        """Return all tensors that a gradient step may change."""
        found: list[Tensor] = []
        for part in self._parts().values():
            if isinstance(part, nn.Module):
                found += [*part.parameters(), *part.buffers()]
            elif isinstance(part, Optimizer):
                found += part.tensors
            elif isinstance(part, Tensor):
                found.append(part)
        return list(dict.fromkeys(found))

    def _parts(self) -> dict[str, Any]:
        """The stateful attributes by name; networks inside the policy are saved with it, not twice."""
        of_policy = set(self.policy.modules()) - {self.policy}
        attributes = self.attributes().items()
        return {name: v for name, v in attributes if isinstance(v, part_state.PARTS) and v not in of_policy}

    def columns_read(self, has_stale_data: bool = False) -> tuple[str, ...]:
        """Return the names of the columns that the updates read, more of them perhaps for data of older weights."""
        return self.columns

    def require_columns(self, owner: str, extra: Collection[str], has_stale_data: bool = False) -> None:
        """Raise a `ParamsError` about the field `owner` unless its buffer has the columns of `columns_read`."""
        for name in self.columns_read(has_stale_data):
            if name not in extra:
                spec = self.policy.columns.get(name, "(shape, dtype)")
                text = f"{owner}: must have the column {name!r}, which {type(self).__name__} reads; got {list(extra)}"
                raise ParamsError(f"{text}. Make the buffer with extra={{{name!r}: {spec}}}.")
