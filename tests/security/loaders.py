"""Everything that reads a file, each with a way to damage what it reads, for the fast and the slow fuzz."""

import contextlib
import dataclasses
import functools
import hashlib
import json
import time
import warnings
from collections.abc import Callable
from pathlib import Path
from random import Random
from typing import Any

import gymnasium as gym
import numpy as np
import torch

import rltrainer as rl
from rltrainer.checkpoint import CheckpointStore, read_checkpoint, write_checkpoint
from rltrainer.checkpoint.folder import _checksum
from rltrainer.checkpoint.store import live_state
from rltrainer.data import buffer_state
from rltrainer.errors import RLTrainerError
from rltrainer.hooks import BatchRecorder
from rltrainer.state.state_file import read_state, write_state
from tests.resume.runs import BOX, build, digest, short_episodes
from tests.security.mutations import in_place_of, mutated, signed, with_other_text, with_other_value

READERS: list[Callable[[Path], object]] = [
    rl.load, rl.load_policy, rl.ReplayBuffer.load, rl.PrioritizedReplayBuffer.load, BatchRecorder.load,
    lambda path: build("ppo").algorithm.load(path), lambda path: build("ppo").algorithm.policy.load(path),
]  # fmt: skip
"""Functions that read a file, and name it in their errors."""
MAX_SECONDS = 10.0
"""Of one load, on a busy machine."""


@dataclasses.dataclass
class Loader:
    """A way to read files: `write` damages them, `load` reads them and returns a digest of what they held.

    Of what is sealed by a checksum, nothing else than what was written is ever accepted.
    """

    name: str
    """Of what is read, and behind a comma of the way to damage it."""
    write: Callable[[Random], None]
    load: Callable[[], str]
    is_sealed: bool
    expected: str = ""

    @property
    def reader(self) -> str:
        """What is read."""
        return self.name.split(", ")[0]

    def try_one(self, random: Random) -> str:
        """Damage and load once; return "refused", "same" or "other", and raise about anything else."""
        self.write(random)
        began = time.perf_counter()
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            try:
                found = self.load()
            except RLTrainerError:
                return "refused"
            finally:
                seconds = time.perf_counter() - began
                assert seconds < MAX_SECONDS, f"{self.name}: {seconds:.1f} s"
        outcome = "same" if found == self.expected else "other"
        assert outcome == "same" or not self.is_sealed, f"{self.name}: accepted other contents"
        return outcome


def digest_of(value: Any) -> str:
    """Return a hash of tensors, arrays and plain values in dicts and lists."""
    hasher = hashlib.sha256()

    def feed(value: Any) -> None:
        if isinstance(value, dict):
            for key in sorted(value):
                hasher.update(repr(key).encode())
                feed(value[key])
        elif isinstance(value, list | tuple):
            for item in value:
                feed(item)
        elif isinstance(value, torch.Tensor):
            array = value.detach().contiguous().numpy()
            hasher.update(repr((array.dtype, array.shape)).encode() + array.tobytes())
        elif dataclasses.is_dataclass(value) and not isinstance(value, type):
            feed({field.name: getattr(value, field.name) for field in dataclasses.fields(value)})
        else:
            hasher.update(repr(value).encode())

    feed(value)
    return hasher.hexdigest()


def make_algorithm() -> Any:
    rl.seed(1)
    space = gym.spaces.Dict(a=gym.spaces.Box(-1, 1, (3,)), b=gym.spaces.Discrete(3))
    policy = rl.SquashedActorCritic(space, gym.spaces.Box(-1, 1, (2,)), hidden_sizes=(4,), normalize_obs=True)
    return rl.SAC(policy, rl.SACParams(lr=rl.LinearSchedule(1e-3), n_step=2))


