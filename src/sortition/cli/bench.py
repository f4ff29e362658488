"""``sortition bench``: how long a round takes, for a thousand clients and for a billion."""

from __future__ import annotations

import json as json_module
import math
from dataclasses import asdict
from pathlib import Path
from typing import Annotated, cast

import typer
from rich.console import Console
from rich.table import Table

from sortition.cli.app import app
from sortition.cli.options import one_of, whole_number, writable_file, write_text
from sortition.lab.bench import REGIMES, Measurement, Regime, measure_each

MOST_CLIENTS = 1e15
DEFAULT_CLIENTS = "1e3,1e4,1e5,1e6,1e7,1e8,1e9"
COLUMNS = (
    "M",
    "draw",
    "worst",
    "obs.",
    "worst",
    "spike",
    "choice",
    "x",
    "dense",
    "met",
    "mass",
    "moved",
    "MB",
)
HOW_TO_READ = (
    "Microseconds; draw and obs. (observe) are medians, each followed by its worst round. A\n"
    "round is both, of Adaptive-OSMD with its experts; spike: a round in which a norm is 1e300.\n"
    "choice: numpy's Generator.choice(M, K, p=p), a draw alone; x: how many rounds take as\n"
    "long. dense: one of the first rounds of the readable specification. met: clients ever\n"
    "heard of; mass: the probability of these; moved: what is not the prior any more (at most\n"
    "0.6); MB: peak of the process. Compare within one run only: machines differ, and so do\n"
    "their hours."
)


def numbers_of_clients(text: str) -> str:
    """Check a list like 1e3,1e6."""
    for part in text.split(","):
        try:
            value = float(part)
        except ValueError:
            value = math.nan
        if not (2 <= value <= MOST_CLIENTS and value.is_integer()):
            raise typer.BadParameter(
                f"expected whole numbers from 2 to {MOST_CLIENTS:g}, as 1e3,1e6, got {part!r}."
            )
    return text


@app.command("bench")
def bench_command(
    clients: Annotated[
        str,
        typer.Option(callback=numbers_of_clients, metavar="A,B,...", help="Numbers of clients to measure."),
    ] = DEFAULT_CLIENTS,
    cohort: Annotated[
        int, typer.Option(parser=whole_number(1), metavar="N", help="Clients drawn in a round.")
    ] = 100,
    rounds: Annotated[int, typer.Option(parser=whole_number(1), metavar="N", help="Rounds to time.")] = 300,
    regime: Annotated[
        str,
        typer.Option(
            callback=one_of(REGIMES),
            metavar="NAME",
            help="fresh: from the start. adapted: everybody met (up to 1e6), half of the mass moved.",
        ),
    ] = "fresh",
    json: Annotated[
        Path | None,
        typer.Option(callback=writable_file, metavar="FILE", dir_okay=False, help="Write the results here."),
    ] = None,
) -> None:
    """Time draw and observe beside numpy's choice and the dense specification, without the compilation."""
    sizes = [int(float(part)) for part in clients.split(",")]
    errors = Console(stderr=True)
    with errors.status(f"measuring {len(sizes)} federations, {regime}") as status:

        def on_measured(measurement: Measurement) -> None:
            status.update(f"measured {measurement.num_clients:.0e} clients, {regime}")

        results = measure_each(sizes, cohort, rounds, cast(Regime, regime), on_measured)
    console = Console(highlight=False)
    console.print(
        f"{cohort} clients drawn a round, {results[0].num_experts} experts, {rounds} rounds, {regime}"
    )
    console.print(_table(results))
    console.print(HOW_TO_READ, soft_wrap=True)
    if json is not None:
        rows = [{**asdict(result), "round_median": result.round_median} for result in results]
        finite = [{name: None if value != value else value for name, value in row.items()} for row in rows]
        write_text(json, json_module.dumps(finite, indent=1) + "\n")
        typer.echo(f"Results: {json.resolve()}")


def _table(results: list[Measurement]) -> Table:
    table = Table(box=None, padding=(0, 1, 0, 0), pad_edge=False)
    for column in COLUMNS:
        table.add_column(column, justify="right", no_wrap=True)
    for result in results:
        ratio = result.choice_median / result.round_median
        table.add_row(
            _short(result.num_clients),
            _time(result.draw_median),
            _time(result.draw_worst),
            _time(result.observe_median),
            _time(result.observe_worst),
            _time(result.spike),
            _time(result.choice_median),
            "-" if math.isnan(ratio) else f"{ratio:.3g}" if ratio < 1000 else f"{ratio:.0f}",
            _time(result.dense_median),
            _short(result.clients_seen),
            f"{result.share_of_seen:.2f}",
            f"{result.share_adapted:.2f}",
            f"{result.peak_megabytes:.0f}",
        )
    return table


def _time(microseconds: float) -> str:
    """12k for 12,345 microseconds."""
    if math.isnan(microseconds):
        return "-"
    return f"{microseconds:.0f}" if microseconds < 10_000 else f"{microseconds / 1000:.0f}k"


def _short(number: int) -> str:
    """1e6 for a million, 29.5e3 for 29534."""
    if number < 10_000 and number != 1000:
        return str(number)
    mantissa, exponent = f"{number:.2e}".split("e")
    return f"{float(mantissa):g}e{int(exponent)}"
