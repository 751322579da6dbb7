"""The hooks of a run, called point by point, and their state in its checkpoints."""

import dataclasses
from collections.abc import Callable, Iterable, Sequence
from functools import partial
from typing import Annotated, Any

from torch import Tensor

from rltrainer.algorithms import OnPolicyBatch
from rltrainer.collect import CollectStats
from rltrainer.errors import CheckpointError, ParamsError, ReturnedError, call_all, field_error_text
from rltrainer.hooks.context import SHOW, TrainerContext, are_numbers
from rltrainer.hooks.hook import POINTS, TrainerHook, overrides
from rltrainer.hooks.lent import is_ours, lent
from rltrainer.interval import Every
from rltrainer.plan import UpdateCallbacks
from rltrainer.seeding import derive_seed
from rltrainer.tree import leaves
from rltrainer.types import Load, Rollout, State, Transitions, UpdateResult
from rltrainer.validation.field_rules import AnyText, Rule, checked
from rltrainer.validation.suggestions import did_you_mean

INSIDE = ("process_optim_batch", "post_loss", "optimizer", "post_optim", "post_optim_log")
"""Points inside a gradient step."""
WITH_BATCH_AXES = {field.name for cls in (Rollout, Transitions, OnPolicyBatch) for field in dataclasses.fields(cls)} - {
    "last_obs",
    "final_obs",
    "final_index",
    "starts",
}
"""Fields of batches that have the batch's axes first."""
AnyEvery = Annotated[Every, Rule("an Every", lambda v: isinstance(v, Every))]
NO_HOOKS: State = {"changing": [], "states": {}}
"""The state of a run without hooks."""


class HookRunner:
    """Calls each point of the hooks that override it, in their order; does nothing where none does.

    A user's hook is lent copies of batches, losses and statistics: a change in place changes nothing of the run.

    Args:
        owner: the params that hold the hooks, for error texts.
        hooks: the hooks.
        is_on_policy: whether the algorithm is.

    Attributes:
        context: what the hooks see of the run; whoever calls a point sets it first.

    Raises:
        ParamsError: two hooks have one name, or one hook is there twice.
    """

    context: TrainerContext

    def __init__(self, owner: str, hooks: Sequence[TrainerHook], is_on_policy: bool = False) -> None:
        self._owner = owner
        self._open: list[TrainerHook] = []
        self._hooks = _named(owner, hooks)
        self._at = {point: [hook for hook in hooks if _is_called(hook, point, is_on_policy)] for point in POINTS}
        self._minibatch: Any = None
        self._has_users = any(not is_ours(getattr(hook, point)) for point, at in self._at.items() for hook in at)

    def has(self, point: str) -> bool:
        """Return whether any hook overrides this point."""
        return bool(self._at[point])

    def open(self) -> None:
        """Set the hooks up, unless they are."""
        if not self._open:
            for hook in self._hooks.values():
                self._open.append(hook)  # first: one that fails half-way has something to clean up, too
                self._check_none(hook, "setup", self._call(hook, "setup"))

    def close(self) -> None:
        """Shut those hooks down whose `setup` was called, whatever one of them raises; the first error is raised."""
        hooks, self._open = self._open, []
        call_all(partial(self._call, hook, "shutdown") for hook in hooks)  # they have files and threads to close

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
        """Call an operation of each hook."""
        for hook in self._at[point]:
            self._check_none(hook, point, self._show(hook, point, *args))

    def replaced(self, point: str, data: Any) -> Any:
        """Return data as the hooks make it, each from what the one before it returned."""
        for hook in self._at[point]:
            found = self._show(hook, point, data)
            if found is None:
                continue
            if type(found) is not type(data):
                raise self._wrong_return(hook, point, f"must return a {type(data).__name__} or None", found)
            if problem := misshapen(found):
                raise self._wrong_return(hook, point, f"must return as much of everything; {problem}", found)
            data = found
        return data

    def log(self, point: str, *args: Any) -> None:
        """Take the numbers of each hook into the log's next row: of updates from inside one, else of training."""
        if self._at[point]:
            self.context._log.take_in("update" if point in INSIDE else "training", *self._logged(point, *args))

    def log_test(self, stats: CollectStats) -> tuple[dict[str, Any], dict[str, Any]]:
        """Return the numbers of each hook to log of a test step, and those that the progress bar shows."""
        with self.context._in_test_step():
            return self._logged("test_log", stats)

    def callbacks(self) -> UpdateCallbacks:
        """Return the callbacks of an update: none where no hook overrides a point there."""
        if not any(map(self.has, INSIDE)):
            return UpdateCallbacks()
        on_loss = self._on_loss if self.has("post_loss") or self.has("optimizer") else None
        return UpdateCallbacks(self._before_step, on_loss, self._after_step)

    def state_dict(self) -> State:
        """Return the state of each hook by its name, and the names of those that change what is learned."""
        return {"changing": self._changing(), "states": {name: h.state_dict() for name, h in self._hooks.items()}}

    def prepare_load(self, state: State) -> Load:
        """Check the states of hooks, and return what loads them; hooks that only read may come and go.

        Raises:
            CheckpointError: hooks that change what is learned differ, or a state is none of its hook's.
        """
        changing, states = state.get("changing"), state.get("states")
        if not isinstance(changing, list) or not isinstance(states, dict) or not _are_mappings(states.values()):
            raise CheckpointError("hooks: expected their states, found something else")
        if changing != self._changing():
            text = f"{self._owner}.hooks that change what is learned were {changing} when it was saved"
            raise CheckpointError(f"{text} and are {self._changing()} now. Only hooks that read may come and go.")
        loads = [hook.prepare_load(states[name]) for name, hook in self._hooks.items() if name in states]

        def load() -> None:
            for each in loads:
                each()

        return load

    def _changing(self) -> list[str]:
        return [name for name, hook in self._hooks.items() if overrides(hook, *TrainerHook.DATA)]

    def _before_step(self, minibatch: Any) -> Any:
        self.context._begin_gradient_step()
        self._minibatch = self.replaced("process_optim_batch", minibatch)
        return self._minibatch

    def _on_loss(self, name: str, loss: Tensor, step: Callable[[Tensor], None]) -> Tensor:
        self.context.losses[name] = loss.clone() if self._has_users else loss
        self.act("post_loss", self._minibatch)
        is_taken = False

        def step_once() -> None:
            nonlocal is_taken
            if not is_taken:
                step(loss)
            is_taken = True

        for hook in self._at["optimizer"]:
            found = self._call(hook, "optimizer", {name: loss.clone()}, step_once)
            if found is not None:
                if not _is_loss(found, name):
                    rule = f"must return a dict of the loss {name!r}, a scalar with its graph, or None"
                    raise self._wrong_return(hook, "optimizer", rule, found)
                loss = found[name]
        return loss

    def _after_step(self, minibatch: Any, result: UpdateResult) -> None:
        self.context._end_gradient_step(result)
        self.act("post_optim")
        self.log("post_optim_log", minibatch)
        self._minibatch = None
        self.context.losses.clear()  # each holds the graph that it came from

    def _logged(self, point: str, *args: Any) -> tuple[dict[str, Any], dict[str, Any]]:
        values: dict[str, Any] = {}
        shown: dict[str, Any] = {}
        for hook in self._at[point]:
            found = self._show(hook, point, *args)
            if found is None:
                continue
            if not are_numbers(found):
                raise self._wrong_return(hook, point, "must return a mapping from names to numbers, or None", found)
            own = {name: value for name, value in found.items() if name != SHOW}
            own = own if is_ours(getattr(hook, point)) else lent(own)  # it may count on in its tensors
            values |= own
            shown |= own if found.get(SHOW) else {}
        return values, shown

    def _show(self, hook: TrainerHook, point: str, *data: Any) -> Any:
        """Call a point with data that the run uses afterwards."""
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
        name = f"{type(hook).__name__}.{point}"
        return ReturnedError(field_error_text(f"{self._owner}.hooks", name, rule, found, hint))


