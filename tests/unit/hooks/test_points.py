"""The points of hooks: their order, what they are given, what they may return, and what they cost."""

import dataclasses
import json
from types import SimpleNamespace
from typing import Any

import pytest
import torch

import rltrainer as rl
from rltrainer.errors import ParamsError
from rltrainer.hooks.hook import POINTS
from tests.resume.runs import RUNS, digest
from tests.unit.hooks.fake_run import overriding, trained, with_hooks

EVERY_STEP = [
    "batch_process", "pre_steps_log", "pre_optim_steps",
    *(2 * ["process_optim_batch", "post_loss", "optimizer", "post_optim", "post_optim_log"]),
    "post_steps", "post_steps_log",
]  # fmt: skip


class Recording(rl.TrainerHook):
    """Notes each point under its own name, and changes nothing."""

    def __init__(self, calls: list[str], name: str | None = None) -> None:
        self.calls, self.name = calls, name


def note(point: str) -> Any:
    def noted(self: Recording, *args: Any) -> None:
        self.calls.append(point if self.name is None else f"{self.name}.{point}")

    return noted


for point in POINTS:
    setattr(Recording, point, note(point))


class Every(rl.TrainerHook):
    """Counts by itself, under a name that means an interval."""

    def __init__(self, every: Any) -> None:
        self.every = every


class Times(rl.TrainerHook):
    def __init__(self, factor: float, addend: float = 0.0) -> None:
        self.factor, self.addend = factor, addend

    def batch_process(self, ctx: rl.TrainerContext, batch: Any) -> Any:
        return dataclasses.replace(batch, reward=batch.reward * self.factor + self.addend)


class Rewards(rl.TrainerHook):
    def __init__(self) -> None:
        self.seen: list[float] = []

    def pre_steps_log(self, ctx: rl.TrainerContext, batch: Any) -> Any:
        self.seen.append(float(batch.reward.mean()))


def test_order_of_one_training_step_with_two_gradient_steps() -> None:
    calls: list[str] = []
    trainer = with_hooks(
        "a2c", Recording(calls), max_epochs=1, epoch_num_steps=10, batch_size=5, update_step_num_repetitions=1,
        test_collector=None,
    )  # fmt: skip
    trainer.run()
    assert trainer.gradient_step == 2
    assert calls == ["setup", *EVERY_STEP, "shutdown"]


def test_at_each_point_the_hooks_run_in_their_order() -> None:
    calls: list[str] = []
    a, b = Recording(calls, "A"), Recording(calls, "B")
    with_hooks("a2c", a, b, max_epochs=1).run()
    assert calls[::2] == [f"A.{call.partition('.')[2]}" for call in calls[1::2]]
    assert calls[1::2] == [f"B.{call.partition('.')[2]}" for call in calls[::2]]
    assert calls.count("A.test_log") == 2  # the initial test step's, and the epoch's


def test_points_of_several_losses_of_which_none_is_held_afterwards() -> None:
    seen, held = list[list[str]](), list[int]()
    note, count = lambda ctx, minibatch: seen.append([*ctx.losses]), lambda ctx: held.append(len(ctx.losses))
    with_hooks("sac", overriding(post_loss=note, post_steps=count), max_epochs=2, test_collector=None).run()
    assert seen[:4] == [["critic"], ["critic", "actor"], ["critic", "actor", "temperature"], ["critic"]]
    assert set(held) == {0}


@pytest.mark.parametrize(("swapped", "expected"), [(False, 7.0), (True, 8.0)])
@pytest.mark.parametrize("run", ["ppo", "sac", "offline_sac"])
def test_a_chain_of_hooks_changes_the_reward(run: str, swapped: bool, expected: float) -> None:
    """Reward 3: times 2, then plus 1, is 7; the other way round 8."""
    hooks, rewards = [Times(2.0), Times(1.0, 1.0)], Rewards()
    trainer = with_hooks(run, Times(0.0, 3.0), *(hooks[::-1] if swapped else hooks), rewards, max_epochs=2)
    algorithm, learned = trainer.algorithm, list[float]()
    method = "process" if run == "ppo" else "update"
    given = getattr(algorithm, method)
    setattr(algorithm, method, lambda batch: learned.append(float(batch.reward.mean())) or given(batch))
    trainer.run()
    assert set(rewards.seen) == {expected}
    if run == "sac":  # its batches hold sums of two steps' rewards
        assert trainer.buffer.sample(16, n_step=1).reward.unique().tolist() == [expected]
    else:
        assert set(learned) == {expected}


