"""`respsd bench`: how fast this machine decodes, in several ways and under load."""

from __future__ import annotations

import typer

from respsd.cli.bench import compare, gpu_check, latency, loop, scaling, serve

app = typer.Typer()
app.callback(invoke_without_command=True)(compare.bench)
app.command("serve")(serve.serve)
app.command("scaling")(scaling.scaling)
app.command("latency")(latency.latency)
app.command("loop")(loop.loop)
app.command("gpu-check")(gpu_check.gpu_check)
