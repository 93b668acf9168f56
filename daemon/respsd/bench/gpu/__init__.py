"""A check of everything on a GPU."""