@pytest.mark.parametrize(("point", "found", "rule"), [
    ("batch_process", "text", r"must return a Rollout or None; got 'text' \(str\)"),
    ("pre_steps_log", 3, "must return a mapping from names to numbers, or None"),
    ("post_steps_log", {"a": "b"}, "must return a mapping from names to numbers, or None"),
    ("post_optim_log", {"a": torch.zeros(2)}, "must return a mapping from names to numbers, or None"),
    ("test_log", {1: 2.0}, "must return a mapping from names to numbers, or None"),
    ("post_steps", 1, "must return None"),
    ("pre_optim_steps", False, "must return None"),
    ("process_optim_batch", 1, "must return a OnPolicyBatch or None"),
    ("optimizer", {"critic": 1.0}, "must return a dict of the loss 'loss', a scalar with its graph, or None"),
    ("optimizer", {"loss": torch.zeros(())}, "must return a dict of the loss 'loss', a scalar with its graph"),
])  # fmt: skip
def test_each_point_says_what_it_must_return(point: str, found: Any, rule: str) -> None:
    hook = rl.TrainerHook()
    setattr(hook, point, lambda *args: found)
    with pytest.raises(TypeError, match=rf"OnPolicyTrainerParams.hooks.TrainerHook.{point}: {rule}"):
        with_hooks("a2c", hook).run()


@pytest.mark.parametrize("run", ["ppo", "sac", "offline_sac"])
@pytest.mark.parametrize("point", ["batch_process", "process_optim_batch"])
@pytest.mark.parametrize(("change", "problem"), [
    (lambda x: x[:-1], r"action has shape \(.*\), the first axes must be \(.*\)"),
    (lambda x: x.numpy(), "action is a ndarray, not a tensor"),
])  # fmt: skip
def test_what_does_not_fit_the_rest_of_a_batch_is_named(run: str, point: str, change: Any, problem: str) -> None:
    hook = rl.FunctionHook(point, lambda ctx, batch: dataclasses.replace(batch, action=change(batch.action)))
    with pytest.raises(TypeError, match=rf"hooks.FunctionHook.{point}: must return as much of everything; {problem}"):
        with_hooks(run, hook).run()


@pytest.mark.parametrize(
    ("point", "name", "kind"),
    [("post_steps_log", "return", "training"), ("post_optim_log", "loss", "update"), ("test_log", "score", "test")],
)
def test_numbers_of_the_run_are_not_mixed_with_a_hooks(point: str, name: str, kind: str, tmp_path: Any) -> None:
    hook = rl.FunctionHook(point, lambda *args: {name: 1000.0})
    rule = f"must log it under another name, as {kind} rows have one of their own"
    with pytest.raises(ParamsError, match=rf"TrainerParams.hooks: {rule}; got '{name}' \(str\)"):
        with_hooks("ppo", hook, logger=rl.JSONLinesLogger(tmp_path / "log")).run()


@pytest.mark.parametrize("values", [{"a": "b"}, {"a": torch.zeros(3)}, 3, {1: 2.0}])
def test_what_is_logged_are_numbers_whether_somebody_writes_them_or_not(values: Any) -> None:
    hook = rl.FunctionHook("post_steps", lambda ctx: ctx.log(values))
    with pytest.raises(TypeError, match=r"TrainerContext.log.values: must be a mapping from names to numbers; got "):
        with_hooks("ppo", hook).run()


def test_an_error_names_hook_and_point() -> None:
    class Failing(rl.TrainerHook):
        def post_optim(self, ctx: rl.TrainerContext) -> None:
            raise ZeroDivisionError

    calls: list[str] = []
    with pytest.raises(ZeroDivisionError) as raised:
        with_hooks("dqn", Failing(), Recording(calls)).run()
    assert raised.value.__notes__ == ["OffPolicyTrainerParams.hooks: Failing.post_optim raised this."]
    assert calls[-1] == "shutdown"


