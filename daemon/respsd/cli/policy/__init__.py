"""`respsd policy`: look at the stored policy versions, and change which of them serve.

What only reads works on the files, with the daemon stopped or running, or asks a daemon (`--address`). What changes
something goes through the running daemon; `--offline` works on the files where no daemon runs.
"""

from __future__ import annotations

import typer

from respsd.cli.policy import changing, diff, explain, history, listing, show, transfer

app = typer.Typer(help="Look at the stored policies, and change which of them serve.", no_args_is_help=True)

app.command("list")(listing.list_policies)
app.command("show")(show.show)
app.command("history")(history.history)
app.command("explain")(explain.explain)
app.command("diff")(diff.diff)
app.command("promote")(changing.promote)
app.command("rollback")(changing.rollback)
app.command("nominate")(changing.nominate)
app.command("withdraw")(changing.withdraw)
app.command("pin")(changing.pin)
app.command("unpin")(changing.unpin)
app.command("freeze")(changing.freeze)
app.command("unfreeze")(changing.unfreeze)
app.command("train-now")(changing.train_now)
app.command("export")(transfer.export)
app.command("import")(transfer.import_)
app.command("rm")(changing.rm)
