"""What a user of several agents gets wrong is named: the field, the agent, what was expected and what came."""

import sys
from functools import partial
from typing import Any

import gymnasium as gym
import numpy as np
import pytest

import rltrainer as rl
from rltrainer.errors import CheckpointError, EnvError, MissingExtraError, ParamsError, SpaceError
from tests.unit.envs.agents.teams import BOX, Visitors
from tests.unit.tools.refusals import error_text


class OneDiffers(Visitors):
    """Agent b observes, or may do, something else."""

    def __init__(self, kind: str) -> None:
        super().__init__()
        self.kind = kind

    def observation_space(self, agent: str) -> Any:
        other = gym.spaces.Box(-1.0, 1.0, (2,))
        return other if (agent, self.kind) == ("b", "observation_space") else BOX

    def action_space(self, agent: str) -> Any:
        return gym.spaces.Discrete(5 if (agent, self.kind) == ("b", "action_space") else 2)


class Turns:
    """As an AEC env looks."""

    possible_agents = ("a", "b")

    def agent_iter(self) -> None: ...


class Wrong(Visitors):
    """Returns something else in its second step.

    Args:
        place: which of the five dicts, or 5 for `agents`.
        value: of agent b there; "missing" leaves it out.
    """

    def __init__(self, place: int, value: Any) -> None:
        super().__init__()
        self.wrong, self.value = place, value

    def step(self, actions: dict[str, Any]) -> Any:
        result = super().step(actions)
        if self.num_steps == 2:
            if self.wrong == 5:
                self.agents.append(self.value)
            elif isinstance(self.value, str):
                del result[self.wrong]["b"]
            else:
                result[self.wrong]["b"] = self.value
        return result


class Empty(Visitors):
    """Nobody is there after a reset."""

    def reset(self, seed: Any = None, options: Any = None) -> Any:
        result = super().reset(seed)
        self.agents = []
        return result


class Nameless(Visitors):
    """Has no agents."""

    def __init__(self) -> None:
        super().__init__()
        self.possible_agents = []


CARTPOLE = gym.make("CartPole-v1")


@pytest.mark.parametrize(("kind", "first", "other"), [
    ("observation_space", "Box(-1000.0, 1000.0, (3,), float32)", "Box(-1.0, 1.0, (2,), float32)"),
    ("action_space", "Discrete(2)", "Discrete(5)"),
])  # fmt: skip
@pytest.mark.parametrize("backend", ["sync", "workers"])
def test_unequal_spaces(kind: str, first: str, other: str, backend: Any) -> None:
    text = error_text(SpaceError, lambda: rl.AgentsAsEnvs(partial(OneDiffers, kind), 1, backend=backend))
    assert text == (
        f"AgentsAsEnvs.env: the agents' spaces must be equal, as they share a policy; {kind} of 'a' is {first}, of 'b' "
        f"{other}. Pad them in a wrapper, or use rl.JointEnv."
    )
    assert rl.JointEnv(OneDiffers(kind)).agents == ("a", "b")


class Named(Visitors):
    def observation_space(self, agent: str) -> Any:
        return gym.spaces.Dict({"agent": BOX})


ONE = Visitors()
NO_ENV = "env: must be a PettingZoo parallel env; got "


@pytest.mark.parametrize(("arguments", "text"), [
    ({"env": Turns}, f"{NO_ENV}<tests.unit.envs.agents.test_what_goes_wrong.Turns object> (Turns). Agents of an "
     "AEC env act in turn: use the module's parallel_env, or pettingzoo.utils.aec_to_parallel."),
    ({"env": lambda: Visitors}, f"{NO_ENV}<class 'tests.unit.envs.agents.teams.Visitors'> (type). Call it: this "
     "is what makes one."),
    ({"env": lambda: 3}, f"{NO_ENV}3 (int)"),
    ({"env": lambda: CARTPOLE}, f"{NO_ENV}{CARTPOLE} (TimeLimit). An env of one agent goes to rl.make_vec."),
    ({"env": Nameless}, "env.possible_agents: must name at least one agent; got [] (list)"),
    ({"env": lambda: ONE}, "env: must return a new env at each call; it returned one twice"),
    ({"env": ONE}, "env: must be a factory of PettingZoo parallel envs; got <tests.unit.envs.agents.teams."
     "Visitors object> (Visitors). Each copy is an env of its own."),
    ({"num_copies": 0}, "num_copies: must be a positive integer; got 0 (int)"),
    ({"agent_id": 1}, "agent_id: must be True or False; got 1 (int)"),
    ({"env": Named, "agent_id": True}, "agent_id: must be False, as observations have a leaf 'agent' already; got "
     "True (bool)"),
    ({"seed": -1}, "seed: must be a non-negative integer or None; got -1 (int)"),
    ({"backend": "native"}, "backend: must be one of 'sync', 'workers'; got 'native' (str)"),
])  # fmt: skip
def test_arguments(arguments: dict[str, Any], text: str) -> None:
    given = {"env": Visitors, "num_copies": 2} | arguments
    assert error_text((ParamsError, SpaceError), lambda: rl.AgentsAsEnvs(**given)) == f"AgentsAsEnvs.{text}"
    if text.startswith((NO_ENV, "env.possible")):
        assert error_text(ParamsError, lambda: rl.JointEnv(given["env"]())) == f"JointEnv.{text}"


