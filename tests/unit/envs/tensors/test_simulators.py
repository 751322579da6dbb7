"""Adapters of simulators: those of gymnasium's interface, and of rsl_rl's."""

import re
from typing import Any

import gymnasium as gym
import numpy as np
import pytest
import torch
from gymnasium.spaces import Box
from gymnasium.vector import AutoresetMode

import rltrainer as rl
from rltrainer.envs import EnvAdapter
from rltrainer.errors import EnvError, ParamsError, SpaceError
from tests.unit.envs.tensors.simulators import (
    FinalEnv,
    GenesisEnv,
    IsaacLabEnv,
    IsaacLabGymEnv,
    ManiSkillEnv,
    MjlabEnv,
    PlaygroundEnv,
)

ACTION = torch.zeros(3, 2)
WARNING = (
    'final_obs="last"): each episode\'s last observation is taken for its final one, which the env does not return'
)


def rsl_rl(env: Any, obs_groups: Any = None, **options: Any) -> rl.RslRlVectorEnv:
    with pytest.warns(UserWarning, match=re.escape(f"RslRlVectorEnv({WARNING}")) as record:
        envs = rl.RslRlVectorEnv(env, obs_groups, final_obs="last", **options)
    assert len(record) == 1
    return envs


def gym_last(env: Any, obs_groups: Any = None) -> rl.GymTensorVectorEnv:
    with pytest.warns(UserWarning, match=re.escape(f"GymTensorVectorEnv({WARNING}")):
        return rl.GymTensorVectorEnv(env, obs_groups, final_obs="last")


def steps(envs: Any, num_steps: int) -> list[dict[str, Any]]:
    """Return the second number of observations and final observations, and the flags, of some steps."""
    found = []
    for _ in range(num_steps):
        obs, reward, terminated, truncated, info = envs.step(ACTION)
        assert reward.tolist() == [1.0] * 3
        assert reward.dtype == torch.float32
        assert {terminated.dtype, truncated.dtype, info["_final_obs"].dtype} == {torch.bool}
        assert info["_final_obs"].tolist() == (terminated | truncated).tolist()
        assert obs[:, 0].tolist() == info["final_obs"][:, 0].tolist() == [0.0, 1.0, 2.0]
        row = {"obs": obs[:, 1], "final": info["final_obs"][:, 1], "terminated": terminated, "truncated": truncated}
        found.append({name: value.int().tolist() for name, value in row.items()})
    return found


# Env 0 terminates after 2 steps, env 1 after 3, which is the time limit too; env 2 is truncated after 3. The last
# observation stands for the final one: 1 for 2, and 2 for 3.
LAST = [
    {"obs": [1, 1, 1], "final": [1, 1, 1], "terminated": [0, 0, 0], "truncated": [0, 0, 0]},
    {"obs": [0, 2, 2], "final": [1, 2, 2], "terminated": [1, 0, 0], "truncated": [0, 0, 0]},
    {"obs": [1, 0, 0], "final": [1, 2, 2], "terminated": [0, 1, 0], "truncated": [0, 0, 1]},
    {"obs": [0, 1, 1], "final": [1, 1, 1], "terminated": [1, 0, 0], "truncated": [0, 0, 0]},
]


@pytest.mark.parametrize(("kind", "group"), [(MjlabEnv, "policy"), (GenesisEnv, None), (PlaygroundEnv, None)])
def test_envs_of_rsl_rl(kind: Any, group: str | None) -> None:
    envs = rsl_rl(kind(), group)
    obs, info = envs.reset()
    assert (obs.tolist(), info) == ([[0, 0], [1, 0], [2, 0]], {})
    assert steps(envs, 4) == LAST


def test_without_time_outs_every_end_is_a_termination() -> None:
    envs = rsl_rl(IsaacLabEnv(), "policy")
    envs.reset()
    assert steps(envs, 4)[2] == {**LAST[2], "terminated": [0, 1, 1], "truncated": [0, 0, 0]}


def test_a_reset_begins_all_episodes_again() -> None:
    for kind in (IsaacLabEnv, MjlabEnv):
        envs = rsl_rl(kind(), "policy")
        first = steps(envs, 1)
        envs.reset()
        assert steps(envs, 1) == first


# The true final observations; of a termination without one, the last observation.
FINAL = [[1, 1, 1], [2, 2, 2], [1, 3, 3], [2, 1, 1]]
FINAL_AT_LIMITS = [[1, 1, 1], [1, 2, 2], [1, 2, 3], [1, 1, 1]]


@pytest.mark.parametrize(("key", "expected"), [("final_obs", FINAL), ("time_outs_obs", FINAL_AT_LIMITS)])
def test_envs_of_rsl_rl_that_return_final_observations(key: str, expected: Any) -> None:
    envs = rl.RslRlVectorEnv(FinalEnv(key), "policy", final_obs="extras")
    envs.reset()
    assert steps(envs, 4) == [{**row, "final": final} for row, final in zip(LAST, expected, strict=True)]


