"""Names of other libraries, and what stands for them here: one table for each place where such a name may turn up.

Stable-Baselines3, Tianshou 1 and CleanRL are covered. This is data; `suggestions.py` finds the entry that is meant.
"""

ARGUMENTS: dict[str, tuple[str, ...]] = {
    # hyperparameters
    "learning_rate": ("lr",), "policy_lr": ("lr",), "actor_lr": ("lr",), "q_lr": ("critic_lr",),
    "discount": ("gamma",), "discount_factor": ("gamma",), "lam": ("gae_lambda",), "lambda_": ("gae_lambda",),
    "ent_coef": ("entropy_coef", "temperature"), "vf_coef": ("value_coef",), "alpha": ("temperature",),
    "autotune": ("learn_temperature",), "auto_alpha": ("learn_temperature",),
    "clip_range": ("clip",), "clip_coef": ("clip",), "clip_ratio": ("clip",), "eps_clip": ("clip",),
    "clip_range_vf": ("value_clip",), "max_norm": ("max_grad_norm",), "clip_grad_norm": ("max_grad_norm",),
    "gradient_clip_val": ("max_grad_norm",), "clip_grad_norm_type": ("grad_norm_type",),
    "adam_epsilon": ("adam_eps",), "huber_loss_delta": ("huber_delta",),
    "norm_adv": ("normalize_advantage",), "advantage_normalization": ("normalize_advantage",),
    "polyak": ("tau",), "policy_delay": ("actor_update_interval",), "policy_frequency": ("actor_update_interval",),
    "target_update_freq": ("target_update_interval",), "target_network_frequency": ("target_update_interval",),
    "target_policy_noise": ("target_noise",), "policy_noise": ("target_noise",), "noise_clip": ("target_noise_clip",),
    "top_quantiles_to_drop_per_net": ("num_dropped",), "subset_size": ("num_target_critics",),
    "conservative_weight": ("conservative_coef",), "cql_weight": ("conservative_coef",),
    "exploration_fraction": ("epsilon",), "exploration_final_eps": ("epsilon",), "start_e": ("epsilon",),
    "n_steps": ("collection_step_num_env_steps", "n_step"), "n_step_return_horizon": ("n_step",),
    # trainers
    "total_timesteps": ("num_env_steps",), "n_timesteps": ("num_env_steps",), "timesteps": ("num_env_steps",),
    "total_steps": ("num_env_steps",), "max_steps": ("num_env_steps", "num_steps"),
    "steps": ("num_env_steps", "num_gradient_steps", "num_steps"),
    "num_epochs": ("max_epochs",), "epochs": ("max_epochs",), "step_per_epoch": ("epoch_num_steps",),
    "n_epochs": ("update_step_num_repetitions",), "update_epochs": ("update_step_num_repetitions",),
    "repeat_per_collect": ("update_step_num_repetitions",), "minibatch_size": ("batch_size",),
    "num_steps": ("collection_step_num_env_steps",), "step_per_collect": ("collection_step_num_env_steps",),
    "train_freq": ("collection_step_num_env_steps",), "episode_per_collect": ("collection_step_num_episodes",),
    "gradient_steps": ("update_step_num_gradient_steps_per_sample",),
    "update_per_step": ("update_step_num_gradient_steps_per_sample",),
    "learning_starts": ("warmup_num_env_steps",), "start_steps": ("warmup_num_env_steps",),
    "episode_per_test": ("test_step_num_episodes",), "n_eval_episodes": ("test_step_num_episodes", "num_episodes"),
    "train_collector": ("training_collector",), "replay_buffer": ("buffer",),
    "callback": ("hooks",), "callbacks": ("hooks",),
    "eval_env": ("envs", "test_collector"), "tensorboard_log": ("logger", "folder"), "log_dir": ("logger", "folder"),
    "directory": ("folder", "path"), "dir": ("folder", "path"), "logdir": ("folder", "logger", "path"),
    # calls
    "n_envs": ("num_envs",), "n_step": ("num_steps",), "n_episode": ("num_episodes",),
    "env_id": ("env",), "env_fn": ("env",), "env_fns": ("env",), "buffer_size": ("capacity",), "size": ("capacity",),
    "save_freq": ("every",), "save_path": ("folder", "path"), "video_folder": ("folder", "path"),
    "n_steps_per_epoch": ("epoch_num_steps",),
    "_on_step": ("post_steps",), "on_step": ("post_steps",), "_on_rollout_end": ("pre_optim_steps",),
    "_on_training_start": ("setup",), "_on_training_end": ("shutdown",),
    # networks
    "net_arch": ("hidden_sizes",), "hidden_dims": ("hidden_sizes",), "activation_fn": ("activation",),
    "sde_sample_freq": ("sde_sample_interval",),
    "features_extractor_class": ("encoder",), "ortho_init": ("orthogonal_init",), "layer_norm": ("norm",),
    "norm_obs": ("normalize_obs",), "norm_reward": ("normalize_reward",), "n_critics": ("num_critics",),
    "lstm_hidden_size": ("cell_size",), "cg_max_steps": ("num_cg_steps",), "cg_damping": ("damping",),
    "ensemble_size": ("num_critics",), "n_quantiles": ("num_quantiles", "num_outputs"),
}  # fmt: skip
"""Arguments and fields: other library's name to our names, of which the first that the called thing has is meant."""

_PLANNED = "A run has max_epochs epochs of epoch_num_steps steps each."
ADVICE: dict[str, tuple[str, str]] = {
    "total_timesteps": ("max_epochs", _PLANNED), "n_timesteps": ("max_epochs", _PLANNED),
    "timesteps": ("max_epochs", _PLANNED), "total_steps": ("max_epochs", _PLANNED), "steps": ("max_epochs", _PLANNED),
    "max_steps": ("max_epochs", _PLANNED),
    "deterministic": ("explore", "Greedy is the default, explore=False; explore=True samples."),
    "policy_kwargs": ("hidden_sizes", "Each of them is an argument itself, such as hidden_sizes=(64, 64)."),
    "encoder": ("net", "It is a field of NetParams: net=rl.NetParams(encoder=...)."),
    "obs_encoder": ("net", "It is a field of NetParams: net=rl.NetParams(obs_encoder=...)."),
    "features_extractor_class": ("net", "It is a field of NetParams: net=rl.NetParams(encoder=...)."),
}  # fmt: skip
"""Arguments that are no single one of ours: a name that the called thing must have, and the advice."""

_NORMALIZES = "a policy does: rl.ActorCritic.for_envs(envs, normalize_obs=True, normalize_reward=True)"
_SYNC = 'rl.make_vec(env, num_envs, backend="sync") does'
_WORKERS = 'rl.make_vec(env, num_envs, backend="workers") does'
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
"""Names of the package, `rl.<name>`: what does the same."""
