"""Tests of the learning curve."""

from cleanba_acme.launchers import plot
import matplotlib.image
import pytest

_HEADER = 'update,steps,episode_return\n'


def test_curve_is_drawn(tmp_path):
  progress, image = tmp_path / 'progress.csv', tmp_path / 'returns.png'
  progress.write_text(_HEADER + '1,10,\n2,20,-1\n3,30,1\n')
  assert plot.plot_returns(str(progress), str(image))
  pixels = matplotlib.image.imread(image)[..., :3]
  # There is more than an empty frame in black and white.
  assert (pixels.max(-1) - pixels.min(-1)).max() > 0.2


@pytest.mark.parametrize('rows', ['', '1,10,\n2,20,\n'])
def test_nothing_is_drawn_where_no_episode_ended(rows, tmp_path):
  progress, image = tmp_path / 'progress.csv', tmp_path / 'returns.png'
  progress.write_text(_HEADER + rows)
  assert not plot.plot_returns(str(progress), str(image))
  assert not image.exists()