def test_extras_without_the_final_observations_of_a_time_limit() -> None:
    envs = rl.RslRlVectorEnv(MjlabEnv(), "policy", final_obs="extras")
    assert [row["final"] for row in steps(envs, 2)] == FINAL_AT_LIMITS[:2]
    with pytest.raises(EnvError) as error:
        envs.step(ACTION)
    assert str(error.value) == (
        'RslRlVectorEnv: an episode timed out, but extras have neither "final_obs" nor "time_outs_obs". In Isaac Lab, '
        'set compute_final_obs=True in its config; or take final_obs="last".'
    )


def test_sac_bootstraps_from_true_final_observations_over_several_steps() -> None:
    """With SAC's n-step returns this is RSL-RL-SAC."""
    envs = rl.RslRlVectorEnv(FinalEnv("time_outs_obs"), "policy", final_obs="extras", clip_actions=[1, 2])
    policy = rl.SquashedActorCritic.for_envs(envs, hidden_sizes=(8,), log_std_init=-1.0)
    buffer = rl.ReplayBuffer(20, envs.single_observation_space, envs.single_action_space, num_envs=3, seed=1)
    rl.Collector(policy, envs, buffer).collect(num_steps=27)
    found = buffer.sample(200, n_step=2, gamma=0.5)
    columns = found.obs.int().tolist(), found.next_obs.int().tolist(), found.discount.tolist()
    pairs = {(*obs, *next_obs, discount) for obs, next_obs, discount in zip(*columns, strict=True)}
    # Of env 2, two steps before the limit lead to 2 and to the limit, 3; from the last one it is one step.
    assert {pair for pair in pairs if pair[0] == 2} == {(2, 0, 2, 2, 0.25), (2, 1, 2, 3, 0.25), (2, 2, 2, 3, 0.5)}
    assert {pair[1:] for pair in pairs if pair[0] == 0 and pair[1] == 1} == {(1, 0, 1, 0.0)}


def test_gymnasium_with_tensors_that_withholds_final_observations() -> None:
    envs = gym_last(gym.wrappers.TransformReward(IsaacLabGymEnv(), lambda reward: reward))
    envs.reset()
    assert steps(envs, 4) == LAST


def test_gymnasium_with_tensors_that_returns_final_observations() -> None:
    envs = rl.GymTensorVectorEnv(ManiSkillEnv(), "agent")
    envs.reset()
    found = []
    for _ in range(4):
        obs, _, terminated, truncated, info = envs.step(ACTION)
        row = {"obs": obs["qpos"], "final": info["final_obs"]["qpos"]}
        flags = {"terminated": terminated.int().tolist(), "truncated": truncated.int().tolist()}
        found.append({name: value[:, 1].int().tolist() for name, value in row.items()} | flags)
        assert truncated.dtype == torch.bool
    finals = [[1, 1, 1], [2, 2, 2], [1, 3, 3], [2, 1, 1]]
    assert found == [{**row, "final": final} for row, final in zip(LAST, finals, strict=True)]


def test_the_adapter_sees_true_successors() -> None:
    adapter = EnvAdapter(rl.GymTensorVectorEnv(ManiSkillEnv(), "agent"))
    adapter.reset()
    seen = []
    for _ in range(3):
        step = adapter.step(adapter.to_env(ACTION))
        seen.append((adapter.obs["qpos"][:, 1].tolist(), step.next_obs["qpos"][:, 1].tolist()))
        adapter.advance()
    assert seen == [([0, 0, 0], [1, 1, 1]), ([1, 1, 1], [2, 2, 2]), ([0, 2, 2], [1, 3, 3])]


def test_ppo_trains_on_them() -> None:
    envs = rsl_rl(MjlabEnv(), "policy")
    policy = rl.ActorCritic.for_envs(envs, hidden_sizes=(8,))
    params = rl.OnPolicyTrainerParams(
        training_collector=rl.Collector(policy, envs), max_epochs=1, epoch_num_steps=48,
        collection_step_num_env_steps=24, batch_size=24, seed=1,
    )  # fmt: skip
    trainer = rl.OnPolicyTrainer(rl.PPO(policy), params)
    trainer.run()
    assert trainer.state.counters.env_step == 48


# Spaces


def test_groups_and_their_spaces() -> None:
    box = Box(-np.inf, np.inf, (2,), np.float32)
    assert rsl_rl(MjlabEnv(), "policy").single_observation_space == box
    assert rsl_rl(PlaygroundEnv()).single_observation_space == box
    both = rsl_rl(MjlabEnv())
    space = both.single_observation_space
    assert space == gym.spaces.Dict({"policy": box, "critic": Box(-np.inf, np.inf, (1,), np.float32)})
    assert both.observation_space["policy"].shape == (3, 2)
    obs = both.step(ACTION)[0]
    assert {name: leaf.dtype for name, leaf in obs.items()} == {"policy": torch.float32, "critic": torch.float32}
    assert list(rsl_rl(MjlabEnv(), ["critic"]).single_observation_space) == ["critic"]
    picture = rl.GymTensorVectorEnv(ManiSkillEnv(), "rgb")
    assert picture.single_observation_space == Box(0, 255, (1, 2), np.uint8)
    assert picture.reset()[0].dtype == torch.uint8


