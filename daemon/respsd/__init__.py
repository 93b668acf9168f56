"""respsd: an online self-tuning LLM inference daemon.

`engine` generates tokens with EAGLE-3 draft trees, `control` chooses each tree's shape, `experience` logs
what every choice earned, `service` speaks gRPC, `cli` is the `respsd` command.
"""

__version__ = "0.1.0"
