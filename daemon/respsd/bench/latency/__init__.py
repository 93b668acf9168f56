"""How evenly tokens come where many streams run, and while a long prompt arrives."""
