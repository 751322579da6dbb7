"""The exceptions that rltrainer raises. Every text names the field, file or env, the rule, the value and one hint."""


class RLTrainerError(Exception):
    """Parent of every exception that rltrainer raises on purpose."""


class ParamsError(RLTrainerError, ValueError):
    """A field of a params object breaks its rule, or two fields contradict each other."""


class SpaceError(RLTrainerError, ValueError):
    """Data, a policy, a buffer or an env does not fit a gymnasium space."""


class CheckpointError(RLTrainerError):
    """A saved trainer or algorithm cannot be written, read, or continued with these params."""


class ReplayBufferError(RLTrainerError):
    """A buffer cannot do what was asked: it is empty, short, damaged, or its data is not usable."""


class EnvError(RLTrainerError):
    """An environment failed; the text names its index and, where known, its step."""


class NonFiniteError(RLTrainerError):
    """NaN or infinity where only finite numbers make sense: an observation, a reward, a loss or a gradient."""


class MissingExtraError(RLTrainerError, ImportError):
    """An optional dependency is not installed; the text names the extra that brings it."""


def field_error_text(owner: str, field: str, rule: str, value: object, hint: str = "") -> str:
    """Return `<owner>.<field>: <rule>; got <value!r> (<type>). <hint>`, the form of every complaint about a value."""
    text = f"{owner}.{field}: {rule}; got {value!r} ({type(value).__name__})"
    return f"{text}. {hint}" if hint else text
