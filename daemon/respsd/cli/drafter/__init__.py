"""`respsd drafter`: make a drafter for a target (invent, collect, quote, train) and measure it (eval)."""

from __future__ import annotations

import typer

from respsd.cli.drafter import collect, evaluate, invent, quote, train

app = typer.Typer(name="drafter", help="Make an EAGLE-3 drafter for a model, and measure it.", no_args_is_help=True)
app.command("invent")(invent.invent)
app.command("collect")(collect.collect)
app.command("quote")(quote.quote)
app.command("train")(train.train)
app.command("eval")(evaluate.evaluate)
