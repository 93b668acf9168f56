"""A daemon of its own under live traffic: what learning comes to, and whether the rollout decides right."""
