"""Measures what draft trees cost and earn on this machine, and picks the constant action that serves from the start."""
