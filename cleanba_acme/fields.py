"""Fields of config dataclasses, which know their help and what they allow.

    @dataclasses.dataclass(frozen=True)
    class Config:
      discount: float = fields.field(0.99, 'Discount factor.', low=0, high=1)

      def __post_init__(self):
        fields.check(self)

Imports nothing heavy: scripts make their flags of these.
"""

import dataclasses
import math
import typing
from typing import Any, Optional, Sequence


def field(
    default: Any,
    help_text: str,
    *,
    low: Optional[float] = None,
    high: Optional[float] = None,
    above: Optional[float] = None,
    choices: Optional[Sequence[str]] = None,
) -> Any:
  """Returns a dataclass field.

  Args:
    default: Its default value.
    help_text: What it does, for people.
    low: The least value allowed.
    high: The greatest value allowed.
    above: A bound that is not allowed itself.
    choices: All values allowed.
  """
  return dataclasses.field(default=default, metadata={
      'help': help_text, 'low': low, 'high': high, 'above': above,
      'choices': choices})


def basic_type(item: dataclasses.Field) -> Any:
  """Returns the type of a field's values, but for the None of `Optional`."""
  alternatives = typing.get_args(item.type)
  return alternatives[0] if type(None) in alternatives else item.type


def check(config: Any) -> None:
  """Checks every field against its declaration.

  Args:
    config: A dataclass whose fields were made by `field`.

  Raises:
    ValueError: A value is of the wrong type or not allowed; the message begins
      with the field's name and the value.
  """
  for item in dataclasses.fields(config):
    value = getattr(config, item.name)
    problem = _find_problem(value, item)
    if problem:
      raise ValueError(f'{item.name}={value!r}: {problem}')


def _find_problem(value: Any, item: dataclasses.Field) -> Optional[str]:
  """Says what a value must be, None if it is."""
  kind = basic_type(item)
  if value is None and kind is not item.type:
    return None
  if kind in (bool, int, float, str):
    # In Python a bool is an int, which is never what was meant.
    allowed = (int, float) if kind is float else kind
    is_bool = isinstance(value, bool)
    if not isinstance(value, allowed) or is_bool != (kind is bool):
      return f'must be of type {kind.__name__}'
  choices, low, high, above = (
      item.metadata[key] for key in ('choices', 'low', 'high', 'above'))
  if choices is not None and value not in choices:
    return f'must be one of {", ".join(choices)}'
  if kind is float and not math.isfinite(value):
    return 'must be finite'
  if low is not None and value < low:
    return f'must be at least {low}'
  if high is not None and value > high:
    return f'must be at most {high}'
  if above is not None and value <= above:
    return f'must be greater than {above}'
  return None
