"""Several ways to decode, side by side on the same questions."""
