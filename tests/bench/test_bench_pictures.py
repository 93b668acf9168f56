from __future__ import annotations

import pytest
from support.bench_fakes import block, steady, step

from respsd.bench.comparison.chart import draw_bench
from respsd.bench.comparison.report import summarise
from respsd.bench.comparison.run import BenchResult
from respsd.bench.comparison.side_by_side import Cell, Sample
from respsd.bench.load.chart import draw_load
from respsd.bench.load.report import Objectives, load_row
from respsd.bench.load.sending import LoadRun, Outcome
from respsd.bench.scaling.chart import draw_scaling
from respsd.bench.scaling.measuring import Point, PointTime
from respsd.control.action import OFF, Action

PNG = b"\x89PNG"


def bench_result(concurrencies=(1, 2)) -> BenchResult:
    cells = [Cell(name, count) for count in concurrencies for name in ("transformers", "8:3:3")]
    found = []
    for name in ("chat", "a <b> & c"):
        for cell in cells:
            steps = [step(Action(8, 3, 3), 2)] if cell.method == "8:3:3" else []
            speed = 20.0 if steps else 10.0
            found.append(Sample(name, (0, 1), cell, block(steady(speed), steady(speed), steps=steps)))
    return BenchResult(
        version="0",
        target="t",
        drafter="d",
        dtype="float32",
        device="cpu",
        threads=1,
        exact=False,
        max_new_tokens=8,
        first="transformers",
        plain="transformers",
        actions={("8:3:3", 1): Action(8, 3, 3)},
        rows=tuple(summarise(found, cells, "transformers")),
        noise=(),
        sweeps=(),
        skipped=(),
    )


def load_rows():
    outcomes = (Outcome(0.1, 0.1, 1.0, "OK", [(0.5, 1), (0.6, 2)]), Outcome(0.2, 0.2, 0.3, "UNAVAILABLE"))
    return [load_row(LoadRun(rate, outcomes, 2), Objectives()) for rate in (1.0, 2.0)]


def scaling_times():
    return [PointTime(Point(OFF, n, m), 3, 1.0, 2.0, 3.0, 0.5, 1.0, 0.5) for n, m in ((16, 1), (32, 1), (16, 2))]


@pytest.mark.parametrize(
    ("draw", "words"),
    [
        (lambda file: draw_bench(bench_result(), file), ["8:3:3", "a &lt;b&gt; &amp; c", "2.00 to 2.00"]),
        (lambda file: draw_bench(bench_result((1,)), file), ["transformers"]),
        (lambda file: draw_load(load_rows(), file, "caption"), ["caption", "offered", "50%"]),
        (lambda file: draw_scaling(scaling_times(), 16, file, "caption"), ["1.0 to 3.0"]),
    ],
)
def test_pictures_are_png_or_one_page_with_a_table(tmp_path, draw, words):
    draw(tmp_path / "p.png")
    assert (tmp_path / "p.png").read_bytes().startswith(PNG)
    draw(tmp_path / "p.html")
    page = (tmp_path / "p.html").read_text()
    assert page.startswith("<!doctype html>")
    assert "<svg" in page
    table = page[page.index("<table>") :]
    assert "<script" not in page
    for word in words:
        assert word in table or word in page[: page.index("<svg")]
