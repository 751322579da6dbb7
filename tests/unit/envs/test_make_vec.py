"""The backend that `make_vec` takes, and its errors."""

import importlib.util
import logging
import sys
from functools import partial
from typing import Any

import gymnasium as gym
import numpy as np
import pytest
from gymnasium.envs.classic_control.cartpole import CartPoleVectorEnv

from rltrainer.envs import make_vec
from rltrainer.envs.backends.native import NativeVectorEnv
from rltrainer.envs.backends.sync import SyncVectorEnv
from rltrainer.envs.make_vec import newest_version
from rltrainer.envs.tensors import TENSOR_ENVS
from rltrainer.envs.tensors.classic_control import CartPole
from rltrainer.envs.tensors.tensor_vector_env import TensorVectorEnv
from rltrainer.errors import EnvError, MissingExtraError
from rltrainer.seeding import derive_seed
from tests.unit.envs.scripted import ScriptedEnv


def backend_of(envs: Any) -> str:
    return {SyncVectorEnv: "sync", NativeVectorEnv: "native"}[type(envs)]


@pytest.mark.parametrize(("env", "num_envs", "options", "backend"), [
    ("CartPole-v1", 7, {}, "sync"),
    ("CartPole-v1", 8, {}, "native"),
    ("CartPole-v1", 8, {"max_episode_steps": 9, "sutton_barto_reward": True}, "native"),
    ("CartPole-v1", 8, {"disable_env_checker": False}, "sync"),  # the native one does not know it
    ("CartPole-v1", 8, {"wrappers": [gym.wrappers.TimeAwareObservation]}, "sync"),
    ("Pendulum-v1", 8, {}, "sync"),
    (ScriptedEnv, 8, {}, "sync"),
])  # fmt: skip
def test_auto(env: Any, num_envs: int, options: Any, backend: str, caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.INFO, "rltrainer"):
        envs = make_vec(env, num_envs, **options)
    assert backend_of(envs) == backend
    assert envs.num_envs == num_envs
    name = env if isinstance(env, str) else "ScriptedEnv"
    assert caplog.messages == [f"make_vec: {name} with num_envs={num_envs} runs on backend={backend!r}"]


@pytest.mark.parametrize("backend", ["native", "sync"])
def test_a_backend_that_was_asked_for(backend: str, caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.INFO, "rltrainer"):
        envs = make_vec("CartPole-v1", 2, backend=backend, seed=3, max_episode_steps=5)
    assert backend_of(envs) == backend
    assert caplog.messages == []
    assert envs.base_seed == 3  # type: ignore[attr-defined]  # what make_vec returns has it
    envs.reset()
    ends = [envs.step(np.array([i % 2] * 2))[3].tolist() for i in range(5)]
    assert ends == [[False, False]] * 4 + [[True, True]]


def test_nothing_is_printed(capfd: pytest.CaptureFixture[str]) -> None:
    make_vec("CartPole-v1", 8).close()
    make_vec("CartPole-v1", 2).close()
    assert capfd.readouterr() == ("", "")


def test_native_is_the_envs_own() -> None:
    envs = make_vec("CartPole-v1", 3, backend="native", seed=3)
    assert isinstance(envs.unwrapped, CartPoleVectorEnv)
    expected, _ = CartPoleVectorEnv(3).reset(seed=derive_seed(3, "reset", 0))
    first, again = envs.reset()[0], envs.reset()[0]
    np.testing.assert_array_equal(first, expected)
    assert not np.array_equal(first, again)
    np.testing.assert_array_equal(envs.reset(seed=derive_seed(3, "reset", 0))[0], expected)


@pytest.mark.parametrize("env_id", TENSOR_ENVS)
def test_tensor_takes_ids_that_have_rules(env_id: str) -> None:
    envs = make_vec(env_id, 3, backend="tensor", seed=3)
    assert isinstance(envs, TensorVectorEnv)
    assert (envs.num_envs, envs.base_seed, envs.device.type) == (3, 3, "cpu")
    assert envs.spec is not None
    assert (envs.spec.id, envs.spec.max_episode_steps) == (env_id, TENSOR_ENVS[env_id].max_episode_steps)


def test_tensor_takes_the_newest_version_or_a_factory() -> None:
    envs: Any = make_vec("CartPole", 2, backend="tensor", device="cpu")
    assert envs.spec.id == "CartPole-v1"
    for factory in (CartPole, lambda: CartPole()):
        envs = make_vec(factory, 2, backend="tensor")
        assert isinstance(envs.env, CartPole)
        assert envs.spec is None


