"""The hooks of a run, called point by point, and their state in its checkpoints."""

import dataclasses
from collections.abc import Callable, Sequence
from functools import partial
from typing import Annotated, Any

from torch import Tensor

from rltrainer.algorithms import OnPolicyBatch
from rltrainer.collect import CollectStats
from rltrainer.errors import CheckpointError, ParamsError, ReturnedError, call_all
from rltrainer.hooks.hook import POINTS, SHOW, TrainerContext, TrainerHook, are_numbers, is_ours, lent, overrides
from rltrainer.interval import Every
from rltrainer.plan import UpdateCallbacks
from rltrainer.seeding import derive_seed
from rltrainer.state.codec import from_state, to_state
from rltrainer.tree import named_leaves
from rltrainer.types import DenseRollout, Load, Rollout, Sequences, State, Transitions, UpdateResult
from rltrainer.validation.field_rules import AnyText, Rule, checked
from rltrainer.validation.suggestions import did_you_mean

# Points inside a gradient step.
INSIDE = ("process_optim_batch", "post_loss", "optimizer", "post_optim", "post_optim_log")
# Points at which a hook is given a rollout.
SEE_ROLLOUTS = ("batch_process", "pre_steps_log", "post_steps_log")
# Fields of batches with one number per transition.
NUMBERS = (
    "reward", "discount", "weight", "index", "final_index", "terminated", "truncated", "valid", "starts", "first"
)  # fmt: skip
AnyEvery = Annotated[Every, Rule("an Every", lambda v: isinstance(v, Every))]


@dataclasses.dataclass
class HooksState:
    """The names of the hooks that change what is learned, and the state of each hook by its name."""

    changing: list[str] = dataclasses.field(default_factory=list)
    states: dict[str, dict[str, Any]] = dataclasses.field(default_factory=dict)


