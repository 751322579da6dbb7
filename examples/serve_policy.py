"""Serve a policy over HTTP: POST {"obs": ...} to /act, one observation or several, and get {"action": ...}."""

import argparse
import contextlib
import socket
import threading
from typing import Annotated, Any

import httpx
import uvicorn
from fastapi import Body, FastAPI, HTTPException

import rltrainer as rl

parser = argparse.ArgumentParser(description=__doc__)
parser.add_argument("--policy", help="a run, or a saved policy or algorithm; without it, an untrained one")
parser.add_argument("--port", type=int, default=8000, help="0 takes a free one")
parser.add_argument("--short", action="store_true", help="asks itself once, and stops")
args = parser.parse_args()
policy = rl.load_policy(args.policy) if args.policy else rl.ActorCritic.for_envs(rl.make_vec("CartPole-v1", 1))
app = FastAPI()


@app.post("/act")
async def act(obs: Annotated[Any, Body()], state: Annotated[Any, Body()] = None) -> dict[str, Any]:
    try:
        found = policy.predict(obs, state)  # "state" is what a recurrent policy returned with the last action
    except (ValueError, rl.errors.RLTrainerError) as error:
        raise HTTPException(422, str(error)) from error
    named = zip(("action", "state"), found if policy.is_recurrent else [found], strict=False)
    return {name: array.tolist() for name, array in named}


with socket.create_server(("127.0.0.1", 0 if args.short else args.port)) as listener:
    print(url := "http://{}:{}/act".format(*listener.getsockname()), flush=True)
    if args.short:
        threading.Thread(target=lambda: print(httpx.post(url, json={"obs": [0] * 4}, timeout=60).json())).start()
    with contextlib.suppress(KeyboardInterrupt):
        uvicorn.Server(uvicorn.Config(app, limit_max_requests=1 if args.short else None)).run(sockets=[listener])
