"""``sortition arena``: every sampler against every environment."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, cast

import typer
from rich.console import Console

from sortition.cli.app import app
from sortition.cli.options import one_of, some_of, whole_number, writable_directory, write_text
from sortition.cli.progress import RoundsProgress
from sortition.lab.arena import (
    ENVIRONMENTS,
    SPLITS,
    Arena,
    Split,
    environments_of,
    find_contestant,
    run_closed_loop,
    run_replay,
)
from sortition.lab.compare import BASELINE
from sortition.lab.contestants import CONTESTANTS
from sortition.lab.reports.arena import MEASURES, arena_json, arena_table, closed_loop_table, heat_map
from sortition.lab.reports.page import picture_png, picture_svg

MODES = ("replay", "closed", "both")
LONGEST_NAME = max(map(len, ENVIRONMENTS))
HOW_TO_READ = (
    "Lower is better throughout; 1 is the least variance there is. Oracles, who see every norm before they\n"
    "draw, win no places. Samplers of independent draws are measured by their normalised distribution."
)


def _list(wanted: bool) -> None:
    if wanted:
        for environment in ENVIRONMENTS.values():
            typer.echo(f"{environment.name:<{LONGEST_NAME}} {environment.half:<7} {environment.about}")
        raise typer.Exit


@app.command("arena")
def arena_command(
    samplers: Annotated[
        str,
        typer.Option(
            metavar="A,B,...",
            callback=some_of(CONTESTANTS, "sortition arena --help", factories=True),
            show_default="all",
            help=f"Out of {', '.join(CONTESTANTS)}; or package.module:factory, called with a Trial.",
        ),
    ] = ",".join(CONTESTANTS),
    environments: Annotated[
        str | None,
        typer.Option(
            metavar="A,B,...",
            callback=some_of(ENVIRONMENTS, "sortition arena --list"),
            show_default="all of the split",
            help="Environments by name, as --list prints them.",
        ),
    ] = None,
    seeds: Annotated[
        int, typer.Option(parser=whole_number(1), metavar="N", help="Runs to average over.")
    ] = 2,
    skip: Annotated[
        int,
        typer.Option(parser=whole_number(0), metavar="N", help="Leave out the first N seeds of the split."),
    ] = 0,
    mode: Annotated[
        str,
        typer.Option(
            callback=one_of(MODES),
            metavar="NAME",
            help="replay: recorded norms. closed: the sampler drives the training. both.",
        ),
    ] = "replay",
    split: Annotated[
        str,
        typer.Option(
            callback=one_of(SPLITS),
            metavar="NAME",
            help="tune: half of the environments, even seeds. report: the other half, odd seeds. "
            "all: all environments, odd seeds.",
        ),
    ] = "all",
    measure: Annotated[
        str,
        typer.Option(callback=one_of(MEASURES), metavar="NAME", help=f"What to show: {', '.join(MEASURES)}."),
    ] = "ratio",
    jobs: Annotated[int, typer.Option(parser=whole_number(1), metavar="N", help="Processes to use.")] = 2,
    out: Annotated[
        Path | None,
        typer.Option(
            callback=writable_directory,
            metavar="DIR",
            file_okay=False,
            help="Write arena.json and heat maps here (these need the extra 'reports').",
        ),
    ] = None,
    list_all: Annotated[
        bool,
        typer.Option("--list", callback=_list, is_eager=True, help="Print the environments and exit."),
    ] = False,
) -> None:
    """Run every sampler in every environment, and print how far from the optimum each one is."""
    contestants = {name: find_contestant(name) for name in samplers.split(",")}
    chosen = environments_of(cast(Split, split), None if environments is None else environments.split(","))
    arenas: dict[str, Arena] = {}
    for name, fight in (("replay", run_replay), ("closed", run_closed_loop)):
        if mode not in (name, "both"):
            continue
        rounds = sum(env.num_rounds for env in chosen if name == "replay" or env.training is not None)
        with RoundsProgress(total=rounds * seeds * len({BASELINE, *contestants})) as progress:
            arenas[name] = fight(
                contestants,
                chosen,
                split=cast(Split, split),
                seeds=seeds,
                skip=skip,
                jobs=jobs,
                progress=progress.advance_to,
            )
        _print(arenas[name], measure)
    if out is not None:
        write_text(out / "arena.json", arena_json(arenas))
        for name, arena in arenas.items():
            _draw(arena, measure, out / f"arena-{name}")
        typer.echo(f"Results: {out.resolve()}")


def _print(arena: Arena, measure: str) -> None:
    console = Console(highlight=False)
    if not console.is_terminal:
        console.width = max(110, 30 + 14 * len(arena.samplers))
    console.print(arena_table(arena, measure))
    if arena.mode == "closed":
        console.print(closed_loop_table(arena))
    console.print(HOW_TO_READ)


def _draw(arena: Arena, measure: str, path: Path) -> None:
    """Write the heat map as SVG and PNG, where there is something to draw it with."""
    specification = heat_map(arena, measure)
    try:
        path.with_suffix(".svg").write_bytes(picture_svg(specification))
        path.with_suffix(".png").write_bytes(picture_png(specification))
    except ModuleNotFoundError:
        typer.echo(
            "sortition: no heat map without vl-convert; run: pip install 'sortition[reports]'", err=True
        )
