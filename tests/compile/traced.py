"""A compiler that traces as ever, and runs what it has traced operation by operation: made in a tenth of the time."""

from collections.abc import Callable, Sequence
from typing import Any

import pytest
import torch
from torch import Tensor, fx

from rltrainer.execution.cpu_loop import SPAN


@pytest.fixture
def _traced_only(monkeypatch: pytest.MonkeyPatch) -> None:
    """Run graphs and loops as they were traced, without roundings of their own."""
    monkeypatch.setattr("torch._inductor.compile_fx.compile_fx", as_traced)


def as_traced(graph: fx.GraphModule, inputs: Sequence[Any], **settings: Any) -> Callable[..., Any]:
    """Return a graph, or if it is a step of a loop the loop over its span; as `compile_fx` does."""
    if "inner_compile" not in settings:
        return graph
    (place,) = (i for i, x in enumerate(inputs) if x.dtype is SPAN)

    def loop(*args: Tensor) -> list[Tensor]:
        first, end = args[place].tolist()
        spans = (torch.tensor([index, end], dtype=SPAN) for index in range(first, end))
        results = [graph(*args[:place], span, *args[place + 1 :]) for span in spans]
        return [torch.stack(x).sum(0) for x in zip(*results, strict=True)]

    return loop
