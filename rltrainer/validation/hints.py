"""Names of other libraries, and what stands for them here: one table for each place where such a name may turn up.

Stable-Baselines3, Tianshou 1 and CleanRL are covered. This is data; `suggestions.py` finds the entry that is meant.
"""

from collections.abc import Collection

# Arguments and fields: the other libraries' names for each of ours.
THEIRS = {
    "lr": "learning_rate policy_lr actor_lr", "critic_lr": "q_lr", "gamma": "discount discount_factor",
    "gae_lambda": "lam lambda_ td_lambda", "td_lambda": "q_lambda lam lambda_ gae_lambda",
    "entropy_coef": "ent_coef", "temperature": "ent_coef alpha", "value_coef": "vf_coef",
    "learn_temperature": "autotune auto_alpha", "entropy_in_target": "backup_entropy",
    "clip": "clip_range clip_coef clip_ratio eps_clip",
    "value_clip": "clip_range_vf", "max_grad_norm": "max_norm clip_grad_norm gradient_clip_val",
    "grad_norm_type": "clip_grad_norm_type", "adam_eps": "adam_epsilon", "adam_betas": "betas",
    "huber_delta": "huber_loss_delta",
    "normalize_advantage": "norm_adv advantage_normalization", "tau": "polyak",
    "actor_update_interval": "policy_delay policy_frequency",
    "target_update_interval": "target_update_freq target_network_frequency",
    "target_noise": "target_policy_noise policy_noise", "target_noise_clip": "noise_clip",
    "num_dropped": "top_quantiles_to_drop_per_net", "num_target_critics": "subset_size",
    "conservative_coef": "conservative_weight cql_weight",
    "epsilon": "exploration_fraction exploration_final_eps start_e",
    "collection_step_num_env_steps": "n_steps num_steps step_per_collect train_freq",
    "n_step": "n_steps n_step_return_horizon",
    "num_env_steps": "total_timesteps n_timesteps timesteps total_steps max_steps steps",
    "num_gradient_steps": "steps", "num_steps": "max_steps steps n_step", "max_epochs": "num_epochs epochs",
    "epoch_num_steps": "step_per_epoch n_steps_per_epoch",
    "update_step_num_repetitions": "n_epochs update_epochs repeat_per_collect", "batch_size": "minibatch_size",
    "collection_step_num_episodes": "episode_per_collect",
    "update_step_num_gradient_steps_per_sample": "gradient_steps update_per_step",
    "warmup_num_env_steps": "learning_starts start_steps",
    "test_step_num_episodes": "episode_per_test n_eval_episodes", "num_episodes": "n_eval_episodes n_episode",
    "training_collector": "train_collector", "buffer": "replay_buffer replay_buffer_class",
    "hooks": "callback callbacks",
    "envs": "eval_env", "test_collector": "eval_env", "logger": "tensorboard_log log_dir",
    "folder": "tensorboard_log log_dir directory dir path save_path video_folder",
    "path": "directory dir save_path video_folder", "num_envs": "n_envs", "env": "env_id env_fn env_fns",
    "capacity": "buffer_size size", "every": "save_freq", "post_steps": "_on_step on_step",
    "pre_optim_steps": "_on_rollout_end", "setup": "_on_training_start", "shutdown": "_on_training_end",
    "hidden_sizes": "net_arch hidden_dims", "activation": "activation_fn", "sde_sample_interval": "sde_sample_freq",
    "encoder": "features_extractor_class", "orthogonal_init": "ortho_init", "norm": "layer_norm",
    "normalize_obs": "norm_obs", "normalize_reward": "norm_reward", "num_critics": "n_critics ensemble_size",
    "cell_size": "lstm_hidden_size", "num_cg_steps": "cg_max_steps", "damping": "cg_damping",
    "num_quantiles": "n_quantiles", "num_outputs": "n_quantiles",
}  # fmt: skip
# Our names for another library's: the called thing's first one is meant.
ARGUMENTS: dict[str, tuple[str, ...]] = {"logdir": ("folder", "logger", "path")}
for _ours, _names in THEIRS.items():
    for _name in _names.split():
        ARGUMENTS[_name] = (*ARGUMENTS.get(_name, ()), _ours)

