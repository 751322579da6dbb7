"""Each argument has its rule: a bad value is named with its class, its field, the rule, the value and its type."""

import dataclasses
import math
import re
from typing import Any

import pytest

import rltrainer as rl
from rltrainer.errors import ParamsError
from tests.fakes import CountingEnv, counting_envs, replay_of, tiny_actor_critic
from tests.unit.algorithms.test_params import CLASSES

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
    *((cls, {"start": 1.0}, field, "must be a finite number", [-1, 0])
      for cls in (rl.LinearSchedule, rl.CosineSchedule) for field in ("start", "end")),
    *((cls, {"start": 1.0}, "until", r"must be (a finite number|in \(0, 1\])", [])
      for cls in (rl.LinearSchedule, rl.CosineSchedule)),
    (rl.Every, {"n": 1, "unit": "epoch"}, "n", "must be a positive number", []),
    (rl.Every, {"n": 1, "unit": "epoch"}, "unit", r"must be one of \('env_step', .*'second'\)", []),
    *((rl.ConsoleLogger, {}, field, POSITIVE, []) for field in ("training_interval", "test_interval")),
    (rl.ConsoleLogger, {}, "update_interval", "must be a positive integer or None", [None]),
    (rl.ConsoleLogger, {}, "strict", FLAG, [True]),
]  # fmt: skip


def refuses_bad_values(cls: Any, needed: dict[str, Any], field: str, rule: str, accepted: list[Any]) -> None:
    for value in BAD_VALUES:
        if repr(value) not in map(repr, accepted):  # by repr, because True == 1 and nan != nan
            found = re.escape(f"; got {value!r} ({type(value).__name__})")
            with pytest.raises(ParamsError, match=rf"^{cls.__name__}\.{field}: {rule}.*{found}"):
                cls(**(needed | {field: value}))


@pytest.mark.parametrize(("cls", "needed", "field", "rule", "accepted"), FIELDS)
def test_a_bad_value_is_refused_by_name(
    cls: Any, needed: dict[str, Any], field: str, rule: str, accepted: list[Any]
) -> None:
    refuses_bad_values(cls, needed, field, rule, accepted)


envs = counting_envs()
policy = tiny_actor_critic(envs)
ONLINE = {"training_collector": rl.Collector(policy, envs), "test_collector": rl.Collector(policy, counting_envs())}
REPLAY = rl.Collector(policy, envs, replay_of(envs, 10))
REPLAY.collect(num_steps=10)
PARAMS: dict[Any, dict[str, Any]] = {
    rl.OnPolicyTrainerParams: ONLINE,
    rl.OffPolicyTrainerParams: ONLINE | {"training_collector": REPLAY},
    rl.OfflineTrainerParams: {"buffer": REPLAY.buffer, "test_collector": rl.Collector(policy, counting_envs())},
    **{cls: {} for cls in (*CLASSES, rl.UpdateParams, rl.PrecisionParams, rl.RuntimeParams, rl.ProfilerParams)},
}  # fmt: skip
"""Params, each field of which has a rule, and the arguments that they need."""
ACCEPTED: dict[str, list[Any]] = {
    "resume_from_log": [True], "verbose": [True], "show_progress": [True], "test_in_training": [True],
    "initial_test": [True], "seed": [0, None], "warmup_num_env_steps": [0],
    "initial_statistics_num_env_steps": [0],
    "test_collector": [None], "training_fn": [None], "test_fn": [None], "stop_fn": [None], "compute_score_fn": [None],
    "save_best_fn": [None], "save_checkpoint_fn": [None], "multi_agent_return_reduction": [None], "logger": [None],
    "collection_step_num_env_steps": [None], "collection_step_num_episodes": [None], "hooks": [[]],
    "checkpoint": [None], "run_folder": [None],
    "compile": [True], "cuda_graph": [True], "num_threads": [None], "parallel": [None], "deterministic": [True],
    "loop": [True], "overlap": [True], "detect_anomaly": [True], "profiler": [None], "wait": [0],
    # of algorithms
    "gamma": [0], "gae_lambda": [0], "value_coef": [0], "entropy_coef": [0], "epsilon": [0], "tau": [0],
    "td_lambda": [0], "exploration_noise": [0], "target_noise": [0], "target_noise_clip": [0], "expectile": [0],
    "target_entropy": [-1, 0, None], "normalize_advantage": [True], "max_target_backup": [True],
    "normalize_q": [True],
    "damping": [0], "line_search_shrink": [0], "standardize_return": [True],
    "actor_bc_coef": [0], "critic_bc_coef": [0],
    "learn_temperature": [True], "entropy_in_target": [True], "double": [True],
    "max_grad_norm": [None], "optimizer": [None], "value_clip": [None], "target_kl": [None], "desired_kl": [None],
    "symmetry": [None],
    "actor_lr": [None], "critic_lr": [None], "value_lr": [None], "obs_std_eps": [0], "num_dropped": [0],
    "huber_delta": [None], "max_grad_value": [None], "grad_norm_type": [math.inf], "balance_grad_norms": [True],
    "amp": [None], "tf32": [None, True], "weight_decay": [0],
}  # fmt: skip
"""What a field of this name accepts among `BAD_VALUES`."""


@pytest.mark.parametrize(("cls", "field"), [(cls, field.name) for cls in PARAMS for field in dataclasses.fields(cls)])
def test_each_field_of_params_has_a_rule(cls: Any, field: str) -> None:
    accepted = [*ACCEPTED.get(field, []), *([None] if (cls, field) == (rl.OnPolicyTrainerParams, "batch_size") else [])]
    refuses_bad_values(cls, PARAMS[cls], field, "must be ", accepted)
