"""Trains an agent: `python -m cleanba_acme.launchers.train --env=CartPole-v1`.

Reads flags, makes the experiment they describe, and runs it. What is wrong with
them is said before anything starts.
"""

import ast
import dataclasses
import datetime
import functools
import importlib
import importlib.metadata
import os
import platform
import shlex
import sys
import traceback
from typing import Any, Callable, Dict, Sequence, Tuple

from absl import app
from absl import flags
from cleanba_acme import fields as config_fields
from cleanba_acme.agents.impala import config as impala_config
from cleanba_acme.agents.ppo import config as ppo_config
from cleanba_acme.launchers import exits
from cleanba_acme.launchers import interrupts
from cleanba_acme.launchers import isolation
from cleanba_acme.launchers import resources
from cleanba_acme.networks import config as network_config
import fancyflags as ff

# Heavy modules are imported in `main`, so that `--help` and errors come fast.


@dataclasses.dataclass(frozen=True)
class _Agent:
  """An agent that can be trained by name.

  Attributes:
    config: Class of its settings.
    builder: Module and class that take them.
    unroll_length: Its default `--unroll_length`.
    policy_lag: Its default `--policy_lag`.
  """
  config: type
  builder: str
  unroll_length: int
  policy_lag: int


_AGENTS = {
    'ppo': _Agent(
        ppo_config.PPOConfig, 'cleanba_acme.agents.ppo.builder:PPOBuilder',
        unroll_length=128, policy_lag=0),
    'impala': _Agent(
        impala_config.IMPALAConfig,
        'cleanba_acme.agents.impala.builder:IMPALABuilder',
        unroll_length=20, policy_lag=1),
}


class _SizesParser(flags.ArgumentParser):
  """Parses one or more numbers, such as `64` or `64,64`."""

  def parse(self, argument):
    if not isinstance(argument, str):
      return argument
    try:
      value = ast.literal_eval(argument)
    except (SyntaxError, ValueError) as error:
      raise ValueError('must be numbers such as 64 or 64,64') from error
    return tuple(value) if isinstance(value, (list, tuple)) else (value,)

  def flag_type(self):
    return 'sizes'


def _make_sizes(default: Any, help_text: str) -> ff.Item:
  return ff.Item(default, help_text, parser=_SizesParser())


def _make_items(config_classes: Dict[str, type]) -> Dict[str, ff.Item]:
  """Makes a flag for every field of the configs; none has a value by default.
  """
  item_types = {
      float: ff.Float, int: ff.Integer, bool: ff.Boolean, str: ff.String}
  items = {}
  for name, field in {
      field.name: field for config in config_classes.values()
      for field in dataclasses.fields(config)}.items():
    defaults = {
        agent: other.default for agent, config in config_classes.items()
        for other in dataclasses.fields(config) if other.name == name}
    shown = ', '.join(
        f'{agent} {default}'.strip() for agent, default in defaults.items())
    item_type = item_types.get(config_fields.basic_type(field), _make_sizes)
    items[name] = item_type(
        None, f'{field.metadata["help"]} (default: {shown})')
  return items


_AGENT = flags.DEFINE_enum('agent', 'ppo', list(_AGENTS), 'What to train.')
_ENV = flags.DEFINE_string(
    'env', 'CartPole-v1',
    'What to train it on: an id of envpool, "catch", "gymnasium:ID", or '
    '"package.module:function" of your own.')
_ENV_OPTIONS = flags.DEFINE_list(
    'env_options', [],
    'Options of the environment, such as img_height=42,img_width=42.')
_LAST_ACTION_AND_REWARD = flags.DEFINE_bool(
    'last_action_and_reward', False,
    'Show the network the last action and reward beside the observation; of '
    'use with a --network.core.')
_SEED = flags.DEFINE_integer('seed', 1, 'Seed of all randomness of the run.')
_LAUNCH = flags.DEFINE_enum(
    'launch', 'threads', ['threads', 'processes'],
    'Run the workers as threads of one process, or as a Launchpad program of '
    'one process each. The results are the same, bit for bit.')
_CHANNEL = flags.DEFINE_enum(
    'channel', None, ['memory', 'reverb'],
    'How threads hand over data: by reference (the default), or through the '
    'Reverb tables that processes always use.')
_NUM_ACTORS = flags.DEFINE_integer(
    'num_actors', 2, 'Actors, which the environments are split over.')