def misshapen(batch: Any) -> str | None:
    """Return which part of a batch is no tensor, or of another length than the rest; None if all fits."""
    if not isinstance(batch, Rollout | Transitions | OnPolicyBatch):
        return None  # of an algorithm of the user's
    cells = batch.valid if isinstance(batch, Rollout) else batch.weight
    for name in [field.name for field in dataclasses.fields(batch) if field.name in WITH_BATCH_AXES]:
        for leaf in leaves(getattr(batch, name)):
            if not isinstance(leaf, Tensor):
                return f"{name} is a {type(leaf).__name__}, not a tensor"
            if leaf.shape[: cells.dim()] != cells.shape:
                return f"{name} has shape {tuple(leaf.shape)}, of {tuple(cells.shape)} cells"
    return None


def _is_called(hook: TrainerHook, point: str, is_on_policy: bool) -> bool:
    return overrides(hook, point) and not (is_on_policy and point in hook.NOT_ON_POLICY)


def _are_mappings(states: Iterable[Any]) -> bool:
    return all(isinstance(state, dict) for state in states)


def _is_loss(found: Any, name: str) -> bool:
    loss = found.get(name) if isinstance(found, dict) and len(found) == 1 else None
    return isinstance(loss, Tensor) and loss.numel() == 1 and loss.requires_grad


def _named(owner: str, hooks: Sequence[TrainerHook]) -> dict[str, TrainerHook]:
    """Return the hooks by the names that their states are saved under."""
    named: dict[str, TrainerHook] = {}
    for hook in hooks:
        kind = type(hook).__name__
        checked(owner, f"hooks: {kind}.name", hook.name, AnyText | None)
        checked(owner, f"hooks: {kind}.every", hook.every, AnyEvery | None)
        own = [name for name, value in vars(type(hook)).items() if callable(value) and not hasattr(TrainerHook, name)]
        if own and not overrides(hook, *POINTS):
            meant = next(filter(None, (did_you_mean(each, POINTS) for each in own)), "")
            rule, hint = "must override a point, or nothing would call it", f"Points are {', '.join(POINTS)}.{meant}"
            raise ParamsError(field_error_text(owner, "hooks", rule, hook, hint))
        if overrides(hook, "state_dict") and not overrides(hook, "load_state_dict", "prepare_load"):
            rule, hint = "must override load_state_dict beside state_dict", "A checkpoint could not be continued."
            raise ParamsError(field_error_text(owner, "hooks", rule, hook, hint))
        number = sum(type(each).__name__ == kind and each.name is None for each in named.values()) + 1
        name = hook.name or (kind if number == 1 else f"{kind} {number}")
        if name in named or any(each is hook for each in named.values()):
            hint = "Give each hook of a trainer a name of its own, and each trainer hooks of its own."
            raise ParamsError(field_error_text(owner, "hooks", "must have different names", name, hint))
        named[name] = hook
    return named