def test_all_hooks_are_shut_down_and_the_first_error_goes_on() -> None:
    calls: list[str] = []
    first, second = overriding(shutdown=lambda ctx: 1 / 0), overriding(shutdown=lambda ctx: calls.append("second"))
    with pytest.raises(ZeroDivisionError):
        with_hooks("ppo", first, second, max_epochs=1).run()
    assert calls == ["second"]


def test_only_hooks_whose_setup_was_called_are_shut_down() -> None:
    calls: list[str] = []
    failing = overriding(setup=lambda ctx: 1 / 0, shutdown=lambda ctx: calls.append("B.shutdown"))
    with pytest.raises(ZeroDivisionError):
        with_hooks("ppo", Recording(calls, "A"), failing, Recording(calls, "C")).run()
    assert calls == ["A.setup", "A.shutdown", "B.shutdown"]


def test_hooks_are_set_up_once_a_run_and_again_for_the_next() -> None:
    calls: list[str] = []
    trainer = with_hooks("ppo", Recording(calls), max_epochs=1)
    trainer.reset()
    trainer.execute_epoch()
    assert calls.count("setup") == 1
    trainer.run()
    trainer.run()
    assert [call for call in calls if call in ("setup", "shutdown")] == ["setup", "shutdown", "setup", "shutdown"]


def test_during_warm_up_the_points_of_updates_do_not_run() -> None:
    calls: list[str] = []
    with_hooks("dqn", Recording(calls), max_epochs=1, epoch_num_steps=10, warmup_num_env_steps=10).run()
    assert [call for call in calls if call != "test_log"] == [
        "setup", "batch_process", "pre_steps_log", "post_steps", "post_steps_log", "shutdown",
    ]  # fmt: skip


def test_a_stop_that_is_asked_for_comes_after_a_last_test_step() -> None:
    class Stopping(rl.TrainerHook):
        def post_steps(self, ctx: rl.TrainerContext) -> None:
            if ctx.training_step == 3:
                ctx.request_stop("enough")
                ctx.request_stop("too late")

    trainer = with_hooks("ppo", Stopping())
    info = trainer.run()
    assert info.stop_reason == "hook: enough"
    assert (info.epoch, info.env_step) == (2, 30)  # 10 of the second epoch's 20
    assert info.epochs[-1].test_stats is not None
    assert trainer.run().stop_reason == "hook: enough"  # another run, from its start


@pytest.mark.parametrize(
    ("unit", "n", "expected"), [("training_step", 2, [2, 4]), ("epoch", 1, [2, 4]), ("gradient_step", 4, [2, 4])]
)
def test_intervals_in_other_units(unit: Any, n: int, expected: list[int]) -> None:
    """Two epochs of two training steps, of two gradient steps each."""
    at: list[int] = []
    tests: list[int] = []
    every = rl.Every(n, unit)

    def post_steps(ctx: rl.TrainerContext) -> None:
        at.extend([ctx.training_step] * ctx.crossed(every))

    def test_log(ctx: rl.TrainerContext, stats: Any) -> None:
        tests.extend([ctx.training_step] * ctx.crossed(every))

    hook = overriding(post_steps=post_steps, test_log=test_log)
    with_hooks("a2c", hook, max_epochs=2, batch_size=5, update_step_num_repetitions=1).run()
    assert at == expected
    assert tests == [2, 4]


def test_an_interval_of_update_steps_in_a_test_step_begins_with_the_epochs_first_update() -> None:
    """Epochs of two training steps, of which one makes an update step, but for the first epoch: it is warm-up."""
    at: list[int] = []
    every = rl.Every(3, "update_step")
    hook = overriding(test_log=lambda ctx, stats: at.extend([ctx.update_step] * ctx.crossed(every)))
    with_hooks("dqn", hook, max_epochs=8, update_step_num_gradient_steps_per_sample=0.05).run()
    assert at == [3, 6]