_NUM_ENVS = flags.DEFINE_integer(
    'num_envs', 128, 'Environments of all actors together.')
_UNROLL_LENGTH = flags.DEFINE_integer(
    'unroll_length', None,
    'Steps of a rollout. Default: ' + ', '.join(
        f'{agent.unroll_length} for {name}' for name, agent in _AGENTS.items()))
_TOTAL_STEPS = flags.DEFINE_integer(
    'total_steps', 50_000_000,
    'Environment steps of the run, over all environments; what is left of them '
    'after the last whole round is not run.')
_POLICY_LAG = flags.DEFINE_integer(
    'policy_lag', None,
    'How many versions the acting policy is behind: 0, or 1 to act and learn '
    'at the same time. Default: ' + ', '.join(
        f'{agent.policy_lag} for {name}' for name, agent in _AGENTS.items()))
_HANDOFF = flags.DEFINE_enum(
    'handoff', 'synchronous', ['synchronous', 'asynchronous'],
    'How actors and learner meet: by the contract, or as is usual, where '
    'actors take the latest version and the learner whatever arrives, so that '
    'results depend on timing. For comparison; needs --launch=threads.')
_XLA_THREADS = flags.DEFINE_integer(
    'xla_threads', None,
    'Threads of XLA\'s pool in every process. Part of the experiment: it '
    'changes the bits of convolutions. Default: the environment variable '
    'NPROC, or 1.')
_THREADS_PER_WORKER = flags.DEFINE_integer(
    'threads_per_worker', None,
    'Threads of each worker for all but XLA: pools of environments, BLAS. '
    'Changes no result. Default: the environment variable OMP_NUM_THREADS, or '
    'the cores over the actors.', lower_bound=1)
_LEARNER_DEVICES = flags.DEFINE_list(
    'learner_devices', ['0'],
    'Devices that share the update, such as 0,1. A CPU is one device, or as '
    'many as XLA_FLAGS=--xla_force_host_platform_device_count=N says.')
_REDUCTION = flags.DEFINE_enum(
    'reduction', 'fast', ['fast', 'invariant'],
    'How gradients are summed: as XLA likes, or so that any number of devices '
    'gives the same bits.')
_CHECKPOINT_EVERY = flags.DEFINE_integer(
    'checkpoint_every', 100,
    'Updates between checkpoints. All environments restart at each, because '
    'they can\'t be saved, so it is part of the experiment.')
_KEEP_CHECKPOINTS = flags.DEFINE_integer(
    'keep_checkpoints', 3, 'How many of the latest checkpoints to keep.',
    lower_bound=1)
_MAX_RESTARTS = flags.DEFINE_integer(
    'max_restarts', 0,
    'How often to go on by itself, from the latest checkpoint, after a worker '
    'failed; needs --launch=processes.')
_HANG_TIMEOUT_S = flags.DEFINE_float(
    'hang_timeout_s', 1800.0,
    'Seconds after which a worker that keeps another one waiting counts as '
    'hung; at least the time of the longest round.')
_ISOLATE_NETWORK = flags.DEFINE_bool(
    'isolate_network', True,
    'Give a run with Reverb a network of its own, which nothing else can '
    'reach: Reverb has no authentication.')
_OUTPUT_DIR = flags.DEFINE_string(
    'output_dir', None,
    'Where the run leaves its files; an interrupted run that is there is gone '
    'on with. Default: results/<env>-<agent>-<seed>-<time>.')
_CONFIG = ff.DEFINE_dict(
    'config', **_make_items(
        {name: agent.config for name, agent in _AGENTS.items()}))
_NETWORK = ff.DEFINE_dict(
    'network', **_make_items({'': network_config.NetworkConfig}))
for _holder, _what in ((_CONFIG, 'agent'), (_NETWORK, 'network')):
  # fancyflags has no argument for it.
  flags.FLAGS[_holder.name].help = (
      f'Settings of the {_what}, by --{_holder.name}.NAME=VALUE.')


