"""Tables that say where the names of other trainers are here: complete, and every name of ours in them exists.

A row is `name there | names of ours | how`. A name of ours is in backticks: `TrainerParams.seed`, a keyword as
`make_vec(backend=)`. Where nothing of ours is needed stands a dash; `not yet` stands before names that must not exist.
"""

import dataclasses
import importlib
import inspect
import re
from pathlib import Path
from typing import Any

import pytest

import rltrainer as rl

DOCS = Path(__file__).parents[2] / "docs"
MIGRATING = DOCS / "migrating"
NONE = "\N{EN DASH}"

NAMES = {
    "tianshou.md": """
        TrainerParams max_epochs epoch_num_steps test_collector test_step_num_episodes training_fn test_fn stop_fn
        compute_score_fn save_best_fn save_checkpoint_fn resume_from_log multi_agent_return_reduction logger
        logger.update_interval logger.training_interval logger.test_interval verbose show_progress ToStringMixin
        OnlineTrainerParams training_collector collection_step_num_env_steps collection_step_num_episodes
        test_in_training OnPolicyTrainerParams OnPolicyTrainerParams.batch_size update_step_num_repetitions
        OffPolicyTrainerParams OffPolicyTrainerParams.batch_size update_step_num_gradient_steps_per_sample
        OfflineTrainerParams buffer OfflineTrainerParams.batch_size Trainer Trainer.reset reset_collectors
        reset_collector_buffers Trainer.execute_epoch Trainer.run EpochStats InfoStats CollectStats OfflineTrainer
        OnlineTrainer OnlineTrainer.reset OffPolicyTrainer OnPolicyTrainer Algorithm OnPolicyAlgorithm
        OffPolicyAlgorithm OfflineAlgorithm BaseCollector BaseLogger ReplayBuffer
    """,
    "torchrl.md": """
        batch_process pre_steps_log pre_optim_steps process_optim_batch post_loss optimizer post_optim post_optim_log
        post_steps post_steps_log log_pbar TrainerHookBase TrainerHookBase.state_dict TrainerHookBase.load_state_dict
        TrainerHookBase.register register_op register_module Trainer collector total_frames frame_skip loss_module
        Trainer.optimizer Trainer.logger optim_steps_per_batch clip_grad_norm clip_norm progress_bar seed
        save_trainer_interval log_interval save_trainer_file async_collection utd_ratio Trainer.train save_trainer
        load_from_file CKPT_BACKEND BatchSubSampler ClearCudaCache CountFramesLog LogReward OptimizerHook Recorder
        ReplayBufferTrainer ReplayBufferTrainer.extend ReplayBufferTrainer.update_priority RewardNormalizer SelectKeys
        UpdateWeights UpdateWeights.collector update_weights_interval policy_weights_getter weight_update_map
        UpdateWeights.trainer UpdateWeights.register make_collector_offpolicy make_collector_onpolicy make_dqn_loss
        make_replay_buffer make_target_updater make_trainer parallel_env_constructor sync_async_collector
        sync_sync_collector transformed_env_constructor correct_for_frame_skip get_stats_random_rollout Logger CSVLogger
        MLFlowLogger TensorboardLogger WandbLogger get_logger generate_exp_name VideoRecorder TensorDictRecorder
        PixelRenderTransform
    """,
    "ml_trainers.md": """
        SamplingConfig num_epoch_samples min_batch_size max_batch_size max_wait_time min_trajectory_length
        max_trajectory_length force_sync optimal ReinforcementLearningTrainerConfig name exp_name exp_dir log_dir_name
        use_double_weight_precision checkpoint parallel compiler cpu_stats_ping_interval cpu_stats_only_log_once
        gpu_stats_ping_interval gpu_stats_only_log_once mixed_precision clip_grad_norm clip_grad_norm_type
        balance_grad_norms profiler set_to_none deterministic use_tf32 detect_anomaly sampling
        ReinforcementLearningTrainer ReinforcementLearningTrainer.train model task train.optimizer lr_scheduler
    """,
}
"""The public names of their documentation, by our page."""