def make_buffer(cls: Any = rl.PrioritizedReplayBuffer) -> Any:
    """Return one that has wrapped around, with ends of episodes, extras and a tree of observations."""
    space = gym.spaces.Dict(a=gym.spaces.Box(-1, 1, (2,)), b=gym.spaces.Tuple([gym.spaces.Discrete(5, start=1)]))
    buffer = cls(12, space, gym.spaces.Discrete(3), num_envs=2, seed=3, extra={"x": ((2,), torch.float16)})
    rng = np.random.default_rng(0)
    for step in range(9):
        obs, after = ({"a": rng.random((2, 2), np.float32), "b": (rng.integers(1, 6, 2),)} for _ in range(2))
        ends = np.array([step % 3 == 2, step % 4 == 3])
        extra = {"x": rng.random((2, 2), np.float32)}
        buffer.add(obs, rng.integers(0, 3, 2), rng.random(2), after, ends, np.zeros(2, np.bool_), extra)
        buffer.end_trajectory()
    return buffer


def use_buffer(buffer: Any) -> str:
    """Sample, and return a digest of all that it holds; what it holds may be used as it is."""
    found = digest_of(buffer.state_dict())
    if len(buffer):
        batch = buffer.sample(8, n_step=3)
        buffer.update_priorities(batch.index, batch.reward.nan_to_num(0.0, 0.0, 0.0).clamp(-9, 9))
    return found


def of_file(name: str, path: Path, load: Callable[[], str]) -> list[Loader]:
    """Return three ways to damage a state file: bytes; texts, with the checksum made anew; values."""
    data = path.read_bytes()
    kind = json.loads(data[8 : 8 + int.from_bytes(data[:8], "little")])["__metadata__"]["rltrainer"]
    state = read_state(path, kind, rl.errors.CheckpointError)

    def write_value(random: Random) -> None:
        changed: Any = None
        while not isinstance(changed, dict):
            changed = with_other_value(random, state)
        write_state(path, kind, changed)

    def write_signed(random: Random) -> None:
        path.write_bytes(signed(_texts(random, data)))

    return [
        Loader(name, write_mutated(path, data), load, is_sealed=True),
        Loader(f"{name}, signed", write_signed, load, is_sealed=False),
        Loader(f"{name}, values", write_value, load, is_sealed=False),
    ]


def write_mutated(path: Path, data: bytes) -> Callable[[Random], None]:
    """Return what writes damaged bytes into a file."""

    def write(random: Random) -> None:
        path.write_bytes(mutated(random, data))

    return write


def _texts(random: Random, data: bytes) -> bytes:
    return with_other_text(random, data) if random.random() < 0.7 else mutated(random, data)


RUNS = ["ppo", "recurrent_ppo", "sac_mixed", "c51", "offline_sac_prioritized", "sac_async", "sac_batched"]


def other_collector(name: str, params: Any) -> Any:
    """Return an asynchronous or a batched collector for a run whose params have a plain one."""
    policy = params.training_collector.policy
    buffer = rl.ReplayBuffer(34, policy.observation_space, policy.action_space, num_envs=2)
    if name.endswith("_batched"):
        return rl.BatchedCollector(policy, short_episodes(2, BOX, in_workers=True), buffer)
    return rl.AsyncCollector(policy, functools.partial(short_episodes, 1, BOX), 2, buffer, start_method="fork")


def make_run(name: str, folder: Path) -> Any:
    """Return a trainer after an epoch; that of "ppo" has a logger and hooks."""
    trainer: Any = build(name.removesuffix("_async").removesuffix("_batched"))
    more: dict[str, Any] = {"runtime": rl.RuntimeParams(compile=False)}
    if name.endswith(("_async", "_batched")):
        more["training_collector"] = other_collector(name, trainer.params)
    if name == "ppo":
        more["hooks"] = [rl.LogScalar("reward"), rl.RewardNormalizer(), rl.EarlyStopping("loss")]
        more["logger"] = rl.JSONLinesLogger(folder / "ppo.jsonl", training_interval=1)
    trainer = dataclasses.replace(trainer.params, **more).create_trainer(trainer.algorithm)
    trainer.reset()
    trainer.execute_epoch()
    return trainer


