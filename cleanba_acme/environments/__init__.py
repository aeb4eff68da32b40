"""Environments, always in batches and with dm_env's semantics.

`registry.make_factory` turns a name such as `Breakout-v5` into a
`base.EnvironmentFactory`, which knows the spec and makes batches of
environments; everything else here is what those factories are made of. Nothing
is imported from here on purpose: envpool and gymnasium are optional, and only
the module that needs one of them imports it.
"""