def test_wrappers_and_arguments_reach_each_env() -> None:
    wrappers: list[Any] = [gym.wrappers.FlattenObservation, partial(gym.wrappers.TimeLimit, max_episode_steps=3)]
    envs = make_vec("Pendulum-v1", 2, wrappers=wrappers, g=1.0)
    assert envs.get_attr("g") == (1.0, 1.0)  # type: ignore[attr-defined]  # of the sync backend
    outermost = [type(env) for env in envs.envs]  # type: ignore[attr-defined]  # of the sync backend
    assert outermost == [gym.wrappers.TimeLimit] * 2


def missing(**kwargs: Any) -> Any:
    raise gym.error.DependencyNotInstalled("Wheels is not installed, run `pip install wheels`")


@pytest.fixture
def registered() -> Any:
    """Register an env that misses a package, as if it were one of gymnasium's MuJoCo envs, and one of nobody's."""
    package = __name__
    gym.register("Wheels-v0", entry_point=f"{package}:missing", vector_entry_point=missing)
    gym.register("Hull-v0", entry_point="gymnasium.envs.mujoco.no_such_file:Hull")
    yield
    del gym.registry["Wheels-v0"], gym.registry["Hull-v0"]


CANNOT, NEEDS = "CartPole-v1 cannot be made: TypeError: .*wheels", "needs a package that is not installed: "


@pytest.mark.usefixtures("registered")
@pytest.mark.parametrize(("env", "backend", "options", "error", "text"), [
    ("CartPol-v1", "auto", {}, EnvError, r"Environment `CartPol` doesn't exist. Did you mean: `CartPole`\?"),
    ("CartPole-v9", "auto", {}, EnvError, "Environment version `v9` for environment `CartPole` doesn't exist"),
    ("a b", "auto", {}, EnvError, "Malformed environment ID: a b"),
    ("CartPole-v1", "native", {"wheels": 3}, EnvError, CANNOT),
    ("Wheels-v0", "sync", {}, MissingExtraError, f"Wheels-v0 {NEEDS}Wheels is not installed, run .*`.$"),
    ("Wheels-v0", "native", {}, MissingExtraError, f"Wheels-v0 {NEEDS}Wheels is not installed, run .*`.$"),
    ("Hull-v0", "auto", {}, MissingExtraError, rf'Hull-v0 {NEEDS}.* Run: pip install "rltrainer\[mujoco\]"$'),
    ("ALE/Pong-v5", "auto", {}, MissingExtraError, rf'ale_py:ALE/Pong-v5 {NEEDS}.*ale_py.*"rltrainer\[atari\]"'),
    ("no_such_module:Foo-v0", "auto", {}, MissingExtraError,
     f"no_such_module:Foo-v0 {NEEDS}No module named 'no_such_module'"),
])  # fmt: skip
def test_envs_that_cannot_be_made(
    env: str, backend: Any, options: Any, error: type[Exception], text: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "ale_py", None)
    with pytest.raises(error, match=f"^make_vec.env: {text}"):
        make_vec(env, 2, backend=backend, **options)


def test_gymnasiums_advice_is_left_out_where_an_extra_brings_it(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(EnvError, match=r"env 0: the factory raised TypeError: .*wheels"):
        make_vec("Pendulum-v1", 2, wheels=3)
    monkeypatch.setattr(gym, "make", lambda *args, **kwargs: missing())
    text = rf'^make_vec.env: Hopper-v5 {NEEDS}Wheels is not installed. Run: pip install "rltrainer\[mujoco\]"$'
    with pytest.raises(MissingExtraError, match=text):
        make_vec("Hopper-v5", 1, backend="sync")


def test_an_env_of_box2d() -> None:
    if importlib.util.find_spec("Box2D") is None:  # importing it here would hide what its module warns of
        pytest.skip("needs the extra box2d")
    envs = make_vec("LunarLander-v3", 2, seed=1)
    obs, _ = envs.reset()
    assert obs.shape == (2, 8)


@pytest.mark.parametrize("env", ["CartPole", "gymnasium:CartPole", "gymnasium.envs:CartPole-v1"])
def test_an_id_without_a_version_is_the_newest(env: str) -> None:
    envs = make_vec(env, 1)
    assert envs.spec is not None
    assert envs.spec.id == gym.make("CartPole-v1").spec.id  # type: ignore[union-attr]  # it has one
    envs.close()


def test_versions_are_compared_as_numbers() -> None:
    for version in (9, 10):
        gym.register(f"Versions/Of-v{version}", "gymnasium.envs.classic_control:CartPoleEnv")
    assert newest_version("Versions/Of") == "Versions/Of-v10"
    assert newest_version("Versions/Of-v9") == "Versions/Of-v9"
    assert newest_version("no id!") == "no id!"
    gym.register("Versions/None", "gymnasium.envs.classic_control:CartPoleEnv")
    assert newest_version("Versions/None") == "Versions/None"
    for name in ("Of-v9", "Of-v10", "None"):
        del gym.registry[f"Versions/{name}"]
