"""Every public class and function called without what it needs: an error of ours says what is missing, and the call."""

import inspect
from collections.abc import Callable
from types import ModuleType
from typing import Any

import pytest

import rltrainer as rl
from rltrainer.errors import ArgumentError
from tests.fakes import CountingEnv

RECORDS = {
    "BufferDescription", "CollectStats", "Decision", "EpochStats", "IncompatibleKeys", "InfoStats", "ReplayedStep",
    "Rollout", "Run", "OnPolicyBatch", "SeedRun", "SequenceSummaryStats", "Sequences", "SweepResult", "SweepTrial",
    "TrainerContext", "Training", "Transitions",
}  # fmt: skip
"""Objects that functions return or hand to hooks: some are made in every step, none by a user's program."""
PARTS = {"Algorithm", "Optimizer", "ScheduledValue", "rms_prop"}
"""What algorithms are, and what they call with parameters of networks."""


def public() -> dict[str, Callable[..., Any]]:
    """Return the public classes and functions that need arguments and can be called, by name."""
    found = {name: getattr(rl, name) for name in rl.__all__ if name not in RECORDS | PARTS}
    for room in (rl.plots, rl.recipes, rl.datasets):
        found |= {f"{room.__name__}.{name}": getattr(room, name) for name in room.__all__ if name not in RECORDS}
    found |= {f"scores.{name}": each for name, each in vars(rl.scores).items() if is_of(rl.scores, name, each)}
    return {name: each for name, each in found.items() if callable(each) and needs_arguments(each)}


def is_of(module: ModuleType, name: str, value: Any) -> bool:
    return inspect.isfunction(value) and value.__module__ == module.__name__ and name[0] != "_"


def needs_arguments(called: Any) -> bool:
    if inspect.isabstract(called) or getattr(called, "_is_protocol", False):
        return False
    parameters = list(inspect.signature(called.__init__ if isinstance(called, type) else called).parameters.values())
    parameters = parameters[1:] if isinstance(called, type) else parameters
    return any(p.default is p.empty and p.kind not in (p.VAR_KEYWORD, p.VAR_POSITIONAL) for p in parameters)


PUBLIC = public()


def test_all_that_users_call_is_looked_at() -> None:
    assert len(PUBLIC) > 100
    assert {"PPO", "AtariWrapper", "Every", "load", "plots.sweep", "scores.median_score"} <= {
        name.removeprefix("rltrainer.").removeprefix("tools.") for name in PUBLIC
    }


@pytest.mark.parametrize("name", PUBLIC)
def test_what_is_missing_is_named_with_the_call(name: str) -> None:
    with pytest.raises(ArgumentError) as caught:
        PUBLIC[name]()
    text, short = str(caught.value), name.rpartition(".")[2]
    assert text.startswith(f"{short}: missing ")
    assert "required" in text
    assert text.count(f"{short}(") == 1 or "by name: " in text  # how to write it
    assert "__init__" not in text


def test_the_text_in_full() -> None:
    for called, text in (
        (rl.AtariWrapper, "AtariWrapper: missing a required argument: 'env'. Write AtariWrapper(env, ...)."),
        (rl.PPO, "PPO: missing a required argument: 'policy'. Write PPO(policy, ...)."),
        (rl.OfflineTrainer, "OfflineTrainer: missing a required argument: 'algorithm'. Write OfflineTrainer(algorit"),
        (rl.plots.page, "page: missing a required argument: 'run'. Write page(run, ...)."),
    ):
        with pytest.raises(ArgumentError) as caught:
            called()
        assert str(caught.value).startswith(text)
    with pytest.raises(ArgumentError, match=r"^AtariWrapper: unknown argument 'noop'. Did you mean 'noop_max'\?$"):
        rl.AtariWrapper(CountingEnv(), noop=3)  # type: ignore[call-arg]  # that is the point


def test_an_error_within_the_call_is_left_alone() -> None:
    class Own(rl.DQN):
        def __init__(self, policy: Any) -> None:
            len(policy)  # a TypeError of the user's
            super().__init__(policy)

    with pytest.raises(TypeError, match=r"^object of type 'int' has no len\(\)$"):
        Own(3)
    with pytest.raises(ArgumentError, match=r"^Own: missing a required argument: 'policy'"):
        Own()  # type: ignore[call-arg]  # that is the point
