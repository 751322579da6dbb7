"""Each argument of each hook has its rule: a bad value is named with its class, its field and the rule."""

import math
from typing import Any

import pytest

import rltrainer as rl
from rltrainer.errors import ParamsError
from tests.fakes import CountingEnv

BAD_VALUES = [-1, 0, math.inf, math.nan, "", None, True, []]
POSITIVE = "must be a positive integer"
EVERY = r"must be a positive integer.* or an Every"
SEED = "must be a non-negative integer or None"
FLAG = "must be True or False"
NAMES = "must be a sequence of names or None"

# The hook, arguments that it needs, the field, its rule, and the bad values that this field accepts.
TABLE: list[tuple[type[rl.TrainerHook], dict[str, Any], str, str, list[Any]]] = [
    (rl.BatchRecorder, {"folder": "batches"}, "folder", "must be a path", [""]),
    (rl.BatchRecorder, {"folder": "batches"}, "every", EVERY, []),
    (rl.BatchRecorder, {"folder": "batches"}, "max_files", POSITIVE, []),
    (rl.BatchSubSampler, {"batch_size": 4, "sub_traj_len": 2}, "batch_size", POSITIVE, []),
    (rl.BatchSubSampler, {"batch_size": 4, "sub_traj_len": 2}, "sub_traj_len", POSITIVE, []),
    (rl.BatchSubSampler, {"batch_size": 4, "sub_traj_len": 2}, "seed", SEED, [0, None]),
    (rl.ClearCudaCache, {}, "every", EVERY, []),
    (rl.EarlyStopping, {}, "metric", "must be a text that is not empty", []),
    (rl.EarlyStopping, {}, "mode", "must be one of 'max', 'min'", []),
    (rl.EarlyStopping, {}, "patience", POSITIVE, []),
    (rl.EarlyStopping, {}, "min_delta", "must be a non-negative finite number", [0]),
    (rl.EarlyStopping, {}, "min_looks", "must be a non-negative integer", [0]),
    (rl.EarlyStopping, {}, "every", EVERY, [None]),
    (rl.Evaluate, {"envs": CountingEnv}, "envs", "must be a vector env, a gymnasium id or a factory of envs", []),
    (rl.Evaluate, {"envs": CountingEnv}, "every", EVERY, []),
    (rl.Evaluate, {"envs": CountingEnv}, "num_episodes", POSITIVE, []),
    (rl.Evaluate, {"envs": CountingEnv}, "name", "must be a name of letters, digits and _ other than training, ", []),
    (rl.Evaluate, {"envs": CountingEnv}, "save_best_fn", r"must be a callable \(algorithm\) or None", [None]),
    (rl.Evaluate, {"envs": CountingEnv}, "info_keys", "must be a sequence of keys, such as ", [[]]),
    (rl.Evaluate, {"envs": CountingEnv}, "seed", SEED, [0, None]),
    (rl.FunctionHook, {"point": "setup", "fn": print}, "point", "must be a point of a hook: setup, ", []),
    (rl.FunctionHook, {"point": "batch_process", "fn": print}, "fn",
     r"must be a callable \(ctx, batch\), as batch_process is given", []),
    (rl.FunctionHook, {"point": "setup", "fn": print}, "name", "must be a text that is not empty or None", [None]),
    (rl.LogScalar, {"key": "reward"}, "key", "must be a text that is not empty", []),
    (rl.LogScalar, {"key": "reward"}, "reduction", "must be one of 'mean', 'sum', 'min', 'max'", []),
    (rl.LogScalar, {"key": "reward"}, "every", EVERY, [None]),
    (rl.LogScalar, {"key": "reward"}, "std", FLAG, [True]),
    (rl.LogScalar, {"key": "reward"}, "log_pbar", FLAG, [True]),
    (rl.LogScalar, {"key": "reward"}, "log_as", "must be a text that is not empty or None", [None]),
    (rl.LogTiming, {}, "every", EVERY, []),
    (rl.MaxEpisodes, {}, "num_episodes", POSITIVE, []),
    (rl.RewardNormalizer, {}, "decay", r"must be a number in \(0, 1\]", []),
    (rl.RewardNormalizer, {}, "scale", "must be a positive finite number", []),
    (rl.RewardNormalizer, {}, "eps", "must be a positive finite number", []),
    (rl.SelectKeys, {}, "obs", NAMES, [None, []]),
    (rl.SelectKeys, {}, "extra", NAMES, [None, []]),
    (rl.SystemStats, {}, "cpu_every", "must be an Every in seconds", []),
    (rl.SystemStats, {}, "gpu_every", "must be an Every in seconds", []),
    (rl.SystemStats, {}, "cpu_once", FLAG, [True]),
    (rl.SystemStats, {}, "gpu_once", FLAG, [True]),
]  # fmt: skip


@pytest.mark.parametrize(("cls", "needed", "field", "rule", "accepted"), TABLE)
def test_a_bad_value(cls: Any, needed: dict[str, Any], field: str, rule: str, accepted: list[Any]) -> None:
    for value in BAD_VALUES:
        if not any(value is each or (value == each and type(value) is type(each)) for each in accepted):
            with pytest.raises(ParamsError, match=rf"^{cls.__name__}\.{field}: {rule}.*; got "):
                cls(**(needed | {field: value}))


@pytest.mark.parametrize(
    ("make", "text"),
    [
        (lambda: rl.BatchSubSampler(4, 3), r"BatchSubSampler.batch_size: must be a multiple of sub_traj_len, 3; got 4"),
        (lambda: rl.Evaluate(CountingEnv, name="test"), "Evaluate.name: must be a name of letters"),
        (lambda: rl.FunctionHook("batch_process", lambda ctx: None), r"FunctionHook.fn: must be a callable \(ctx, bat"),
        (lambda: rl.FunctionHook("post_step", print), r"setup, .*; got 'post_step' .*Did you mean 'post_steps'\?"),
        (lambda: rl.SelectKeys("position"), r"SelectKeys.obs: must be a sequence of names or None; got 'position'"),
        (lambda: rl.SelectKeys(extra=[1]), r"SelectKeys.extra: must be a sequence of names or None; got \[1\]"),
        (lambda: rl.SelectKeys(), "SelectKeys.obs: must be given, or extra; got None"),
        (lambda: rl.SelectKeys(obs=[]), r"SelectKeys.obs: must name a key; got \[\] \(list\). None keeps all."),
        (lambda: rl.SystemStats(rl.Every(3, "epoch")), "SystemStats.cpu_every: must be an Every in seconds; got Every"),
    ],
)  # fmt: skip
def test_more_bad_values(make: Any, text: str) -> None:
    with pytest.raises(ParamsError, match=text):
        make()


def test_an_int_is_in_training_steps() -> None:
    hooks = [rl.Evaluate(CountingEnv, 3), rl.EarlyStopping(every=3), rl.BatchRecorder("batches", 3)]
    hooks += [rl.ClearCudaCache(every=3), rl.LogTiming(every=3), rl.LogScalar("reward", every=3)]
    assert [hook.every for hook in hooks] == 6 * [rl.Every(3, "training_step")]
    assert [rl.Evaluate(CountingEnv).every, rl.EarlyStopping("loss").every] == 2 * [rl.Every(1, "epoch")]
    assert rl.LogTiming(every=rl.Every(2, "second")).every == rl.Every(2, "second")
