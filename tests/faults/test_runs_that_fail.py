"""Whatever ends a run: the caller gets that very exception, envs are closed, files hold what was logged."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import rltrainer as rl
from rltrainer.errors import EnvError
from rltrainer.hooks.hook import POINTS
from tests.fakes import CountingEnv, tiny_actor_critic

KINDS = [RuntimeError, KeyboardInterrupt, SystemExit, TimeoutError]
CALLBACKS = ["training_fn", "test_fn", "stop_fn", "compute_score_fn", "save_best_fn", "save_checkpoint_fn"]
SITES = [*CALLBACKS, *[f"hook.{point}" for point in POINTS if point != "shutdown"], "logger", "update", "env", "policy"]


class Fault:
    """Raises an error at its n-th call."""

    def __init__(self, error: BaseException, n: int) -> None:
        self.error, self.n, self.num_calls = error, n, 0

    def __call__(self, *args: Any, **kwargs: Any) -> None:
        self.num_calls += 1
        if self.num_calls >= self.n:
            raise self.error


class ClosableEnv(CountingEnv):
    """Says whether it was closed."""

    num_open = 0
    fault: Callable[..., None] = staticmethod(lambda *args: None)

    def __init__(self) -> None:
        super().__init__()
        type(self).num_open += 1

    def step(self, action: Any) -> Any:
        self.fault()
        return super().step(action)

    def close(self) -> None:
        type(self).num_open -= 1


class Watcher(rl.TrainerHook):
    """Notes when it is set up and shut down."""

    def __init__(self, name: str) -> None:
        self.name, self.calls = name, ""

    def setup(self, ctx: Any) -> None:
        self.calls += "s"

    def shutdown(self, ctx: Any) -> None:
        self.calls += "e"


def run_that_fails(site: str, error: BaseException, tmp_path: Path, logger: Any = None) -> tuple[list[Watcher], Any]:
    """Train until `site` raises; return the hooks before and after it, and the file of the log."""
    fault, options = Fault(error, {"hook.setup": 1, "env": 100, "policy": 60}.get(site, 3)), {}
    ClosableEnv.num_open = 0
    envs, test_envs = (rl.make_vec(ClosableEnv, 2, backend="sync", seed=1) for _ in range(2))
    algorithm = rl.PPO(tiny_actor_critic(envs), rl.PPOParams())
    watchers = [Watcher("first"), Watcher("last")]
    hooks: list[Any] = list(watchers)
    log = logger or rl.CSVLogger(tmp_path / "log.csv", training_interval=1, strict=True)
    if site in CALLBACKS:
        scores = iter(range(100))
        results = {"stop_fn": False, "compute_score_fn": 1.0, "save_checkpoint_fn": "there"}
        options["compute_score_fn"] = lambda stats: float(next(scores))  # each is the best
        options[site] = lambda *args: (fault(), results.get(site))[1]
    elif site.startswith("hook."):
        hooks.insert(1, rl.FunctionHook(site.removeprefix("hook."), lambda *args: fault()))
    elif site == "logger":
        log._write = lambda *args: fault()
    elif site == "update":
        step = algorithm.gradient_step
        algorithm.gradient_step = lambda batch: (fault(), step(batch))[1]  # type: ignore[method-assign]  # on purpose
    elif site == "env":
        ClosableEnv.fault = staticmethod(fault)
    elif site == "policy":
        decide = algorithm.policy.decide
        algorithm.policy.decide = lambda *args: (fault(), decide(*args))[1]  # type: ignore[method-assign]  # on purpose
    try:
        rl.OnPolicyTrainer(
            algorithm,
            rl.OnPolicyTrainerParams(
                training_collector=rl.Collector(algorithm.policy, envs),
                test_collector=rl.Collector(algorithm.policy, test_envs),
                max_epochs=5, epoch_num_steps=40, collection_step_num_env_steps=20, batch_size=10, logger=log,
                hooks=hooks, verbose=False, show_progress=False, seed=1, runtime=rl.RuntimeParams(compile=False),
                **options,
            ),
        ).run()  # fmt: skip
    finally:
        ClosableEnv.fault = staticmethod(lambda *args: None)
    return watchers, log


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("site", SITES)
def test_what_ends_a_run_reaches_the_caller(site: str, kind: type[BaseException], tmp_path: Path) -> None:
    error = kind("the user's own")
    watchers: list[Watcher] = []
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Watcher, "setup", lambda self, ctx: (watchers.append(self), setattr(self, "calls", "s"))[1])
        with pytest.raises((kind, EnvError)) as caught:
            run_that_fails(site, error, tmp_path)
    if site == "env" and isinstance(error, Exception | SystemExit):
        assert isinstance(caught.value, EnvError)
        assert caught.value.__cause__ is error
    else:
        assert caught.value is error
    assert ClosableEnv.num_open == 0
    assert [watcher.calls for watcher in watchers] == ["se"] * (1 if site == "hook.setup" else 2)
    if site not in ("logger", "hook.setup", "test_fn"):
        assert (tmp_path / "log.csv").read_bytes().endswith(b"\n")


class Fails(rl.TrainerHook):
    """Raises when it is shut down."""

    def __init__(self, name: str) -> None:
        self.name = name

    def shutdown(self, ctx: Any) -> None:
        raise ValueError(f"{self.name} cannot end")


class Broken(rl.ConsoleLogger):
    """Cannot flush, nor write."""

    def _write(self, kind: Any, values: Any, step: int) -> None:
        return

    def _flush(self) -> None:
        raise OSError("disk full")


def trainer_with(**options: Any) -> tuple[rl.OnPolicyTrainer, Any]:
    envs = rl.make_vec(CountingEnv, 2, backend="sync", seed=1)
    algorithm = rl.PPO(tiny_actor_critic(envs), rl.PPOParams())
    params = rl.OnPolicyTrainerParams(
        training_collector=rl.Collector(algorithm.policy, envs), max_epochs=1, epoch_num_steps=20,
        collection_step_num_env_steps=20, batch_size=10, verbose=False, show_progress=False,
        runtime=rl.RuntimeParams(compile=False), **options,
    )  # fmt: skip
    return rl.OnPolicyTrainer(algorithm, params), envs


def test_what_is_raised_on_the_way_out_is_noted_at_the_users_exception() -> None:
    mine = ValueError("mine")

    def fail(*args: Any) -> None:
        raise mine

    trainer, envs = trainer_with(logger=Broken(strict=True), hooks=[Fails("a"), Fails("b")], training_fn=fail)
    with pytest.raises(ValueError, match="^mine") as caught:
        trainer.run()
    assert caught.value is mine
    assert caught.value.__notes__ == [
        "OnPolicyTrainerParams.training_fn raised this.",
        "While this was on its way, ValueError was raised: a cannot end",
        "OnPolicyTrainerParams.hooks: Fails.shutdown raised this.",
        "While this was on its way, ValueError was raised: b cannot end",
        "OnPolicyTrainerParams.hooks: Fails.shutdown raised this.",
        "While this was on its way, OSError was raised: disk full",
    ]
    assert envs.closed


def test_what_is_raised_at_the_end_of_a_run_that_went_well() -> None:
    trainer, envs = trainer_with(hooks=[Fails("a"), Fails("b")])
    with pytest.raises(ValueError, match="a cannot end") as caught:
        trainer.run()
    assert caught.value.__notes__[-2] == "While this was on its way, ValueError was raised: b cannot end"
    assert envs.closed


def test_a_logger_that_is_not_strict_cannot_kill_training() -> None:
    class Bad(rl.ConsoleLogger):
        def _write(self, kind: Any, values: Any, step: int) -> None:
            raise OSError("disk full")

        _flush = _close = _write_params = _take_new_place = _write  # type: ignore[assignment]  # all of them

    logger = Bad()
    trainer, _ = trainer_with(logger=logger)
    with pytest.warns(RuntimeWarning, match="disk full|takes 4|missing") as warned:
        trainer.run()
    assert len(warned) == 1
    assert logger.num_dropped >= 2


def test_several_loggers_are_all_flushed_whatever_one_raises(tmp_path: Path) -> None:
    flushed = []

    class Noting(rl.ConsoleLogger):
        def _flush(self) -> None:
            flushed.append(1)

    logger = rl.MultiLogger(Broken(strict=True), Noting())
    with pytest.raises(OSError, match="disk full"):
        logger.flush()
    assert flushed == [1]