class HookRunner:
    """Calls the hooks that override a point, in their order; a point without such a hook does nothing.

    A user's hook gets copies of batches, losses and statistics: a change in place changes nothing of the run.
    `owner` names the params that hold the hooks, for error texts.
    """

    # The run as hooks see it; the trainer sets it before it calls a point.
    context: TrainerContext

    def __init__(self, owner: str, hooks: Sequence[TrainerHook], is_on_policy: bool = False) -> None:
        self._owner = owner
        self._open: list[TrainerHook] = []
        self._hooks = _named(owner, hooks)
        # Looked up once: a point without hooks costs one look into a dict per step.
        self._at = {
            point: [
                hook for hook in hooks if overrides(hook, point) and not (is_on_policy and point in hook.NOT_ON_POLICY)
            ]
            for point in POINTS
        }
        self._minibatch: Any = None
        self._has_users = any(not is_ours(getattr(hook, point)) for point, at in self._at.items() for hook in at)

    def has(self, point: str) -> bool:
        """Return whether any hook overrides this point."""
        return bool(self._at[point])

    def open(self) -> None:
        """Set the hooks up, unless they are set up."""
        if not self._open:
            for hook in self._hooks.values():
                self._open.append(hook)  # first, because a hook that fails half-way has something to clean up too
                self._check_none(hook, "setup", self._call(hook, "setup"))

    def close(self) -> None:
        """Shut down all hooks that were set up, even if one raises; then raise the first error."""
        hooks, self._open = self._open, []
        call_all(partial(self._call, hook, "shutdown") for hook in hooks)

    def reset(self) -> None:
        """Let all hooks forget an earlier run."""
        for hook in self._hooks.values():
            hook.reset()

    def seed(self, seed: int) -> None:
        """Seed each hook's random numbers by its name."""
        for name, hook in self._hooks.items():
            hook.seed(derive_seed(seed, name))

    def begin_training_step(self) -> None:
        """Measure intervals from here on."""
        if self._hooks:
            self.context._begin_training_step()

    def end_training_step(self, batch: Any, result: UpdateResult | None, is_last: bool) -> None:
        """Call the points at the end of a training step; `is_last` of its epoch."""
        if self._hooks:
            self.context._end_update(lent(result) if self._has_users and result is not None else result, is_last)
            self.act("post_steps")
            self.log("post_steps_log", batch)

    def note_collection(self, stats: CollectStats) -> None:
        """Show hooks the statistics of a collection step."""
        if self._hooks:
            self.context.collect_stats = lent(stats) if self._has_users else stats

    def act(self, point: str, *args: Any) -> None:
        """Call a point that returns nothing."""
        for hook in self._at[point]:
            self._check_none(hook, point, self._show(hook, point, *args))

    def replaced(self, point: str, data: Any) -> Any:
        """Return data as the hooks make it in turn; a hook that returns unfit data raises a `ReturnedError`."""
        if isinstance(data, DenseRollout) and any(map(self.has, SEE_ROLLOUTS)):
            data = data.plain()  # successors would not follow a hook's changes
        for hook in self._at[point]:
            found = self._show(hook, point, data)
            if found is None:
                continue
            # The same class, not a parent or child: the algorithm reads its fields, and a compiled step guards them.
            if type(found) is not type(data):
                raise self._wrong_return(hook, point, f"must return a {type(data).__name__} or None", found)
            if problem := misshapen(found):
                raise self._wrong_return(hook, point, f"must return as much of everything; {problem}", found)
            data = found
        return data

    def log(self, point: str, *args: Any) -> None:
        """Add the numbers of each hook to the next row: the updates' from inside an update, else the training's."""
        if self._at[point]:
            self.context._log.take_in("update" if point in INSIDE else "training", *self._logged(point, *args))

    def log_test(self, stats: CollectStats) -> tuple[dict[str, Any], dict[str, Any]]:
        """Return the numbers of each hook to log of a test step, and the numbers for the progress bar."""
        with self.context._in_test_step():
            return self._logged("test_log", stats)

    def callbacks(self) -> UpdateCallbacks:
        """Return the callbacks of an update: None for a point that no hook overrides."""
        if not any(map(self.has, INSIDE)):
            return UpdateCallbacks()
        on_loss = self._on_loss if self.has("post_loss") or self.has("optimizer") else None
        return UpdateCallbacks(self._before_step, on_loss, self._after_step, self.has("process_optim_batch"))

    def changing(self) -> dict[str, TrainerHook]:
        """Return the hooks that may change what is learned, by name."""
        return {name: hook for name, hook in self._hooks.items() if overrides(hook, *TrainerHook.DATA)}

    def state_dict(self) -> State:
        """Return the state of each hook."""
        states = {name: hook.state_dict() for name, hook in self._hooks.items()}
        return dict(to_state(HooksState([*self.changing()], states)))

    def prepare_load(self, state: State) -> Load:
        """Check the states of hooks, else raise a `CheckpointError`; return the function that restores them."""
        found, named = from_state(HooksState, state, "hooks"), self._hooks.items()
        if found.changing != (now := [*self.changing()]):
            text = f"{self._owner}.hooks that change what is learned were {found.changing} when it was saved"
            raise CheckpointError(f"{text} and are {now} now. Only hooks that read may come and go.")
        loads = [hook.prepare_load(found.states[name]) for name, hook in named if name in found.states]

        def load() -> None:
            for each in loads:
                each()

        return load

    def _before_step(self, minibatch: Any) -> Any:
        self.context._begin_gradient_step()
        self._minibatch = self.replaced("process_optim_batch", minibatch)
        return self._minibatch

    def _on_loss(self, name: str, loss: Tensor, step: Callable[[Tensor], None]) -> Tensor:
        # A clone keeps its graph; a change of it in place leaves the loss that is differentiated alone.
        self.context.losses[name] = loss.clone() if self._has_users else loss
        self.act("post_loss", self._minibatch)
        is_taken = False

        def step_once() -> None:
            # `step` takes the loss as it is when a hook calls it: after the replacements of the hooks before it.
            nonlocal is_taken
            if not is_taken:
                step(loss)
            is_taken = True

        for hook in self._at["optimizer"]:
            found = self._call(hook, "optimizer", {name: loss.clone()}, step_once)
            if found is not None:
                new = found.get(name) if isinstance(found, dict) and len(found) == 1 else None
                if not isinstance(new, Tensor) or new.numel() != 1 or not new.requires_grad:
                    rule = f"must return a dict of the loss {name!r}, a scalar with its graph, or None"
                    raise self._wrong_return(hook, "optimizer", rule, found)
                loss = new
        return loss

    def _after_step(self, minibatch: Any, result: UpdateResult) -> None:
        self.context._end_gradient_step(result)
        self.act("post_optim")
        self.log("post_optim_log", minibatch)
        self._minibatch = None
        self.context.losses.clear()  # each loss holds its graph, and with it the memory of a whole forward pass

    def _logged(self, point: str, *args: Any) -> tuple[dict[str, Any], dict[str, Any]]:
        values, shown = dict[str, Any](), dict[str, Any]()
        for hook in self._at[point]:
            found = self._show(hook, point, *args)
            if found is None:
                continue
            if not are_numbers(found):
                raise self._wrong_return(hook, point, "must return a mapping from names to numbers, or None", found)
            own = {name: value for name, value in found.items() if name != SHOW}
            # A user's hook may count further in the tensors that it returned, before their row is written.
            own = own if is_ours(getattr(hook, point)) else lent(own)
            values |= own
            shown |= own if found.get(SHOW) else {}
        return values, shown

    def _show(self, hook: TrainerHook, point: str, *data: Any) -> Any:
        # Call a point with data that the run uses afterwards.
        return self._call(hook, point, *(data if is_ours(getattr(hook, point)) else map(lent, data)))

    def _call(self, hook: TrainerHook, point: str, *args: Any) -> Any:
        try:
            return getattr(hook, point)(self.context, *args)
        except Exception as error:
            error.add_note(f"{self._owner}.hooks: {type(hook).__name__}.{point} raised this.")
            raise

    def _check_none(self, hook: TrainerHook, point: str, found: object) -> None:
        if found is not None:
            raise self._wrong_return(hook, point, "must return None", found)

    def _wrong_return(self, hook: TrainerHook, point: str, rule: str, found: object) -> ReturnedError:
        hint = 'ctx.request_stop("a reason") ends a run.' if found is False else "Does it return by mistake?"
        hint = "Numbers are floats or tensors of one element; leave others out." if isinstance(found, dict) else hint
        return ReturnedError.about(f"{self._owner}.hooks", f"{type(hook).__name__}.{point}", rule, found, hint)


