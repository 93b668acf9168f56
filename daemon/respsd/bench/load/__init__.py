"""A running daemon under load."""
