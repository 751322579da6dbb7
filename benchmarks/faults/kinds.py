"""All kinds of faults."""

from benchmarks.faults.checkpoints import DAMAGES
from benchmarks.faults.disk_faults import Damage, DiskFault, DiskFull, DiskFullForAWhile, KillInSave
from benchmarks.faults.env_faults import (
    CrashLoop,
    EnvHangs,
    EnvRaises,
    HookRaises,
    ObservationIsNaN,
    Restart,
    RewardIsNaN,
    WorkerDies,
    WorkerIsKilled,
)
from benchmarks.faults.fault import Fault
from benchmarks.faults.process_faults import (
    Interrupt,
    Kill,
    SaveNow,
    SecondProcess,
    Terminate,
    TwoInterrupts,
    TwoTerminates,
)


def _damages() -> list[type[Fault]]:
    return [type("Damage", (Damage,), {"name": f"newest checkpoint: {kind}", "kind": kind}) for kind in DAMAGES]


KINDS: list[type[Fault]] = [
    EnvRaises, WorkerDies, WorkerIsKilled, EnvHangs, RewardIsNaN, ObservationIsNaN, HookRaises, Terminate, Interrupt,
    TwoTerminates, TwoInterrupts, SaveNow, Kill, KillInSave, DiskFault, DiskFull, DiskFullForAWhile, *_damages(),
    SecondProcess, Restart, CrashLoop,
]  # fmt: skip
