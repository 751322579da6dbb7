"""The intervals of a log's rows: a row of a kind is due once so much has passed since the last one."""

from rltrainer.errors import ParamsError, field_error_text
from rltrainer.field_rules import as_python, is_int
from rltrainer.interval import Every, Unit

STEP_UNITS: tuple[Unit, ...] = ("env_step", "gradient_step")
UPDATE_UNITS: tuple[Unit, ...] = ("update_step", "gradient_step")


class Interval:
    """The interval of one kind of row.

    Args:
        owner, field: the logger's class and its argument, for error texts.
        value: what the user gave; None, where it is allowed, leaves it to the trainer and is 1 until `set_default`.
        units: the units that an `Every` may have; an int counts in the first.
        may_be_none: whether None is allowed.

    Raises:
        ParamsError: the value is neither a positive integer nor an `Every` in one of `units`.
    """

    def __init__(
        self, owner: str, field: str, value: int | Every | None, units: tuple[Unit, ...], may_be_none: bool = False
    ) -> None:
        value = as_python(value)
        is_count = is_int(value) and value > 0
        self.is_default = value is None and may_be_none
        if not (is_count or self.is_default or (isinstance(value, Every) and value.unit in units)):
            words = " or ".join(f"{unit.replace('_', ' ')}s" for unit in units)
            rule = f"must be a positive integer or an Every in {words}"
            raise ParamsError(field_error_text(owner, field, rule + (", or None" if may_be_none else ""), value))
        self.owner, self.field, self.value = owner, field, value
        self.every = value if isinstance(value, Every) else Every(value or 1, units[0])
        self.last: int | None = None
        """Position of the last row; None before the first."""

    def set_default(self, every: Every) -> None:
        """Take this interval where the user gave none."""
        if self.is_default:
            self.every = every

    def is_due(self, position: int) -> bool:
        """Return whether the interval was crossed since the last row; the first row is always due."""
        last, n = self.last, self.every.n
        # A position behind the last row's: another run began with the same logger.
        return last is None or position < last or position // n > last // n

    def check_unit(self, unit: Unit) -> None:
        """Raise a `ParamsError` for an `Every` in another unit than the trainer's log counts; an int fits any."""
        if isinstance(self.value, Every) and self.value.unit != unit:
            words = unit.replace("_", " ")
            rule = f"must be an integer or an Every in {words}s, which this trainer counts"
            raise ParamsError(field_error_text(self.owner, self.field, rule, self.value))
