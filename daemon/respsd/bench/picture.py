"""Pictures of results as PNG, or as a web page of one file with the table below the picture."""

from __future__ import annotations

import html
import io
from collections.abc import Sequence
from pathlib import Path

from matplotlib.figure import Figure

COLOURS = ("#4477aa", "#ee6677", "#228833", "#ccbb44", "#66ccee", "#aa3377", "#bbbbbb", "#222222")
"""Paul Tol's bright scheme, which colour-blind readers can tell apart."""

_PAGE = """<!doctype html>
<html lang="en"><head><meta charset="utf-8"><title>{title}</title>
<style>body {{ font: 14px sans-serif; margin: 2em; }} td, th {{ padding: 2px 10px; text-align: left; }}
svg {{ max-width: 100%; height: auto; }}</style></head>
<body><h1>{title}</h1><p>{caption}</p>{picture}<table><tr>{head}</tr>{rows}</table></body></html>
"""


def save(figure: Figure, file: Path, *, caption: str, headers: Sequence[str], rows: Sequence[Sequence[str]]) -> None:
    """Write a figure, and into a web page its table too. :param file: ends in .png or .html"""
    if file.suffix == ".png":
        figure.savefig(file, dpi=120)
        return
    buffer = io.StringIO()
    figure.savefig(buffer, format="svg")
    svg = buffer.getvalue()
    text = _PAGE.format(
        title="respsd bench",
        caption=html.escape(caption),
        picture=svg[svg.index("<svg") :],
        head="".join(f"<th>{html.escape(each)}</th>" for each in headers),
        rows="".join(f"<tr>{''.join(f'<td>{html.escape(cell)}</td>' for cell in row)}</tr>" for row in rows),
    )
    file.write_text(text, encoding="utf-8")


def colour(number: int) -> str:
    """The colour of the `number`th thing in a picture."""
    return COLOURS[number % len(COLOURS)]