SHOWN = {
    "torchrl.md": """
        make_collector_offpolicy make_collector_onpolicy make_dqn_loss make_replay_buffer make_target_updater
        make_trainer parallel_env_constructor transformed_env_constructor sync_sync_collector sync_async_collector
        correct_for_frame_skip get_stats_random_rollout ReplayBufferTrainer OptimizerHook Recorder CountFramesLog
        LogReward TrainerHookBase register_op register_module CKPT_BACKEND total_frames optim_steps_per_batch
        policy_weights_getter weight_update_map TensorDictRecorder
    """,
    "ml_trainers.md": """
        num_epoch_samples set_to_none exp_dir log_dir_name cpu_stats_ping_interval gpu_stats_only_log_once parallel
    """,
}
"""Names that a snippet of the page shows."""


@dataclasses.dataclass(frozen=True)
class Entry:
    there: str
    here: str
    how: str

    @property
    def is_not_yet(self) -> bool:
        return self.here.startswith("not yet")

    @property
    def ours(self) -> list[str]:
        return re.findall(r"`([^`]+)`", self.here)


def entries(page: str) -> list[Entry]:
    """Return the rows of the tables whose head is `there | here | how`."""
    found, is_ours = [], False
    for line in (MIGRATING / page).read_text().splitlines():
        cells = [cell.strip() for cell in re.split(r"(?<!\\)\|", line)[1:-1]]
        is_ours = cells[1:] == ["here", "how"] or (is_ours and len(cells) == 3)
        if is_ours and cells[0].startswith("`"):
            found.append(Entry(cells[0].strip("`"), *cells[1:]))
    return found


def exists(name: str) -> bool:
    """Return whether a name is rltrainer's: of its top level, or with the path of a module."""
    path, _, keyword = name.partition("(")
    first, *others = path.removeprefix("rl.").split(".")
    value: Any = rl if first == "rltrainer" else getattr(rl, first, None)
    for part in others:
        if value is None:
            return False
        value = member(value, part)
    if value is not None and keyword:
        function = value.__init__ if inspect.isclass(value) else value
        return keyword.removesuffix("=)") in inspect.signature(function).parameters
    return value is not None


def member(value: Any, name: str) -> Any:
    if inspect.ismodule(value) and not hasattr(value, name):
        try:
            return importlib.import_module(f"{value.__name__}.{name}")
        except ImportError:
            return None
    if inspect.isclass(value) and any(name in inspect.get_annotations(cls) for cls in value.__mro__):
        return name
    return getattr(value, name, None)


@pytest.mark.parametrize("page", NAMES)
def test_every_name_has_one_row_and_every_name_of_ours_exists(page: str) -> None:
    assert sorted(entry.there for entry in entries(page)) == sorted(NAMES[page].split())
    found = [entry for entry in entries(page) if not entry.is_not_yet]
    assert [name for entry in found for name in entry.ours if not exists(name)] == []
    assert [entry.there for entry in found if not entry.ours and entry.here != NONE] == []
    assert [entry.there for entry in found if not entry.ours and not entry.how] == []
    waiting = [name for entry in entries(page) if entry.is_not_yet for name in entry.ours]
    there = [name for name in waiting if exists(name)]
    assert there == [], f"docs/migrating/{page}: they are there now, so take 'not yet' from their rows and say how"


@pytest.mark.parametrize("page", sorted(str(path.relative_to(DOCS)) for path in DOCS.rglob("*.md")))
def test_every_page_names_what_rl_has(page: str) -> None:
    text = (DOCS / page).read_text()
    assert [name for name in re.findall(r"\brl\.([A-Za-z]\w*)", text) if not hasattr(rl, name)] == []


@pytest.mark.parametrize("page", SHOWN)
def test_snippets_show_them(page: str) -> None:
    code = "".join(re.findall(r"^```python\n(.*?)^```$", (MIGRATING / page).read_text(), re.MULTILINE | re.DOTALL))
    assert [name for name in SHOWN[page].split() if name not in code] == []


def test_names_that_exist_are_found_and_others_are_not() -> None:
    ours = """
        PPO rl.PPO TrainerParams.seed Trainer.run OnPolicyTrainerParams.max_epochs make_vec(backend=)
        Collector.collect(num_steps=) rltrainer.checkpoint.read_checkpoint rltrainer.nets.normalizer
        OnlineTrainerParams.training_collector InfoStats.env_step
    """
    assert [name for name in ours.split() if not exists(name)] == []
    others = "PPOO TrainerParams.sede make_vec(backnd=) rltrainer.nothing PPOO.seed Nothing(seed=)"
    assert [name for name in others.split() if exists(name)] == []