def main(
    argv: Sequence[str], change: Callable[[Any], Any] = lambda x: x) -> None:
  """Trains what the flags describe, and exits.

  Args:
    argv: What is left of the command line.
    change: Called with the `Experiment`; returns the one to run in its place.
  """
  if len(argv) > 1:
    raise app.UsageError(f'unexpected arguments: {" ".join(argv[1:])}')
  interrupted = interrupts.Interrupts()
  try:
    status = _train(change, interrupted)
  except BaseException as error:  # pylint: disable=broad-exception-caught
    if interrupted.came:
      pass  # The error is a consequence.
    elif isinstance(error, ValueError):
      print(f'train: {_as_flag(str(error))}', file=sys.stderr)
      status = exits.USER_ERROR
    else:
      failure = exits.NodeFailed(
          'launcher', f'{type(error).__name__}: {error}',
          traceback.format_exc().rstrip())
      print(failure.explain(), file=sys.stderr)
      status = failure.status
  interrupted.can_stop = False
  if interrupted.came:
    status = exits.INTERRUPTED
  # Threads that are still computing must not hold up, or crash, the exit.
  sys.stdout.flush()
  sys.stderr.flush()
  os._exit(status)


def _train(
    change: Callable[[Any], Any], interrupted: interrupts.Interrupts) -> int:
  """Runs what the flags describe; ValueError if they are wrong."""
  agent = _AGENTS[_AGENT.value]
  if _LAUNCH.value == 'processes' and _CHANNEL.value == 'memory':
    raise ValueError(
        '--channel=memory: processes hand over data through Reverb; leave it '
        'out, or use --launch=threads')
  if _HANDOFF.value == 'asynchronous' and (
      _LAUNCH.value != 'threads' or _CHANNEL.value == 'reverb'):
    raise ValueError(
        '--handoff=asynchronous: needs --launch=threads, and --channel=memory')
  config = _make_config('config', agent.config, _CONFIG.value)
  network = _make_config(
      'network', network_config.NetworkConfig, _NETWORK.value)
  xla_threads = _XLA_THREADS.value
  if xla_threads is None:
    xla_threads = _parse_nproc()
  if xla_threads < 1:
    raise ValueError(f'--xla_threads={xla_threads}: must be at least 1')
  if (_CHANNEL.value == 'reverb' and _LAUNCH.value == 'threads'
      and _ISOLATE_NETWORK.value):
    try:
      isolation.enter()
    except isolation.IsolationError as error:
      raise ValueError(
          f'--isolate_network: this system allows no network of the run\'s own '
          f'({error}); --noisolate_network lets other users of this machine '
          'reach Reverb, which has no authentication') from error
  resources.keep_memory()
  interrupted.start()
  # XLA reads it when it starts, here and in the nodes' processes.
  os.environ['NPROC'] = str(xla_threads)
  resources.set_threads(max(1, _NUM_ACTORS.value), _THREADS_PER_WORKER.value)

  from cleanba_acme import experiment as experiment_lib  # pylint: disable=g-import-not-at-top
  from cleanba_acme import learner_core  # pylint: disable=g-import-not-at-top
  from cleanba_acme.environments import registry  # pylint: disable=g-import-not-at-top
  from cleanba_acme.environments import wrappers  # pylint: disable=g-import-not-at-top
  from cleanba_acme.launchers import run  # pylint: disable=g-import-not-at-top
  from cleanba_acme.networks import factory  # pylint: disable=g-import-not-at-top

  env_options = _parse_env_options(_ENV_OPTIONS.value)
  try:
    environment_factory = registry.make_factory(_ENV.value, **env_options)
  except (ImportError, ValueError) as error:
    raise ValueError(f'--env: {error}') from error
  if _LAST_ACTION_AND_REWARD.value:
    environment_factory = wrappers.ObservationActionReward(environment_factory)
  module, name = agent.builder.split(':')
  builder = getattr(importlib.import_module(module), name)(config)
  sizes = {
      'seed': _SEED.value,
      'num_actors': _NUM_ACTORS.value,
      'num_envs': _NUM_ENVS.value,
      'unroll_length': _default(_UNROLL_LENGTH.value, agent.unroll_length),
      'total_steps': _TOTAL_STEPS.value,
      'policy_lag': _default(
          _POLICY_LAG.value,
          0 if _HANDOFF.value == 'asynchronous' else agent.policy_lag),
      'handoff': _HANDOFF.value,
      'checkpoint_every': _CHECKPOINT_EVERY.value,
  }
  experiment = experiment_lib.Experiment(
      builder=builder,
      network_factory=functools.partial(factory.make_networks, config=network),
      environment_factory=environment_factory,
      execution=learner_core.Execution(
          devices=_parse_devices(_LEARNER_DEVICES.value),
          reduction=_REDUCTION.value),
      **sizes)

  output_dir = _OUTPUT_DIR.value or os.path.join(
      'results', '-'.join([
          _ENV.value.replace('/', '_').replace(':', '_'), _AGENT.value,
          str(_SEED.value),
          datetime.datetime.now().strftime('%Y%m%d-%H%M%S')]))
  experiment = change(experiment)
  interrupted.can_stop = True
  return run.run(
      experiment, output_dir, _LAUNCH.value, _CHANNEL.value or 'memory',
      settings={
          'agent': _AGENT.value,
          'env': _ENV.value,
          'env_options': env_options,
          'last_action_and_reward': _LAST_ACTION_AND_REWARD.value,
          'xla_threads': xla_threads,
          'reduction': _REDUCTION.value,
          'config': dataclasses.asdict(config),
          'network': dataclasses.asdict(network),
      },
      record={
          'learner_devices': _LEARNER_DEVICES.value,
          'xla_flags': os.environ.get('XLA_FLAGS', ''),
          'launch': _LAUNCH.value,
          'channel': _CHANNEL.value,
          'threads_per_worker': int(os.environ['OMP_NUM_THREADS']),
          # The number of threads may have come from the environment.
          'command': shlex.join(
              ['python', '-m', 'cleanba_acme.launchers.train', *sys.argv[1:],
               f'--xla_threads={xla_threads}']),
          'versions': _versions(),
      },
      keep_checkpoints=_KEEP_CHECKPOINTS.value,
      max_restarts=_MAX_RESTARTS.value,
      hang_timeout_s=_HANG_TIMEOUT_S.value,
      isolate_network=_ISOLATE_NETWORK.value)


