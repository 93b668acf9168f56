"""Alembic migrations of the experience log; `respsd.experience.database` runs them.

A new one goes into `versions/` by hand, with the number after the last, and changes the models with it: a test holds
the two together.
"""
