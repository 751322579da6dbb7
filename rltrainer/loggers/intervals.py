"""When a row of a kind is due: its interval, and where the last row was."""

from rltrainer.errors import ParamsError, field_error_text
from rltrainer.every import Every, Unit

STEP_UNITS: tuple[Unit, ...] = ("env_step", "gradient_step")


class Interval:
    """The interval of one kind of row.

    Args:
        owner: the logger's class, for error texts.
        field: the logger's argument, for error texts.
        value: what the user gave.
        units: the units that an `Every` may have; an int counts in the first.

    Raises:
        ParamsError: the value is neither a positive integer nor an `Every` in one of `units`.
    """

    def __init__(self, owner: str, field: str, value: int | Every, *units: Unit) -> None:
        is_int = isinstance(value, int) and not isinstance(value, bool) and value > 0
        if not is_int and not (isinstance(value, Every) and value.unit in units):
            words = " or ".join(f"{unit.replace('_', ' ')}s" for unit in units)
            raise ParamsError(
                field_error_text(owner, field, f"must be a positive integer or an Every in {words}", value)
            )
        self.owner, self.field, self.value = owner, field, value
        self.every = value if isinstance(value, Every) else Every(value, units[0])
        self.last: int | None = None

    def is_due(self, position: int) -> bool:
        """Return whether the interval was crossed since the last row; the first row is always due."""
        # A position behind the last row's: another run began with the same logger.
        return self.last is None or position < self.last or self.every.crossed(self.last, position)

    def check_unit(self, unit: Unit) -> None:
        """Refuse an `Every` in a unit that the trainer's log does not count; an int fits any.

        Raises:
            ParamsError: an `Every` in another unit.
        """
        if isinstance(self.value, Every) and self.value.unit != unit:
            words = unit.replace("_", " ")
            rule = f"must be an integer or an Every in {words}s, which this trainer counts"
            raise ParamsError(field_error_text(self.owner, self.field, rule, self.value))