def _default(value: Any, default: Any) -> Any:
  return default if value is None else value


def _make_config(flag: str, config_class: type, values: Dict[str, Any]) -> Any:
  """Makes a config of the flags that were given; ValueError for a wrong one."""
  given = {key: value for key, value in values.items() if value is not None}
  fields = [field.name for field in dataclasses.fields(config_class)]
  for key, value in given.items():
    if key not in fields:
      raise ValueError(
          f'--{flag}.{key}={value}: --agent={_AGENT.value} has no such '
          f'setting; it has {", ".join(fields)}')
  try:
    return config_class(**given)
  except ValueError as error:
    raise ValueError(f'--{flag}.{error}') from error


def _as_flag(message: str) -> str:
  """Names the flag in a message that begins with a field's name."""
  name = message.split('=')[0]
  for flag in (f'config.{name}', name):
    if flag in flags.FLAGS:
      return f'--{flag}{message[len(name):]}'
  return message


def _parse_nproc() -> int:
  value = os.environ.get('NPROC', '1')
  if not value.isdecimal():
    raise ValueError(
        f'the environment variable NPROC={value!r} must be a number')
  return int(value)


def _parse_devices(devices: Sequence[str]) -> Tuple[int, ...]:
  """Parses `--learner_devices`, and looks whether there are so many."""
  text = ','.join(devices)
  if not devices or not all(device.isdecimal() for device in devices):
    raise ValueError(
        f'--learner_devices={text}: must be indices such as 0,1')
  indices = tuple(int(device) for device in devices)
  if indices != (0,):
    import jax  # pylint: disable=g-import-not-at-top
    if max(indices) >= jax.local_device_count():
      raise ValueError(
          f'--learner_devices={text}: must be less than '
          f'{jax.local_device_count()}, the number of devices here; for a CPU, '
          'XLA_FLAGS=--xla_force_host_platform_device_count=N sets it')
  return indices


def _parse_env_options(options: Sequence[str]) -> Dict[str, Any]:
  parsed = {}
  for option in options:
    name, separator, value = option.partition('=')
    if not separator or not name.isidentifier():
      raise ValueError(
          f'--env_options={option}: must be of the form name=value')
    try:
      parsed[name] = ast.literal_eval(value)
    except (SyntaxError, ValueError):
      parsed[name] = value  # A plain string.
  return parsed


def _versions() -> Dict[str, str]:
  """Returns the versions of what the numbers depend on."""
  versions = {'python': platform.python_version()}
  for package in ('jax', 'jaxlib', 'dm-haiku', 'rlax', 'distrax', 'optax',
                  'numpy', 'envpool'):
    try:
      versions[package] = importlib.metadata.version(package)
    except importlib.metadata.PackageNotFoundError:
      pass
  return versions


if __name__ == '__main__':
  app.run(main)
