"""The packages of loggers to services, which are extras."""

from rltrainer.errors import MissingExtraError


def missing_extra(owner: str, extra: str, error: ImportError) -> MissingExtraError:
    """Return what to raise where a logger cannot import what an extra brings."""
    text = f"{owner} needs a package that is not installed: {error}"
    return MissingExtraError(f'{text}. Run: pip install "rltrainer[{extra}]"')
