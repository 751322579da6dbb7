"""Methods of other libraries' algorithms, and what does the same here."""

from typing import NoReturn

from rltrainer.errors import NoSuchNameError

_TRAINING = "algorithm.run_training(params) trains, as trainer params say: rl.OnPolicyTrainerParams(...)"
_HERE = {
    "learn": _TRAINING, "fit": _TRAINING, "fit_online": _TRAINING, "train": _TRAINING, "update_online": _TRAINING,
    "predict": "algorithm.policy.predict(obs) does", "compute_action": "algorithm.policy.predict(obs) does",
    "get_action": "algorithm.policy.predict(obs) does", "predict_value": "algorithm.policy has its networks",
    "to": "policy.to(device) does, before the algorithm is built",
    "set_env": "rl.Collector(algorithm.policy, envs) does",
    "get_env": "the collector has them: collector.envs", "env": "the collector has them: collector.envs",
    "set_parameters": "algorithm.load(path) does", "get_parameters": "algorithm.policy.state_dict() does",
    "replay_buffer": "the collector has it: collector.buffer", "save_replay_buffer": "buffer.save(path) does",
    "load_replay_buffer": "rl.ReplayBuffer.load(path) does", "save_model": "algorithm.save(path) does",
    "save_policy": "algorithm.policy.save(path) does, or rl.export_onnx(algorithm, path)",
}  # fmt: skip


def raise_unknown(owner: object, name: str) -> NoReturn:
    """Raise a `NoSuchNameError` that says what is meant here, if that is known."""
    kind = type(owner).__name__
    hint = f" Here {_HERE[name]}." if name in _HERE else ""
    raise NoSuchNameError(f"{kind}.{name}: there is no such attribute.{hint}", name=name, obj=owner)
