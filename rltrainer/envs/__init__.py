"""Vector envs, and the adapter between them and a policy: the only place that knows autoreset modes."""

from rltrainer.envs.adapter.adapter import EnvAdapter
from rltrainer.envs.adapter.env_step import EnvStep
from rltrainer.envs.agents.agents_as_envs import AgentsAsEnvs
from rltrainer.envs.agents.joint_env import JointEnv
from rltrainer.envs.episodes.replay_episode import ReplayedStep, replay_episode
from rltrainer.envs.frame_skip import frame_skip
from rltrainer.envs.make_vec import make_vec
from rltrainer.envs.saveable_env import SaveableEnv
from rltrainer.envs.wrappers.atari_wrapper import AtariWrapper
from rltrainer.envs.wrappers.mask_wrapper import ActionMask
from rltrainer.envs.wrappers.pixel_observation import PixelObservation

__all__ = [
    "ActionMask", "AgentsAsEnvs", "AtariWrapper", "EnvAdapter", "EnvStep", "JointEnv", "PixelObservation",
    "ReplayedStep", "SaveableEnv", "frame_skip", "make_vec", "replay_episode",
]  # fmt: skip
