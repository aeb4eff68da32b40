"""Tests of config fields that know what they allow."""

import dataclasses
from typing import Optional, Tuple

from cleanba_acme import fields
import pytest


@dataclasses.dataclass(frozen=True)
class _Config:
  """One field of each kind."""
  number: float = fields.field(0.5, 'A number.', low=0, high=1)
  step: float = fields.field(0.1, 'A positive number.', above=0)
  count: int = fields.field(3, 'A count.', low=1)
  flag: bool = fields.field(False, 'A flag.')
  name: str = fields.field('one', 'A choice.', choices=('one', 'two'))
  choice: Optional[bool] = fields.field(None, 'A flag, or a default.')
  sizes: Optional[Tuple[int, ...]] = fields.field(None, 'Sizes.')

  def __post_init__(self):
    fields.check(self)


@pytest.mark.parametrize('values', [
    {}, {'number': 1}, {'number': 0.}, {'count': 1}, {'name': 'two'},
    {'choice': True}, {'choice': False}, {'choice': None}, {'sizes': (1, 2)}])
def test_allowed(values):
  config = _Config(**values)
  for name, value in values.items():
    assert getattr(config, name) == value


@pytest.mark.parametrize('values, message', [
    ({'number': 1.5}, 'number=1.5: must be at most 1'),
    ({'number': -1}, 'number=-1: must be at least 0'),
    ({'number': 'x'}, "number='x': must be of type float"),
    ({'number': True}, 'number=True: must be of type float'),
    ({'number': float('inf')}, 'number=inf: must be finite'),
    ({'number': None}, 'number=None: must be of type float'),
    ({'step': 0.}, 'step=0.0: must be greater than 0'),
    ({'count': 1.}, 'count=1.0: must be of type int'),
    ({'flag': 1}, 'flag=1: must be of type bool'),
    ({'flag': None}, 'flag=None: must be of type bool'),
    ({'name': 'three'}, "name='three': must be one of one, two"),
    ({'choice': 'no'}, "choice='no': must be of type bool"),
])
def test_not_allowed(values, message):
  with pytest.raises(ValueError) as error:
    _Config(**values)
  assert str(error.value) == message


def test_basic_types_are_without_optional():
  types = {item.name: fields.basic_type(item)
           for item in dataclasses.fields(_Config)}
  assert types == {
      'number': float, 'step': float, 'count': int, 'flag': bool, 'name': str,
      'choice': bool, 'sizes': Tuple[int, ...]}