def test_an_interval_of_seconds_misses_none(monkeypatch: pytest.MonkeyPatch) -> None:
    """A training step takes 0.3 s, what is between two of them 0.5 s, a test step 2 s."""
    now = [0.0]
    monkeypatch.setattr("rltrainer.hooks.hook.time", SimpleNamespace(monotonic=lambda: now[0]))
    at: list[float] = []
    tests: list[float] = []
    every = rl.Every(1, "second")

    def post_steps(ctx: rl.TrainerContext) -> None:
        now[0] += 0.3
        at.extend([round(now[0], 3)] * ctx.crossed(every))

    def test_log(ctx: rl.TrainerContext, stats: Any) -> None:
        now[0] += 2.0
        tests.extend([round(now[0], 3)] * ctx.crossed(every))

    def pass_time(*counts: int) -> str:
        now[0] += 0.5
        return ""

    hook = overriding(post_steps=post_steps, test_log=test_log)
    with_hooks("ppo", hook, max_epochs=2, save_checkpoint_fn=pass_time).run()
    assert at == [2.3, 5.9, 6.7]  # what ended before the steps that began at 2, 5.6 and 6.4
    assert tests == [5.6, 9.2]


def test_a_test_step_in_training_leaves_the_intervals_of_its_training_step() -> None:
    at: list[int] = []
    every = rl.Every(20, "env_step")
    hook = overriding(pre_steps_log=lambda ctx, batch: at.extend([ctx.env_step] * ctx.crossed(every)))
    trainer = with_hooks(
        "ppo", hook, max_epochs=1, epoch_num_steps=60, test_in_training=True, stop_fn=lambda score: score > 1
    )
    for env in trainer.params.test_collector.envs.envs:
        env.unwrapped.reward = 0.0  # training data are good enough at each step, test steps never
    trainer.run()
    assert at == [20, 40, 60]


def test_gradient_steps_are_counted_within_an_update() -> None:
    at: list[tuple[int, bool]] = []
    every = rl.Every(3, "gradient_step")
    hook = overriding(post_optim=lambda ctx: at.append((ctx.gradient_step, ctx.crossed(every))))
    with_hooks("ppo", hook, max_epochs=1, epoch_num_steps=10, batch_size=5, update_step_num_repetitions=2).run()
    assert at == [(1, False), (2, False), (3, True), (4, False)]


def test_a_minibatch_that_target_kl_leaves_out_is_no_gradient_step_for_hooks() -> None:
    calls: list[Any] = []
    hook = rl.TrainerHook()
    for point in ("process_optim_batch", "post_loss", "optimizer", "post_optim", "post_optim_log"):
        setattr(hook, point, lambda ctx, *args, point=point: calls.append((point, ctx.gradient_step)))
    trainer = with_hooks("ppo", hook, max_epochs=2, test_collector=None)
    # The second minibatch of each update is too far from what the first made of the policy.
    algorithm = rl.PPO(trainer.algorithm.policy, rl.PPOParams(target_kl=1e-9, lr=0.1, normalize_advantage=False))
    trainer = trainer.params.create_trainer(algorithm)
    trainer.run()
    expected: list[tuple[str, int]] = []
    for step in range(4):
        points = ("process_optim_batch", "post_loss", "optimizer")
        expected += [(point, step) for point in points]
        expected += [("post_optim", step + 1), ("post_optim_log", step + 1), ("process_optim_batch", step + 1)]
    assert (calls, trainer.gradient_step) == (expected, 4)


def test_a_minibatch_that_is_skipped_is_no_gradient_step_for_hooks() -> None:
    calls: list[tuple[str, int]] = []

    def process_optim_batch(ctx: rl.TrainerContext, minibatch: Any) -> Any:
        calls.append(("process_optim_batch", ctx.gradient_step))
        return dataclasses.replace(minibatch, return_=minibatch.return_ * (torch.nan if ctx.gradient_step == 1 else 1))

    hook = overriding(process_optim_batch=process_optim_batch)
    for point in ("post_loss", "optimizer", "post_optim", "post_optim_log"):
        setattr(hook, point, lambda ctx, *args, point=point: calls.append((point, ctx.gradient_step)))
    info = with_hooks(
        "a2c", hook, max_epochs=1, epoch_num_steps=10, batch_size=4, update_step_num_repetitions=1,
        update=rl.UpdateParams(nonfinite="skip"), test_collector=None,
    ).run()  # fmt: skip
    assert (info.gradient_step, info.skipped_steps) == (3, 1)
    of_step = [[point for point, number in calls if number == step] for step in range(4)]
    begins, ends = ["process_optim_batch", "post_loss", "optimizer"], ["post_optim", "post_optim_log"]
    assert of_step == [begins, [*ends, begins[0]], begins, ends]