Advice = tuple[str, Collection[str], str]
"""An argument or a class that the owner must have, names that it lacks, and the advice, {} for our name."""
_BUFFER = "The training collector holds it: rl.Collector(algorithm.policy, envs, rl.PrioritizedReplayBuffer(...))."
_NET = "It is a field of NetParams: net=rl.NetParams({}=...)."
_SHARED = "What varies is in space={{...}}; the recipe has the rest: rl.recipes.for_env(env).with_fields({}=...)."
_STEPS = ("total_timesteps", "n_timesteps", "timesteps", "total_steps", "steps", "max_steps")
_TRAINING = ("learn", "fit", "train")
# Arguments that are no single one of ours.
ADVICE: tuple[Advice, ...] = (
    ("max_epochs", _STEPS, "A run has max_epochs epochs of epoch_num_steps steps each."),
    ("explore", ("deterministic",), "Greedy is the default, explore=False; explore=True samples."),
    ("hidden_sizes", ("policy_kwargs",), "Each of them is an argument itself, such as hidden_sizes=(64, 64)."),
    ("net", ("encoder", "obs_encoder", "features_extractor_class"), _NET),
    ("policy", ("replay_buffer_class", "replay_buffer", "buffer_size"), _BUFFER),
    ("training_collector", ("replay_buffer_class", "replay_buffer", "buffer_size"), _BUFFER),
    ("space", {*THEIRS, *ARGUMENTS}, _SHARED),
)
# Attributes of objects.
ATTRIBUTES: tuple[Advice, ...] = (
    ("Algorithm", _TRAINING, "Write rl.train(env, algorithm), or algorithm.run_training(trainer_params)."),
    ("Trainer", _TRAINING, "Write trainer.run()."),
    ("Algorithm", ("predict",), "The policy has it: algorithm.policy.predict(obs) returns the actions."),
    ("Training", ("predict",), "The policy has it: result.algorithm.policy.predict(obs) returns the actions."),
)

_NORMALIZES = "a policy does: rl.ActorCritic.for_envs(envs, normalize_obs=True, normalize_reward=True)"
_SYNC = 'rl.make_vec(env, num_envs, backend="sync") does'
_WORKERS = 'rl.make_vec(env, num_envs, backend="workers") does'
# Names of the package, `rl.<name>`: what does the same.
PACKAGE = {
    "VecNormalize": _NORMALIZES, "NormalizeObservation": _NORMALIZES, "NormalizeReward": _NORMALIZES,
    "make_vec_env": "rl.make_vec(env, num_envs) does", "make_env": "rl.make_vec(env, num_envs) does",
    "make_atari_env": "rl.make_vec(env, num_envs, wrappers=[rl.AtariWrapper]) does",
    "DummyVecEnv": _SYNC, "DummyVectorEnv": _SYNC, "SyncVectorEnv": _SYNC,
    "SubprocVecEnv": _WORKERS, "SubprocVectorEnv": _WORKERS, "AsyncVectorEnv": _WORKERS,
    "make": "gymnasium.make makes one env, and rl.make_vec(env, num_envs) several",
    "Monitor": "collectors count returns and lengths themselves",
    "evaluate": "rl.evaluate_policy(policy, envs, episodes) does", "EvalCallback": "rl.Evaluate(...) does",
    "BaseCallback": "rl.TrainerHook is the parent of hooks", "CheckpointCallback": "rl.CheckpointParams(folder) does",
    "CallbackList": "hooks=[...] does", "StopTrainingOnRewardThreshold": "stop_fn=lambda score: score >= 475 does",
    "VecVideoRecorder": "rl.VideoRecorder(...) and rl.record(...) do",
    "NormalActionNoise": "rl.GaussianNoise(...) does",
    "HerReplayBuffer": "rl.HindsightReplayBuffer(...) does", "DictReplayBuffer": "rl.ReplayBuffer(...) does",
    "VectorReplayBuffer": "rl.ReplayBuffer(..., num_envs=...) does",
    "MlpPolicy": "rl.ActorCritic.for_envs(envs) makes a policy", "CnnPolicy": "rl.ActorCritic.for_envs(envs) makes one",
    "set_random_seed": "rl.seed(seed) does", "load_model": "rl.load(path) does",
}  # fmt: skip
