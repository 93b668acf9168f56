"""Generated from proto/inference by proto/generate.py: messages and stubs of the Open Inference Protocol."""
