"""Names of arguments: what is wrong with those of a call, and which one a misspelt or foreign name may stand for."""

import difflib
import functools
import inspect
from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Any, TypeVar, Unpack, cast, get_args, get_origin, get_type_hints

from rltrainer.errors import ArgumentError

F = TypeVar("F", bound=Callable[..., Any])
OTHER_NAMES: dict[str, tuple[str, ...]] = {
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
    "total_timesteps": ("num_env_steps", "max_epochs"),
    "n_timesteps": ("num_env_steps", "max_epochs"),
    "num_epochs": ("max_epochs",), "step_per_epoch": ("epoch_num_steps",),
    "n_epochs": ("update_step_num_repetitions",), "update_epochs": ("update_step_num_repetitions",),
    "repeat_per_collect": ("update_step_num_repetitions",), "minibatch_size": ("batch_size",),
    "num_steps": ("collection_step_num_env_steps",), "step_per_collect": ("collection_step_num_env_steps",),
    "train_freq": ("collection_step_num_env_steps",), "episode_per_collect": ("collection_step_num_episodes",),
    "gradient_steps": ("update_step_num_gradient_steps_per_sample",),
    "update_per_step": ("update_step_num_gradient_steps_per_sample",),
    "learning_starts": ("warmup_num_env_steps",), "start_steps": ("warmup_num_env_steps",),
    "episode_per_test": ("test_step_num_episodes",), "n_eval_episodes": ("test_step_num_episodes", "episodes"),
    "train_collector": ("training_collector",), "replay_buffer": ("buffer",),
    "callback": ("hooks",), "callbacks": ("hooks",),
    "eval_env": ("envs", "test_collector"), "tensorboard_log": ("logger", "path"), "log_dir": ("logger", "path"),
    # calls
    "n_envs": ("num_envs",), "n_step": ("num_steps",), "n_episode": ("num_episodes",), "deterministic": ("explore",),
    "env_id": ("env",), "env_fn": ("env",), "env_fns": ("env",), "buffer_size": ("capacity",), "size": ("capacity",),
    "save_freq": ("every",), "save_path": ("directory", "path"), "video_folder": ("path",),
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
"""Names that other libraries have for our fields: Stable-Baselines3, Tianshou 1, CleanRL."""


def did_you_mean(name: str, known: Collection[str]) -> str:
    """Return ` Did you mean 'lr'?` for the known name that is meant, or nothing if none is near."""
    meant = [ours for ours in OTHER_NAMES.get(name, ()) if ours in known]
    meant = meant or difflib.get_close_matches(name, known, n=1)
    return f" Did you mean {meant[0]!r}?" if meant else ""


def argument_names(called: type[Any]) -> tuple[list[str], bool]:
    """Return the names that a constructor's arguments have, and whether it takes any other too."""
    parameters = inspect.signature(called.__init__).parameters
    known, others = list(parameters)[1:], [p.annotation for p in parameters.values() if p.kind is p.VAR_KEYWORD]
    if others and get_origin(others[0]) is Unpack:  # options of a parent's, which a TypedDict names
        return known[:-1] + list(get_type_hints(get_args(others[0])[0])), False
    return known, bool(others)


def check_arguments(
    owner: str,
    called: type[Any],
    args: Sequence[Any],
    values: Mapping[str, Any],
    what: str,
    elsewhere: Callable[[str], str] = lambda name: "",
) -> None:
    """Check the arguments of a constructor as Python is about to, with a text that helps.

    Args:
        owner, called: what the user called, for the text, and its class.
        args, values: arguments without a name, and those with one.
        what: what such an argument is called, for the text.
        elsewhere: says where else a name belongs that is not near to any here.

    Raises:
        ArgumentError: Python would raise a `TypeError`.
    """
    signature = inspect.signature(called.__init__)
    known, takes_any = argument_names(called)
    for name in values:
        if name not in known and not takes_any:
            hint = did_you_mean(name, known) or elsewhere(name)
            raise ArgumentError(f"{owner}: unknown {what} {name!r}.{hint}")
    try:
        signature.bind(None, *args, **values)
    except TypeError as error:
        by_name = [p.name for p in signature.parameters.values() if p.kind is p.KEYWORD_ONLY][:2]
        hint = f" Give each {what} by name: {', '.join(f'{name}=...' for name in by_name)}." if by_name else ""
        problem = str(error).replace("keyword-only ", "")  # which Python 3.12 and later add
        raise ArgumentError(f"{owner}: {problem}.{hint}") from None


def explains_arguments(called: F) -> F:
    """Say which argument is meant where Python finds that a call's do not fit; it costs nothing where they do.

    Of a class it is the constructor that says so.

    Raises:
        ArgumentError: Python would raise a `TypeError`.
    """
    if isinstance(called, type):
        called.__init__ = explains_arguments(called.__init__)  # type: ignore[misc]  # of this class, no other
        return called

    @functools.wraps(called)
    def call(*args: Any, **values: Any) -> Any:
        try:
            return called(*args, **values)
        except TypeError as error:
            if error.__traceback__ is not None and error.__traceback__.tb_next is not None:
                raise  # of the code that was called
            raise ArgumentError(_misfit(called, args, values)) from None

    return cast(F, call)


def _misfit(called: Callable[..., Any], args: Sequence[Any], values: Mapping[str, Any]) -> str:
    """Return the text of an error about arguments that do not fit."""
    signature = inspect.signature(called)
    owner = type(args[0]).__name__ if called.__name__ == "__init__" else called.__qualname__
    own = [p for p in signature.parameters.values() if p.name not in ("self", "cls")]
    known = [p.name for p in own if p.kind not in (p.VAR_KEYWORD, p.VAR_POSITIONAL)]
    needed = [p.name for p in own if p.default is p.empty and p.name in known]
    usage = f"Write {owner}({', '.join([*needed, '...'])})."
    for name in values:
        if name not in known and (hint := did_you_mean(name, known)):
            return f"{owner}: unknown argument {name!r}.{hint}"
    try:
        signature.bind(*args, **values)
    except TypeError as error:
        return f"{owner}: {error}. {usage}"
    return f"{owner}: the arguments do not fit. {usage}"
