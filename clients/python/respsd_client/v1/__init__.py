"""Generated from proto/respsd/v1 by proto/generate.py: messages and stubs of the wire package respsd.v1."""