def test_a_hooks_step_is_the_only_one() -> None:
    """A hook that takes the step itself, twice asked, does what no hook does."""
    hook = overriding(optimizer=lambda ctx, losses, step: step() or step())
    assert trained(with_hooks("ppo", hook)) == trained(with_hooks("ppo"))


def test_a_replaced_loss_is_the_one_that_is_minimised() -> None:
    hook = overriding(optimizer=lambda ctx, losses, step: {n: 0.0 * loss for n, loss in losses.items()})
    trainer = with_hooks("a2c", hook, max_epochs=1)
    before = {name: p.detach().clone() for name, p in trainer.algorithm.policy.named_parameters()}
    trainer.run()
    for name, parameter in trainer.algorithm.policy.named_parameters():
        assert torch.equal(parameter, before[name]), name


@pytest.mark.parametrize("run", RUNS)
def test_hooks_that_only_read_change_no_bit(run: str) -> None:
    assert trained(with_hooks(run, Recording([]), max_epochs=2)) == trained(with_hooks(run, max_epochs=2))


def test_numbers_reach_the_log_as_means(tmp_path: Any) -> None:
    logger = rl.JSONLinesLogger(tmp_path / "log")
    hook = overriding(
        post_optim_log=lambda ctx, minibatch: {"step": ctx.gradient_step, "log_pbar": True},
        post_steps_log=lambda ctx, batch: {"width": torch.tensor(float(ctx.training_step))},
        test_log=lambda ctx, stats: {"half": ctx.score / 2},
    )
    with_hooks("a2c", hook, max_epochs=1, batch_size=5, update_step_num_repetitions=1, logger=logger).run()
    rows = [*map(json.loads, (tmp_path / "log").read_text().splitlines())]
    assert [row["update/step"] for row in rows if "update/step" in row] == [1.5, 3.5]  # means of 1 and 2, 3 and 4
    test = [row for row in rows if "test/half" in row]
    assert [row["test/half"] for row in test] == [row["test/score"] / 2 for row in test]


@pytest.mark.parametrize(("run", "every"), [("offline_sac", rl.Every(10, "env_step")), ("ppo", 10)])
def test_an_interval_is_one_that_somebody_counts(run: str, every: Any) -> None:
    hook = rl.FunctionHook("post_steps", lambda ctx: print(ctx.crossed(every)))
    text = r"TrainerContext.crossed.every: must be an Every, in a unit that the trainer counts; got "
    with pytest.raises(ParamsError, match=text) as raised:
        with_hooks(run, hook).run()
    assert raised.value.__notes__[0].endswith("hooks: FunctionHook.post_steps raised this.")
    hook.every = rl.Every(10, "env_step")  # known before the run
    with pytest.raises(ParamsError, match="OfflineTrainerParams.hooks: must have no interval in env steps"):
        with_hooks("offline_sac", hook)


class WhenDue(rl.TrainerHook):
    """Notes the env steps at which an interval is due."""

    every = rl.Every(15, "env_step")

    def __init__(self) -> None:
        self.due: list[int] = []

    def post_steps(self, ctx: rl.TrainerContext) -> None:
        if ctx.crossed(self.every):
            self.due.append(ctx.env_step)


def test_two_trainers_at_once_share_nothing() -> None:
    """Epochs in turn lead to what each leads to alone."""

    def trained(*names: str) -> list[tuple[list[int], str]]:
        hooks = [WhenDue() for _ in names]
        trainers = [with_hooks(name, hook) for name, hook in zip(names, hooks, strict=True)]
        for _ in range(3):
            for trainer in trainers:
                trainer.execute_epoch()
        return [(hook.due, digest(trainer)) for hook, trainer in zip(hooks, trainers, strict=True)]

    assert trained("ppo", "dqn") == trained("ppo") + trained("dqn")
    assert trained("dqn", "dqn") == 2 * trained("dqn")
    assert len(trained("dqn")[0][0]) > 2
