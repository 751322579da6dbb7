"""Each argument has its rule: a bad value is named with its class, its field, the rule, the value and its type."""

import math
import re
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

# The class, arguments that it needs, the field, its rule, and the bad values that this field accepts.
FIELDS: list[tuple[Any, dict[str, Any], str, str, list[Any]]] = [
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
    (rl.VideoRecorder, {"folder": "videos"}, "folder", "must be a path", [""]),
    (rl.VideoRecorder, {"folder": "videos"}, "every", EVERY, []),
    (rl.VideoRecorder, {"folder": "videos"}, "env", "must be a gymnasium id or a factory of envs or None", [None]),
    (rl.VideoRecorder, {"folder": "videos"}, "num_episodes", POSITIVE, []),
    (rl.VideoRecorder, {"folder": "videos"}, "fps", "must be a positive finite number or None", [None]),
    (rl.VideoRecorder, {"folder": "videos"}, "max_episode_steps", "must be a positive integer or None", [None]),
    (rl.VideoRecorder, {"folder": "videos"}, "seed", SEED, [0, None]),
    (rl.CheckpointParams, {"folder": "runs"}, "folder", "must be the path of a folder", []),
    (rl.CheckpointParams, {"folder": "runs"}, "every", "must be a positive integer, or an Every", []),
    (rl.CheckpointParams, {"folder": "runs"}, "keep_last", "must be a positive integer or None", [None]),
    (rl.CheckpointParams, {"folder": "runs"}, "keep_best", "must be a non-negative integer", [0]),
    (rl.CheckpointParams, {"folder": "runs"}, "resume", 'must be "auto", "never", or the path of a checkpoint', []),
    (rl.CheckpointParams, {"folder": "runs"}, "signals", FLAG, [True]),
    (rl.CheckpointParams, {"folder": "runs"}, "on_save_error", "must be one of 'raise', 'warn'", []),
    (rl.CheckpointParams, {"folder": "runs"}, "record_episodes", FLAG, [True]),
    (rl.PrecisionParams, {}, "tf32", "must be True or False or None", [None, True]),
    (rl.RuntimeParams, {}, "deterministic", FLAG, [True]),
    (rl.RuntimeParams, {}, "detect_anomaly", FLAG, [True]),
    (rl.RuntimeParams, {}, "profiler", "must be a ProfilerParams or None", [None]),
    (rl.ProfilerParams, {}, "folder", "must be ", []),
    (rl.ProfilerParams, {}, "wait", "must be a non-negative integer", [0]),
    (rl.ProfilerParams, {}, "warmup", POSITIVE, []),
    (rl.ProfilerParams, {}, "active", POSITIVE, []),
    *((rl.ConsoleLogger, {}, field, POSITIVE, []) for field in ("training_interval", "test_interval")),
    (rl.ConsoleLogger, {}, "update_interval", "must be a positive integer or None", [None]),
    (rl.ConsoleLogger, {}, "strict", FLAG, [True]),
]  # fmt: skip


@pytest.mark.parametrize(("cls", "needed", "field", "rule", "accepted"), FIELDS)
def test_a_bad_value_is_refused_by_name(
    cls: Any, needed: dict[str, Any], field: str, rule: str, accepted: list[Any]
) -> None:
    for value in BAD_VALUES:
        if repr(value) not in map(repr, accepted):  # by repr, because True == 1 and nan != nan
            found = re.escape(f"; got {value!r} ({type(value).__name__})")
            with pytest.raises(ParamsError, match=rf"^{cls.__name__}\.{field}: {rule}.*{found}"):
                cls(**(needed | {field: value}))
