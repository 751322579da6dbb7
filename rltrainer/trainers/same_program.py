"""The comparison of the programs of a run's processes, before any of them trains: one that differs is named."""

import sys
from collections.abc import Iterator
from typing import Any

import gymnasium as gym
from torch import nn

from rltrainer.algorithms import Algorithm
from rltrainer.errors import ParamsError, readable, without_addresses
from rltrainer.hooks import HookRunner
from rltrainer.ranks.ranks import Ranks
from rltrainer.schedules import ScheduledValue, value_at
from rltrainer.state.plain import to_plain
from rltrainer.trainers.run_checkpoints import settings_of
from rltrainer.trainers.trainer_params import TrainerParams
from rltrainer.updates.optimizer import Optimizer
from rltrainer.updates.torch_optimizer import TorchOptimizer

PROGRESS = [k / 8 for k in range(9)]
"""Points of a run at which schedules are compared."""


def require_same_program(processes: Ranks, algorithm: Algorithm, params: TrainerParams) -> None:
    """Compare this process's program with all others'; the first rank alone follows what is not compared.

    Raises:
        ParamsError: a setting, a network, a space or a version differs.
    """
    with processes.reporting():
        first, *others = processes.from_all(dict(_description(algorithm, params)))
        for rank, other in enumerate(others, 1):
            for field in first | other:
                x, y = first.get(field, "nothing"), other.get(field, "nothing")
                if x != y and repr(x) != repr(y):  # NaN equals itself as text
                    found = f"{readable(x)} in rank 0 and {readable(y)} in rank {rank}"
                    hint = "Start one program with the same arguments everywhere; see docs/guides/scaling.md."
                    raise ParamsError(f"{field}: must be the same in all processes of a run; got {found}. {hint}")


def _description(algorithm: Algorithm, params: TrainerParams) -> Iterator[tuple[str, Any]]:
    """Yield by name what must not differ, as plain data."""
    owner, policy = type(params).__name__, algorithm.policy
    yield from ((f"version of {name}", str(sys.modules[name].__version__)) for name in ("rltrainer", "torch"))
    yield "algorithm", type(algorithm).__name__
    settings = sorted(settings_of(params, algorithm).items())
    # These may differ on a resume only.
    more = {"max_epochs": params.max_epochs, "checkpoint": params.checkpoint}
    more |= {f"runtime.{name}": getattr(params.runtime, name) for name in ("parallel", "detect_anomaly")}
    settings += [(f"{owner}.{name}", to_plain(value)) for name, value in more.items()]
    for name, value in [*settings, ("policy.exploration", to_plain(policy.exploration))]:
        yield from _by_field(name, value)
    yield "policy.observation_space", str(policy.observation_space)
    yield "policy.action_space", str(policy.action_space)
    for name, collector in params.collectors().items():
        spec = getattr(getattr(collector, "envs", None), "spec", None)
        yield f"{owner}.{name}.envs", f"{collector.num_envs} of {getattr(spec, 'id', None)}"
    hooks, buffer = HookRunner(owner, params.hooks).changing(), getattr(params, "buffer", None)
    yield f"{owner}.hooks", list(hooks)
    yield f"len({owner}.buffer)", None if buffer is None else len(buffer)
    live = {f"hooks: {name}": hook for name, hook in hooks.items()}
    for name, thing in (live | {"buffer": buffer, "buffer.sampler": getattr(buffer, "sampler", None)}).items():
        yield f"{owner}.{name}", type(thing).__name__
        for key, value in getattr(thing, "__dict__", {}).items():
            if not key.startswith("_") and not isinstance(value, gym.Space):
                yield f"{owner}.{name}.{key}", to_plain(value)
    values = getattr(policy.exploration, "settings", None)
    yield "policy.exploration over progress", values and [to_plain(dict(values(x))) for x in PROGRESS]
    seen: set[nn.Module] = set()
    for name, part in algorithm.attributes().items():
        if isinstance(part, Optimizer | ScheduledValue):
            yield f"{name} over progress", [value_at(part.schedule, progress) for progress in PROGRESS]
        if isinstance(part, Optimizer) and isinstance(part.method, TorchOptimizer):
            yield name, " ".join(repr(part.method.optimizer).split())
        for path, module in part.named_modules(seen, name) if isinstance(part, nn.Module) else ():
            yield path, without_addresses(f"{type(module).__name__}({module.extra_repr()})")
            for key, p in module.named_parameters(path, recurse=False):
                yield key, f"{p.dtype} {list(p.shape)}{'' if p.requires_grad else ', frozen'}"


def _by_field(name: str, plain: Any) -> Iterator[tuple[str, Any]]:
    if isinstance(plain, dict) and "params" in plain:
        for field, value in plain["fields"].items():
            yield from _by_field(f"{name}.{field}", value)
    else:
        yield name, plain
