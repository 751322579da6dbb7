"""Functions of tensors as compiled graphs of the CPU: called once, or for one index after another in compiled code."""

import contextlib
import functools
import itertools
import logging
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from rltrainer.updates.loop_graph import SPAN, compile_loop

LOOPS_TESTED = ("2.13.", "2.14.")
"""Versions of torch whose loops were tested; with another one, there are only those that are checked first."""
STEPS_PER_CALL = 256
"""Largest number of steps of a loop in one call: the process is deaf to Ctrl-C for so long."""
OPTIONS: dict[str, Any] = {
    # The sizes of arguments are guarded, and `CompiledStep.attach` looks at those of the algorithm's own tensors.
    "size_asserts": False,
    # By one exponential: a quarter of the time of the library's function, with an absolute error below 2e-7.
    "cpp.use_decompose_tanh": True,
}
"""Options of the compiler for all graphs."""
_OF_CPU = {**OPTIONS, "cpp_wrapper": True}
_NUMBERS = itertools.count()


class CompiledFunction:
    """A pure function of tensors as a compiled graph of the CPU; one that cannot be compiled runs as it is."""

    # The compiler looks at all that the function has read at each call, which costs little beside a whole rollout.

    def __init__(self, name: str, function: Callable[..., Any]) -> None:
        self._name, self._function = name, function
        compiled = with_code_of_its_own(function)
        self._compiled: Callable[..., Any] | None = torch.compile(compiled, dynamic=False, options=_OF_CPU)

    def __call__(self, *args: Any) -> Any:
        """Return the function's result."""
        if self._compiled is None:
            return self._function(*args)
        try:
            return self._compiled(self._name, *args)
        except Exception as error:
            if (reason := compilers_reason(error)) is None:
                raise
            self._compiled = None
            logging.getLogger("rltrainer").info("%s runs uncompiled: %s", self._name, reason)
            return self._function(*args)


class CompiledLoop:
    """Calls `function(index, *args)` for the indexes [1] of int64 below a number, in compiled code of the CPU.

    The function changes tensors in place, and no other objects; it returns a dict of scalar tensors, or an empty one.
    """

    def __init__(self, name: str, function: Callable[..., dict[str, Tensor]], is_checked: bool = False) -> None:
        def run(span: Tensor, *args: Any) -> dict[str, Tensor]:
            if torch.compiler.is_compiling():
                return function(span[:1].long(), *args)
            return self.uncompiled(span, *args)  # where the user has switched the compiler off

        self._name, self._function = name, function
        self._compiled: Callable[..., Any] | None = None
        if is_checked or loops_are_tested():
            step = with_code_of_its_own(run)
            self._compiled = torch.compile(step, fullgraph=True, dynamic=False, backend=compile_loop, options=_OF_CPU)

    def __call__(self, state: str, num_steps: int, *args: Any) -> dict[str, Tensor] | None:
        """Return the sums of what the function returns; None if it cannot be compiled, and nothing was done.

        For another `state` than before it is compiled again.
        """
        sums: dict[str, Tensor] = {}
        if num_steps > torch.iinfo(SPAN).max:
            return None
        for first in range(0, num_steps, STEPS_PER_CALL):
            if self._compiled is None:
                return None
            span = torch.tensor([first, min(first + STEPS_PER_CALL, num_steps)], dtype=SPAN)
            try:
                found = self._compiled(state, span, *args)
            except Exception as error:
                if first or (reason := compilers_reason(error)) is None:
                    raise
                self._compiled = None
                text = "%s runs step by step instead of as one compiled loop: %s"
                logging.getLogger("rltrainer").info(text, self._name, reason)
                return None
            sums = _add(sums, found) if first else found
        return sums

    def uncompiled(self, span: Tensor, *args: Any) -> dict[str, Tensor]:
        """Return the sums of what the function returns for the indexes from the first number of a span to the other."""
        found = [self._function(torch.tensor([index]), *args) for index in range(*span.tolist())]
        return functools.reduce(_add, found)


def loops_are_tested() -> bool:
    """Return whether loops were tested with this version of torch."""
    return torch.__version__.startswith(LOOPS_TESTED)


def _add(one: dict[str, Tensor], other: dict[str, Tensor]) -> dict[str, Tensor]:
    return {name: x + other[name] for name, x in one.items()}


def tracing_gradients() -> contextlib.AbstractContextManager[Any]:
    """Return a context in which the compiler traces `torch.autograd.grad`, which it does not by default."""
    context: contextlib.AbstractContextManager[Any] = torch._dynamo.config.patch(trace_autograd_ops=True)
    return context


def with_code_of_its_own(step: Callable[..., Any]) -> Callable[..., Any]:
    """Return the same function as one that the compiler has not seen."""
    # It keeps its graphs by code object, and few of them: the ninth algorithm of a process would run uncompiled. It
    # remembers sizes by the name of a function: those of an earlier algorithm would make it expect others here.

    def compiled_step(state: str, *args: Any) -> Any:
        return step(*args) if state else None  # a graph that looks at the state is compiled again for another one

    compiled_step.__code__ = compiled_step.__code__.replace(co_name=f"compiled_step_{next(_NUMBERS)}")
    return compiled_step


def compilers_reason(error: Exception) -> str | None:
    """Return the first line of a compiler's error, or of its cause if that is known; None if the function failed."""
    is_of_compiler = type(error).__module__.startswith(("torch._dynamo", "torch._inductor"))
    return str(getattr(error, "inner_exception", error)).strip().partition("\n")[0] if is_of_compiler else None
