"""`examples/serve_policy.py`, started as a program and asked by a client over HTTP on this machine."""

import json
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import httpx
import numpy as np
import pytest
from gymnasium import spaces

import rltrainer as rl

PROGRAM = Path(__file__).parents[2] / "examples" / "serve_policy.py"
BOX = spaces.Box(-2.0, 2.0, (1,))
VECTOR = spaces.Box(-1.0, 1.0, (3,))


@contextmanager
def served(policy: Any, folder: Path) -> Iterator[str]:
    """Yield the address of a server that ends by itself after an interrupt, with the status 0."""
    policy.save(folder / "policy.safetensors")
    command = [sys.executable, PROGRAM, "--policy", folder / "policy.safetensors", "--port", "0"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as server:
        try:
            assert server.stdout is not None
            yield server.stdout.readline().strip()
        finally:
            server.send_signal(signal.SIGINT)
            errors = server.communicate(timeout=60)[1]
    assert (server.returncode, "Traceback" in errors) == (0, False), errors


@pytest.fixture(scope="module")
def policy() -> Any:
    rl.seed(1)
    return rl.ActorCritic(VECTOR, BOX, hidden_sizes=(8,), normalize_obs=True)


@pytest.fixture(scope="module")
def url(policy: Any, tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    with served(policy, tmp_path_factory.mktemp("policy")) as url:
        yield url


def ask(url: str, **question: Any) -> Any:
    answer = httpx.post(url, json=question, timeout=60)
    assert answer.status_code == 200, answer.text
    return answer.json()


def test_one_observation_or_several(policy: Any, url: str) -> None:
    assert url.startswith("http://127.0.0.1:")
    obs = VECTOR.sample()
    np.testing.assert_allclose(ask(url, obs=obs.tolist())["action"], policy.predict(obs), atol=1e-6)
    many = np.stack([VECTOR.sample() for _ in range(7)])
    np.testing.assert_allclose(ask(url, obs=many.tolist())["action"], policy.predict(many), atol=1e-6)


@pytest.mark.parametrize(("body", "text"), [
    (b'{"obs": [0, 0', "JSON decode error"),
    (b"", "Field required"), (b"[1, 2]", "Field required"), (b'{"action": 1}', "Field required"),
    (b'{"obs": [0, 0]}', "ActorCritic.predict: obs: expected float32 (3,), or ('N', 3) for several; got "),
    (b'{"obs": [[0, 0, 0], [0]]}', "ActorCritic.predict: obs: expected an array, got [[0, 0, 0], [0]]"),
    (b'{"obs": {"a": 1}}', "ActorCritic.predict: obs: expected float32 (3,)"),
    (b'{"obs": [0, NaN, 0]}', "ActorCritic.predict: obs: holds NaN or infinity"),
    (b'{"obs": [0, 0, 0], "state": [1]}', "ActorCritic.predict.state: must be None, as it has no memory; got [1]"),
])  # fmt: skip
def test_what_is_no_question(body: bytes, text: str, url: str) -> None:
    answer = httpx.post(url, content=body, headers={"Content-Type": "application/json"}, timeout=60)
    assert answer.status_code == 422
    detail = answer.json()["detail"]
    assert text in (detail if isinstance(detail, str) else detail[0]["msg"])


def test_masks_and_memory(tmp_path: Path) -> None:
    space = spaces.Dict(position=VECTOR, action_mask=spaces.MultiBinary(4))
    policy: Any = rl.RecurrentActorCritic(space, spaces.Discrete(4, start=1), cell_size=4)
    obs = {"position": [0.5, 0.0, -0.5], "action_mask": [0, 1, 1, 0]}
    with served(policy, tmp_path) as url:
        answer, state = {"state": None}, None
        for _ in range(3):
            answer = ask(url, obs=obs, state=answer["state"])
            action, state = policy.predict(obs, state)
            assert answer["action"] == action
            np.testing.assert_allclose(answer["state"], state, atol=1e-6)
        stuck = httpx.post(url, json={"obs": obs | {"action_mask": [0] * 4}}, timeout=60)
    assert (stuck.status_code, "allows no action" in stuck.json()["detail"]) == (422, True)


def test_the_short_form_asks_itself_and_stops(tmp_path: Path) -> None:
    run = subprocess.run(
        [sys.executable, PROGRAM, "--short"], cwd=tmp_path, capture_output=True, text=True, timeout=100, check=False
    )
    assert run.returncode == 0, run.stderr
    answers = [json.loads(line.replace("'", '"')) for line in run.stdout.splitlines() if line.startswith("{")]
    assert answers in ([{"action": 0}], [{"action": 1}])
    assert len(PROGRAM.read_text().splitlines()) <= 40
