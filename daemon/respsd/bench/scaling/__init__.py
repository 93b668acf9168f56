"""How a step's time grows."""
