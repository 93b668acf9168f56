"""Steps in shapes of fixed sizes, for devices where launching work and waiting for it costs more than the work.

A step's sizes (sequences, nodes of a tree, rows that wait for the drafter, context) are rounded up to buckets, what is
too much is masked, and everything from the drafter's rows to the walk down the tree and the KV rows that it keeps is
computed on the device. So a step is the same few functions of fixed shapes again and again, which can be recorded once
and replayed as CUDA graphs, and the host waits for the device once a step: for the tree and the target's tokens.

Requests that sample, or have penalties and the like, are drawn for on the host, from one copy of their logits: their
tokens must not depend on how a step is run. A step that takes parts of prompts along runs as it comes.
"""
