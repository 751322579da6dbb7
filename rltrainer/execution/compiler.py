"""The compiler as it is used here: its options, the guards that are checked at each call, and what its errors say."""

import contextlib
import itertools
import re
from collections.abc import Callable
from typing import Any

import torch
from torch import nn

from rltrainer.execution.fingerprint import names_its_state

TESTED = ("2.11.", "2.12.", "2.13.", "2.14.")
"""Versions of torch whose guards this file knows; with another one, a graph looks at everything again at each call."""
OPTIONS: dict[str, Any] = {
    # The sizes of arguments are guarded, and `Execution.attach` looks at the sizes of the algorithm's own tensors.
    "size_asserts": False,
    # By one exponential: a quarter of the time of the library's function, with an absolute error below 2e-7.
    "cpp.use_decompose_tanh": True,
}
"""Options of the compiler for all graphs."""
_NUMBERS = itertools.count()

# Names of sources in Dynamo's guards: a class's dict would be copied to be looked at.
_OF_LIBRARIES = re.compile(r"^G\['__(import_torch|import_rltrainer|builtins)|\.torch\b|__dataclass_fields__|type\(")
_OF_NETWORKS = re.compile(r"\._(modules|parameters|buffers)\b|optimizer\b.*\.")
_CONSTANTS = ("CONSTANT_MATCH", "EQUALS_MATCH")
_FUNCTIONS = ("CLOSURE_MATCH", "ID_MATCH")
_NOT_LOOKED_AT = ("TENSOR_MATCH", "EMPTY_NN_MODULE_HOOKS_DICT", "DUPLICATE_INPUT")
_HOOKS_OF_BACKWARD = "AUTOGRAD_SAVED_TENSORS_HOOKS"
"""Asked by a Python function, 5 us a call; hooks of saved tensors reach no gradient that is taken inside a graph."""


def can_fail(guard: Any) -> bool:
    """Return whether a guard may fail while nothing that `Fingerprint` looks at has changed."""
    # Each call of a graph checks again: all of its arguments and of torch's modes; of the algorithm's own attributes
    # types, numbers, texts, lengths, keys, functions and replaced methods, as far as the step has read them; of
    # networks and programs numbers, texts and functions. The compiler would check ten times as much, in memory that is
    # cold after an env step: some 50 us per gradient step. `Fingerprint` looks at the rest once per update.
    name, kind = guard.name, guard.guard_type
    if kind == "NOT_PRESENT_IN_GENERIC_DICT" and (isinstance(guard.value, nn.Module) or names_its_state(guard.value)):
        return False  # it looks for replaced methods
    if kind == _HOOKS_OF_BACKWARD or _OF_LIBRARIES.search(name):
        return False
    if name.startswith("G["):
        return kind in (*_CONSTANTS, *_FUNCTIONS)
    if kind in _CONSTANTS:
        return "._sizes[" not in name  # of an optimizer's parameters, which stay
    # `step` is the method that `with_code_of_its_own` closes over. Where a graph breaks, sources have other names.
    if name.startswith("step"):
        if _OF_NETWORKS.search(name):
            return kind in _FUNCTIONS
        return "__self__" in name and kind not in _NOT_LOOKED_AT
    return True


def compiler_options(device: torch.device, is_one_graph: bool) -> dict[str, Any]:
    """Return the options for a gradient step that changes an algorithm."""
    is_tested = torch.__version__.startswith(TESTED)
    return {
        # A wrong answer would be a stale graph.
        **({"guard_filter_fn": lambda guards: list(map(can_fail, guards))} if is_tested else {}),
        **OPTIONS,
        # What calls the loops and matrix products is C++ too: a fifth of a small network's step was Python. But not
        # around an optimizer of the user's, whose operators are called from there by detours, with warnings.
        "cpp_wrapper": device.type == "cpu" and is_one_graph,
    }


def can_trace_gradients() -> bool:
    """Return whether this version of torch can compile gradients."""
    import torch._dynamo  # seconds of imports, and most runs need none of it

    return hasattr(torch._dynamo.config, "trace_autograd_ops")


def tracing_gradients() -> contextlib.AbstractContextManager[Any]:
    """Return a context in which the compiler traces `torch.autograd.grad`, which it does not by default."""
    context: contextlib.AbstractContextManager[Any] = torch._dynamo.config.patch(trace_autograd_ops=True)
    return context


def with_code_of_its_own(step: Callable[..., Any]) -> Callable[..., Any]:
    """Return the same function as one that the compiler has not seen."""
    # It keeps its graphs by code object, and few of them: the ninth algorithm of a process would run uncompiled. It
    # remembers sizes by the name of a function: an earlier algorithm's sizes would make it expect others here.

    def compiled_step(state: str, *args: Any) -> Any:
        return step(*args) if state else None  # a graph that looks at the state is compiled again for another one

    compiled_step.__code__ = compiled_step.__code__.replace(co_name=f"compiled_step_{next(_NUMBERS)}")
    return compiled_step


def compilers_reason(error: Exception) -> str | None:
    """Return the first line of a compiler's error, or of its cause if that is known; None if the function failed."""
    is_of_compiler = type(error).__module__.startswith(("torch._dynamo", "torch._inductor"))
    return str(getattr(error, "inner_exception", error)).strip().partition("\n")[0] if is_of_compiler else None
