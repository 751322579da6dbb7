"""rltrainer: trains reinforcement-learning agents with PyTorch. The public names."""

from typing import TYPE_CHECKING, Any

from rltrainer import errors
from rltrainer.algorithms import *
from rltrainer.checkpoint import CheckpointParams
from rltrainer.collect import *
from rltrainer.data import *
from rltrainer.envs import (
    ActionMask,
    AgentsAsEnvs,
    AtariWrapper,
    JointEnv,
    PixelObservation,
    ReplayedStep,
    SaveableEnv,
    frame_skip,
    make_vec,
    replay_episode,
)
from rltrainer.functional import scores
from rltrainer.hooks import (
    BatchRecorder,
    BatchSubSampler,
    ClearCudaCache,
    EarlyStopping,
    Evaluate,
    FunctionHook,
    LogScalar,
    LogTiming,
    MaxEpisodes,
    RewardNormalizer,
    SelectKeys,
    SystemStats,
    TrainerContext,
    TrainerHook,
)
from rltrainer.interval import Every
from rltrainer.loggers import *
from rltrainer.nets import *
from rltrainer.plan import PrecisionParams, ProfilerParams, RuntimeParams, UpdateCallbacks, UpdateParams, UpdatePlan
from rltrainer.schedules import CosineSchedule, LinearSchedule
from rltrainer.seeding import seed
from rltrainer.state import registry
from rltrainer.state.registry import register
from rltrainer.trainers import *
from rltrainer.types import Rollout, Sequences, Transitions, UpdateResult

__version__ = "0.1.0"

__all__ = [
    "A2C",
    "BC",
    "C51",
    "CQL",
    "DDPG",
    "DQN",
    "IMPALA",
    "IQL",
    "PPO",
    "QRDQN",
    "REDQ",
    "REINFORCE",
    "SAC",
    "TD3",
    "TD3BC",
    "TQC",
    "TRPO",
    "A2CParams",
    "ActionMask",
    "Actor",
    "ActorCritic",
    "AgentsAsEnvs",
    "Algorithm",
    "AlgorithmParams",
    "AsyncCollector",
    "AtariWrapper",
    "BCParams",
    "BatchRecorder",
    "BatchSubSampler",
    "BatchedCollector",
    "BufferDescription",
    "C51Params",
    "CQLParams",
    "CSVLogger",
    "CategoricalQNetwork",
    "CheckpointParams",
    "ClearCudaCache",
    "CollectStats",
    "Collector",
    "ConsoleLogger",
    "CosineSchedule",
    "DDPGParams",
    "DQNParams",
    "DataSource",
    "Decision",
    "DeterministicActorCritic",
    "DiscreteActorCritic",
    "DiscreteCQL",
    "DiscreteCQLParams",
    "DiscreteSAC",
    "DiscreteSACParams",
    "DoubleDQN",
    "EarlyStopping",
    "EpochStats",
    "EpsilonGreedy",
    "Evaluate",
    "Every",
    "Exploration",
    "FunctionHook",
    "GaussianActorCritic",
    "GaussianNoise",
    "HindsightReplayBuffer",
    "IMPALAParams",
    "IQLParams",
    "IncompatibleKeys",
    "InferenceParams",
    "InfoStats",
    "JSONLinesLogger",
    "JointEnv",
    "LinearSchedule",
    "LogScalar",
    "LogTiming",
    "LogUniform",
    "Logger",
    "MLflowLogger",
    "MaxEpisodes",
    "MixedBuffer",
    "MultiLogger",
    "NetParams",
    "OffPolicyAlgorithm",
    "OffPolicyParams",
    "OffPolicyTrainer",
    "OffPolicyTrainerParams",
    "OfflineRecipe",
    "OfflineTrainer",
    "OfflineTrainerParams",
    "OnPolicyAlgorithm",
    "OnPolicyBatch",
    "OnPolicyTrainer",
    "OnPolicyTrainerParams",
    "OnlineTrainer",
    "OnlineTrainerParams",
    "Optimizer",
    "OrnsteinUhlenbeckNoise",
    "PPOParams",
    "PixelObservation",
    "Policy",
    "PrecisionParams",
    "PrioritizedReplayBuffer",
    "ProfilerParams",
    "QNetwork",
    "QRDQNParams",
    "QuantileQNetwork",
    "REDQParams",
    "REINFORCEParams",
    "Recipe",
    "RecurrentActorCritic",
    "RecurrentPPO",
    "ReplayBuffer",
    "ReplayedStep",
    "RewardNormalizer",
    "Rollout",
    "RolloutBuffer",
    "Run",
    "RunFolder",
    "RuntimeParams",
    "SACParams",
    "SaveableEnv",
    "ScheduledValue",
    "SeedRun",
    "SelectKeys",
    "SequenceSummaryStats",
    "Sequences",
    "SmallConvEncoder",
    "SquashedActorCritic",
    "SweepResult",
    "SweepTrial",
    "SystemStats",
    "TD3BCParams",
    "TD3Params",
    "TQCParams",
    "TRPOParams",
    "TensorBoardLogger",
    "Timing",
    "Trainer",
    "TrainerContext",
    "TrainerHook",
    "TrainerParams",
    "Training",
    "Transitions",
    "Uniform",
    "UpdateCallbacks",
    "UpdateParams",
    "UpdatePlan",
    "UpdateResult",
    "VideoRecorder",
    "WandbLogger",
    "datasets",
    "errors",
    "evaluate_policy",
    "export_onnx",
    "export_torch",
    "frame_skip",
    "generate_exp_name",
    "get_logger",
    "load",
    "load_policy",
    "make_vec",
    "open_run",
    "open_sweep",
    "plots",
    "recipes",
    "record",
    "register",
    "replay_episode",
    "rms_prop",
    "run_seeds",
    "scores",
    "seed",
    "sweep",
    "train",
    "watch",
]  # fmt: skip

_CORE = {name: value for name, value in globals().items() if name in __all__}
registry.add_classes(_CORE.values())

if TYPE_CHECKING:
    from rltrainer.tools import *

else:  # to a type checker every name would exist

    def __getattr__(name: str) -> Any:
        """Import the tools when one of their names is asked for; say what a misspelt or foreign name may stand for."""
        if name in __all__:
            from rltrainer import tools

            return getattr(tools, name)
        from rltrainer.validation.hints import PACKAGE
        from rltrainer.validation.suggestions import did_you_mean

        is_private = name.startswith("_")  # Python and tools ask for such
        hint = f" Here {PACKAGE[name]}." if name in PACKAGE else "" if is_private else did_you_mean(name, __all__)
        raise errors.NoSuchNameError(f"rltrainer.{name}: there is no such attribute.{hint}", name=name)

    def __dir__() -> list[str]:
        """List the tools too."""
        return sorted({*globals(), *__all__})