def restoring(trainer: Any, path: Path) -> Callable[[], str]:
    """Return what restores a trainer: refused, it changes nothing; accepted, it trains on, or says why it cannot."""
    whole, now = "", digest(trainer)

    def load() -> str:
        nonlocal whole, now
        before, now = now, ""
        try:
            trainer.restore(path)
        except BaseException:
            now = digest(trainer)
            assert now == before, "a refused restore changed something"
            raise
        found = now = digest(trainer)
        whole = whole or found
        if found != whole:
            for go_on in (trainer.execute_epoch, trainer.algorithm.check_faults):
                with contextlib.suppress(RLTrainerError):
                    go_on()
            now = digest(trainer)
        return found

    return load


def of_values(name: str, folder: Path) -> Loader:
    """Return the way to damage values in a checkpoint of a run."""
    trainer, path = make_run(name, folder), folder / f"{name} run"
    trainer.save(path)
    states = read_checkpoint(path)

    def write(random: Random) -> None:
        part, changed = random.choice(sorted(states)), None
        while not isinstance(changed, dict):
            changed = with_other_value(random, states[part])
        write_checkpoint(path, states | {part: changed}, overwrite=True)

    return Loader(f"signed member, values of {name}", write, restoring(trainer, path), is_sealed=False)


def of_members(path: Path, members: list[Path], entries: Callable[[Any], Any], load: Any, behind: str) -> list[Loader]:
    """Return the ways to damage a checkpoint and its members: manifest, members, members with manifests made anew.

    `entries` returns the members' entries of a manifest, `behind` is behind the names of members.
    """
    files = {file: file.read_bytes() for file in (*path.iterdir(), *members)}
    manifest, put = path / "manifest.json", in_place_of(files)

    def write_manifest(random: Random) -> None:
        put({manifest: mutated(random, files[manifest])})

    def write_member(random: Random) -> None:
        member = random.choice(members)
        put({member: mutated(random, files[member])})

    def write_signed(random: Random) -> None:
        member = random.choice(members)
        changed, plain = signed(_texts(random, files[member])), json.loads(files[manifest])
        entries(plain)[member.name] = {"size": len(changed), "sha256": hashlib.sha256(changed).hexdigest()}
        put({member: changed, manifest: signed_manifest(plain)})

    def write_order(random: Random) -> None:
        plain = json.loads(files[manifest])
        found = dict(entries(plain))
        order = random.sample(sorted(found), k=random.choice([len(found), random.randrange(len(found))]))
        entries(plain).clear()
        entries(plain).update((name, found[name]) for name in order)
        put({manifest: signed_manifest(plain)})

    loaders = [
        Loader("manifest, of a run" if behind else "manifest", write_manifest, load, is_sealed=True),
        Loader(f"member{behind}", write_member, load, is_sealed=True),
        Loader(f"signed member{behind}", write_signed, load, is_sealed=False),
    ]
    return [*loaders, Loader(f"signed member{behind} in another order", write_order, load, False)][: 4 if behind else 3]


def signed_manifest(plain: dict[str, Any]) -> bytes:
    """Return the bytes of a manifest whose checksum fits."""
    plain.pop("checksum")
    return json.dumps(plain | {"checksum": _checksum(plain)}).encode()


def of_checkpoint(folder: Path) -> list[Loader]:
    """Return the ways to damage a checkpoint, and the values in those of several runs."""
    trainer, path = make_run("dqn_prioritized", folder), folder / "checkpoint"
    trainer.save(path)
    members = sorted(set(path.iterdir()) - {path / "manifest.json"})
    found = of_members(path, members, lambda plain: plain["files"], restoring(trainer, path), "")
    return [*found, *(of_values(name, folder) for name in ("dqn_prioritized", *RUNS))]


def of_run(folder: Path) -> list[Loader]:
    """Return the ways to damage a checkpoint that shares files of rows with others."""
    trainer = make_run("sac", folder)
    path = write_run(trainer, folder / "of a run")
    rows = sorted((path.parent / "rows").iterdir())
    assert len(rows) > 2
    return of_members(path, rows, lambda plain: plain["rows"]["buffer"], restoring(trainer, path), ", rows")


