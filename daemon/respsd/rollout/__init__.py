"""Rolls policies out against a live control, and back by itself.

On the engine's thread: `trials` takes requests under test, `phases` alternates the arms inside them by blocks of steps,
`pairing` reduces four blocks to one log ratio, `guards` watch every step. On a thread of its own: `rollout` feeds the
ratios to the `judge`, climbs the `ramp`, and moves aliases through the policy operator. `evidence` keeps the ratios for
a restart, `simulation` runs the same parts on measured noise.
"""