def test_attributes() -> None:
    envs = rsl_rl(MjlabEnv(), "policy")
    assert (envs.num_envs, envs.device) == (3, torch.device("cpu"))
    assert envs.metadata == {"autoreset_mode": AutoresetMode.SAME_STEP}
    assert envs.single_action_space == Box(-np.inf, np.inf, (2,), np.float32)
    assert envs.action_space.shape == (3, 2)
    assert rsl_rl(MjlabEnv(), clip_actions=2).single_action_space == Box(-2, 2, (2,), np.float32)
    bounds = np.array([1, 2], np.float32)
    assert rsl_rl(MjlabEnv(), clip_actions=(1, 2)).single_action_space == Box(-bounds, bounds)
    assert rl.GymTensorVectorEnv(ManiSkillEnv()).single_action_space == Box(-1, 1, (2,), np.float32)
    bounded = rl.GymTensorVectorEnv(ManiSkillEnv(), action_space=Box(-3, 3, (2,), np.float32))
    assert bounded.action_space == Box(-3, 3, (3, 2), np.float32)


def test_seeds_and_the_end() -> None:
    for env in (MjlabEnv(), GenesisEnv(), PlaygroundEnv()):
        envs = rsl_rl(env)
        envs.reset(seed=7)
        assert env.seeds == ([7] if type(env) is MjlabEnv else [])
        envs.close()
        assert env.is_closed == (type(env) is not GenesisEnv)
    single = ManiSkillEnv()
    envs = rl.GymTensorVectorEnv(single)
    envs.reset(seed=7)
    assert single.simulator.seeds == [None, 7]
    envs.close()
    assert single.simulator.is_closed


# Errors


def test_the_choice_has_to_be_made() -> None:
    with pytest.raises(ParamsError) as error:
        rl.RslRlVectorEnv(MjlabEnv())
    assert str(error.value) == (
        'RslRlVectorEnv.final_obs: must be "extras" or "last": most envs of rsl_rl return no final observations; got '
        'None (NoneType). With "last" the last observation, on which the policy acted, is taken for an episode\'s '
        "final one."
    )
    with pytest.raises(ParamsError, match=r"GymTensorVectorEnv.final_obs: must be one of 'info', 'last'; got None"):
        rl.GymTensorVectorEnv(ManiSkillEnv(), final_obs=None)  # type: ignore[arg-type]


def test_a_final_observation_that_is_missing() -> None:
    envs = rl.GymTensorVectorEnv(IsaacLabGymEnv())
    assert envs.step(ACTION)[4]["final_obs"][:, 1].tolist() == [1, 1, 1]
    with pytest.raises(EnvError) as error:
        envs.step(ACTION)
    assert str(error.value) == (
        'GymTensorVectorEnv: an episode ended, but its info has no "final_obs". With final_obs="last" the last '
        "observation, on which the policy acted, is taken for it."
    )


@pytest.mark.parametrize(("kind", "groups", "text"), [
    (MjlabEnv, "actor", "must name groups of the observation, of which there are ['policy', 'critic']; got 'act"),
    (MjlabEnv, ["policy", "actor"], "['policy', 'critic']; got ['policy', 'actor'] (list)"),
    (MjlabEnv, [], "['policy', 'critic']; got [] (list)"),
    (GenesisEnv, "policy", "of which there are []; got 'policy' (str)"),
])  # fmt: skip
@pytest.mark.filterwarnings("ignore:RslRlVectorEnv")
def test_groups_that_there_are_not(kind: Any, groups: Any, text: str) -> None:
    with pytest.raises(SpaceError, match=f"RslRlVectorEnv.obs_groups: .*{re.escape(text)}"):
        rl.RslRlVectorEnv(kind(), groups, final_obs="last")


@pytest.mark.filterwarnings("ignore:RslRlVectorEnv")
def test_envs_of_another_kind() -> None:
    single = gym.make("CartPole-v1")
    with pytest.raises(ParamsError, match="RslRlVectorEnv.env: must have num_actions, get_observations; got "):
        rl.RslRlVectorEnv(single, final_obs="last")
    with pytest.raises(ParamsError, match="GymTensorVectorEnv.env: must have num_envs, step; got .*no attribute"):
        rl.GymTensorVectorEnv(single)
    with pytest.raises(SpaceError, match=r"GymTensorVectorEnv.env: must return tensors; got .* rl.make_vec takes"):
        rl.GymTensorVectorEnv(gym.make_vec("CartPole-v1", 2))
    with pytest.raises(ParamsError, match=r"RslRlVectorEnv.clip_actions: must be a positive finite number.*got -1"):
        rl.RslRlVectorEnv(MjlabEnv(), final_obs="last", clip_actions=-1)
    with pytest.raises(ParamsError, match=r"RslRlVectorEnv.clip_actions: must be a positive finite number.*got -1"):
        rl.RslRlVectorEnv(MjlabEnv(), final_obs="extras", clip_actions=[1, -1])
    with pytest.raises(ParamsError, match=r"RslRlVectorEnv.clip_actions: must have 2 bounds; got \[1\]"):
        rl.RslRlVectorEnv(MjlabEnv(), final_obs="extras", clip_actions=[1])