def test_nobody_is_there() -> None:
    text = error_text(EnvError, rl.AgentsAsEnvs(Empty, 2).reset)
    rule = "the env has no agents after its reset: env.agents is empty"
    assert text == f"env 0 failed during reset after 0 steps: EnvError: {rule}"


@pytest.mark.parametrize("module", ["pettingzoo", "mpe2"])
def test_a_missing_extra(module: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, module, None)

    def make() -> Any:
        return __import__(module)

    text = error_text(MissingExtraError, lambda: rl.AgentsAsEnvs(make, 2))
    assert text.startswith("AgentsAsEnvs.env: the factory needs a package that is not installed: import of ")
    assert text.endswith('Run: pip install "rltrainer[pettingzoo]"')
    text = error_text(EnvError, lambda: rl.AgentsAsEnvs(lambda: __import__("no_such_package"), 2))
    assert text == "env 0: the factory raised ModuleNotFoundError: No module named 'no_such_package'"


MISSING = "missing in the {} of step 2 of the episode; they are those of 'a'"


@pytest.mark.parametrize(("place", "value", "error", "text"), [
    (0, "missing", EnvError, f"agent 'b': {MISSING.format('observations')}"),
    (1, "missing", EnvError, f"agent 'b': {MISSING.format('rewards')}"),
    (2, "missing", EnvError, f"agent 'b': {MISSING.format('terminations')}"),
    (3, "missing", EnvError, f"agent 'b': {MISSING.format('truncations')}"),
    (5, "c", EnvError, "agent 'c' is in env.agents, but not in possible_agents: 'a', 'b'"),
    (0, np.zeros(2, np.float32), SpaceError, "agent 'b' obs: expected float32 (3,), got float32 (2,)"),
    (1, np.zeros(2), SpaceError, "agent 'b' reward: expected a number, got float64 (2,)"),
    (1, None, SpaceError, "agent 'b' reward: expected a number, or one per agent, got NoneType None"),
    (2, 0, SpaceError, "agent 'b' terminations: expected bool, got int 0"),
    (4, [1], SpaceError, "agent 'b' info: expected a dict, got list [1]"),
])  # fmt: skip
def test_what_an_env_returns(place: int, value: Any, error: type[Exception], text: str) -> None:
    envs = rl.AgentsAsEnvs(partial(Wrong, place, value), 2)
    envs.reset(seed=1)
    envs.step(np.zeros(4, np.int64))
    prefix = "env 0 failed during step 2: EnvError: " if error is EnvError else ""
    assert error_text(error, lambda: envs.step(np.zeros(4, np.int64))).startswith(prefix + text)  # then a hint, perhaps


def test_steps_and_resets() -> None:
    envs = rl.AgentsAsEnvs(Visitors, 2)
    assert (
        error_text(EnvError, lambda: envs.step(np.zeros(4, np.int64))) == "EnvAdapter.step: reset must be called first"
    )
    envs.reset(seed=1)
    text = error_text(ParamsError, lambda: envs.step(np.zeros(3, np.int64)))
    assert text.startswith("AgentsAsEnvs.step.actions: must have shape (4,); got ")
    text = error_text(ParamsError, lambda: envs.reset(options={"reset_mask": np.ones(4, np.bool_)}))
    assert text.startswith("AgentsAsEnvs.reset.options: must be None: all rows are reset together; got ")
    text = error_text(ParamsError, lambda: envs.reset(seed=[1, 2, 3, 4]))  # type: ignore[arg-type]
    assert text.startswith("AgentsAsEnvs.reset.seed: must be a non-negative integer or None; got ")


def test_what_rows_cannot_do(tmp_path: Any) -> None:
    envs = rl.AgentsAsEnvs(Visitors, 2)
    collector = rl.Collector(rl.ActorCritic.for_envs(envs), envs)
    text = error_text(ParamsError, lambda: collector.record_episodes(tmp_path))
    assert "must be False for envs whose episodes do not follow from their seeds and actions alone" in text
    text = error_text(ParamsError, lambda: rl.BatchedCollector(collector.policy, envs))
    assert "BatchedCollector" in text


@pytest.mark.parametrize("backend", ["sync", "workers"])
def test_a_state_of_other_envs(backend: Any) -> None:
    states = []
    for num_copies in (2, 3):
        envs = rl.AgentsAsEnvs(Visitors, num_copies, backend=backend)
        envs.reset(seed=1)
        states.append(envs.state_dict())
        envs.close()
    envs = rl.AgentsAsEnvs(Visitors, 2)
    text = error_text(CheckpointError, lambda: envs.load_state_dict(states[1]))
    assert text == "adapter.envs.returns: expected float64 (2, 2), found float64 (3, 2)"
    text = error_text(CheckpointError, lambda: envs.load_state_dict({}))
    assert text == "adapter.envs.adapter: missing in the saved state"