def misshapen(batch: Any) -> str | None:
    """Return which part of a batch is no tensor, or has another length than the rest; None if all fits."""
    if not isinstance(batch, Rollout | Transitions | OnPolicyBatch):
        return None  # of a user's own algorithm
    axes, others = (batch.valid if isinstance(batch, Rollout) else batch.weight).shape, dict[str, Any]()
    if isinstance(batch, Rollout):
        # One entry per env, and one per trajectory that ended within the rollout.
        others = dict.fromkeys(("last_obs", "starts"), axes[1:])
        others |= dict.fromkeys(("final_obs", "final_index"), batch.final_index.shape[:1])
    elif isinstance(batch, Sequences):
        others = {'extra["state"]': axes[:-2] + axes[-1:]}  # the memory before the first transition
    for field in dataclasses.fields(batch):
        for name, leaf in named_leaves(getattr(batch, field.name), field.name):
            if not isinstance(leaf, Tensor):
                return f"{name} is a {type(leaf).__name__}, not a tensor"
            expected = others.get(name, others.get(field.name, axes))
            if (leaf.shape if field.name in NUMBERS else leaf.shape[: len(expected)]) != expected:
                return f"{name} has shape {tuple(leaf.shape)}, the first axes must be {tuple(expected)}"
    return None


def _named(owner: str, hooks: Sequence[TrainerHook]) -> dict[str, TrainerHook]:
    named: dict[str, TrainerHook] = {}
    for hook in hooks:
        kind = type(hook).__name__
        checked(owner, f"hooks: {kind}.name", hook.name, AnyText | None)
        checked(owner, f"hooks: {kind}.every", hook.every, AnyEvery | None)
        own = [name for name, value in vars(type(hook)).items() if callable(value) and not hasattr(TrainerHook, name)]
        if own and not overrides(hook, *POINTS):
            meant = next(filter(None, (did_you_mean(each, POINTS) for each in own)), "")
            rule, hint = "must override a point, or nothing would call it", f"Points are {', '.join(POINTS)}.{meant}"
            raise ParamsError.about(owner, "hooks", rule, hook, hint)
        loads = hook.state_class is not None or overrides(hook, "load_state_dict", "prepare_load")
        if overrides(hook, "state_dict") and not loads:
            rule, hint = "must override load_state_dict beside state_dict", "A checkpoint could not be continued."
            raise ParamsError.about(owner, "hooks", rule, hook, hint)
        number = sum(type(each).__name__ == kind and each.name is None for each in named.values()) + 1
        name = hook.name or (kind if number == 1 else f"{kind} {number}")
        if name in named or any(each is hook for each in named.values()):
            hint = "Give each hook of a trainer a name of its own, and each trainer hooks of its own."
            raise ParamsError.about(owner, "hooks", "must have different names", name, hint)
        named[name] = hook
    return named