def write_run(trainer: Any, directory: Path) -> Path:
    """Save the run of an off-policy trainer, with its buffer in several files, and return the checkpoint."""
    trainer.save(directory / "alone")
    store = CheckpointStore(directory / "run", 1, 0)
    store.open()
    before, buffer_state.MAX_NBYTES = buffer_state.MAX_NBYTES, 200
    try:
        parts = read_checkpoint(directory / "alone") | {"buffer": live_state(trainer.params.buffer)}
        store.save(parts, 1, None)
    finally:
        buffer_state.MAX_NBYTES = before
    store.close()
    found = store.open_newest()
    assert found is not None
    return found.path


PROGRESS: Any = {
    "epoch": 1, "env_step": 100, "update_step": 2, "gradient_step": 32, "best_score": 0.25, "best_return": 21.5,
    "best_return_std": None, "best_epoch": 0, "is_stopped": 0,
}  # fmt: skip


def of_logs(folder: Path) -> list[Loader]:
    found = []
    for name, cls in (("log.jsonl", rl.JSONLinesLogger), ("log.csv", rl.CSVLogger), ("log", rl.TensorBoardLogger)):
        path = folder / name
        logger: Any = cls(path)
        for epoch in (1, 2):
            logger.log("test", {"score": float(epoch)}, 100 * epoch)
            logger.log_epoch(PROGRESS | {"epoch": epoch, "env_step": 100 * epoch})
        logger.close()
        file = path if cls is rl.JSONLinesLogger else next(folder.rglob(f"*{cls.__name__[:3].lower()}*.progress.json"))

        def load(cls: Any = cls, path: Path = path) -> str:
            return repr(cls(path).read_progress())

        found.append(Loader(name, write_mutated(file, file.read_bytes()), load, is_sealed=False))
    return found


def of_params(folder: Path) -> list[Loader]:
    params = [
        rl.PPOParams(lr=rl.CosineSchedule(1e-3)),
        rl.UpdateParams(max_grad_norm=1.0, grad_norm_type=float("inf")),
        rl.RuntimeParams(num_threads=2),
    ]
    current: dict[str, Any] = {}

    def write(random: Random) -> None:
        current["params"] = random.choice(params)
        current["text"] = mutated(random, current["params"].to_json().encode())

    def load() -> str:
        text = current["text"]
        found = type(current["params"]).from_json(text if len(text) % 2 else text.decode(errors="replace"))
        return "same" if found == current["params"] else str(found)

    return [Loader("params JSON", write, load, is_sealed=False)]


def make_loaders(folder: Path) -> dict[str, Loader]:
    """Return all loaders by name; their files are in the folder."""
    algorithm, buffer = make_algorithm(), make_buffer()
    algorithm.save(folder / "algorithm")
    algorithm.policy.save(folder / "policy")
    buffer.save(folder / "buffer")
    batch = buffer.sample(4)
    fields = {field.name: getattr(batch, field.name) for field in dataclasses.fields(batch)}
    write_state(folder / "batch", "batch", {"class": "Transitions", "fields": fields})
    readers: dict[str, Callable[[Path], str]] = {
        "algorithm": lambda path: digest_of(rl.load(path).state_dict()),
        "policy": lambda path: digest_of(dict(rl.load_policy(path).state_dict())),
        "buffer": lambda path: use_buffer(rl.PrioritizedReplayBuffer.load(path)),
        "batch": lambda path: digest_of(BatchRecorder.load(path)),
    }
    found = [
        *(
            each
            for name, read in readers.items()
            for each in of_file(name, folder / name, functools.partial(read, folder / name))
        ),
        *of_checkpoint(folder),
        *of_run(folder),
        *of_logs(folder),
        *of_params(folder),
    ]
    for loader in found:
        loader.expected = "same" if loader.name == "params JSON" else loader.load()
    return {loader.name: loader for loader in found}
