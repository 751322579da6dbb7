"""Vector envs, and the adapter between them and a policy: the only place that knows autoreset modes."""

from rltrainer.envs.adapter.adapter import EnvAdapter
from rltrainer.envs.adapter.episodes import ReplayedStep, replay_episode
from rltrainer.envs.adapter.observations import EnvStep
from rltrainer.envs.agents.agents_as_envs import AgentsAsEnvs
from rltrainer.envs.agents.joint_env import JointEnv
from rltrainer.envs.atari import AtariWrapper
from rltrainer.envs.backends.masked_resets import SaveableEnv
from rltrainer.envs.make_vec import make_vec
from rltrainer.envs.tensors.gym_tensor_env import GymTensorVectorEnv
from rltrainer.envs.tensors.jax_env import BraxVectorEnv, GymnaxVectorEnv
from rltrainer.envs.tensors.rsl_rl_env import RslRlVectorEnv
from rltrainer.envs.tensors.tensor_env import TensorEnv
from rltrainer.envs.tensors.tensor_vector_env import TensorVectorEnv
from rltrainer.envs.vector_env import frame_skip
from rltrainer.envs.wrappers import ActionMask, PixelObservation

__all__ = [
    "ActionMask", "AgentsAsEnvs", "AtariWrapper", "BraxVectorEnv", "EnvAdapter", "EnvStep", "GymTensorVectorEnv",
    "GymnaxVectorEnv", "JointEnv", "PixelObservation", "ReplayedStep", "RslRlVectorEnv", "SaveableEnv", "TensorEnv",
    "TensorVectorEnv", "frame_skip", "make_vec", "replay_episode",
]  # fmt: skip
