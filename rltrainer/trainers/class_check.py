"""The check of what a trainer is given: algorithm and params of the classes that it names."""

from typing import Any

from rltrainer.algorithms import OffPolicyAlgorithm, OnPolicyAlgorithm
from rltrainer.errors import ParamsError, field_error_text


def check_classes(trainer: Any, algorithm: object, params: object) -> None:
    """Raise a `ParamsError` unless algorithm and params are of the classes that the trainer names."""
    name = type(trainer).__name__
    for field, cls, value in (
        ("algorithm", trainer.algorithm_class, algorithm),
        ("params", trainer.params_class, params),
    ):
        if not isinstance(value, cls):
            hint = f"Write {name}(algorithm, {trainer.params_class.__name__}(...))."
            if isinstance(value, OnPolicyAlgorithm):
                hint = "Use OnPolicyTrainer and OnPolicyTrainerParams."
            elif isinstance(value, OffPolicyAlgorithm):
                hint = "Use OffPolicyTrainer and OffPolicyTrainerParams, or OfflineTrainer."
            raise ParamsError(field_error_text(name, field, f"must be of class {cls.__name__}", value, hint))
