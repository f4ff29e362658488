"""``sortition compare``, ``samplers``, ``arena``, ``bench`` and ``reproduce``: parse, call the lab, print."""

from __future__ import annotations

import json as json_module
import math
import time
from dataclasses import asdict
from functools import partial
from importlib.util import find_spec
from pathlib import Path
from typing import Annotated, cast

import typer
from rich.console import Console
from rich.table import Table

from sortition.cli.options import (
    MOST_SEED,
    OPTIONS,
    ReportFile,
    RoundsProgress,
    as_typed,
    number,
    one_of,
    some_of,
    whole_number,
    widen,
    writable_directory,
    writable_file,
    write_text,
)
from sortition.core.designs import DESIGNS, Design
from sortition.engine.compiling import cache_directory
from sortition.lab.arena.environments import ENVIRONMENTS, SPLITS, ProblemFactory, Split, environments_of
from sortition.lab.arena.real import (
    diagnoses,
    installed_federations,
    origins_of,
    rounds_left,
    run_real,
    tasks_of,
)
from sortition.lab.arena.real_scores import judge
from sortition.lab.arena.tournament import Arena, run_closed_loop, run_replay
from sortition.lab.arena.vectors import (
    VECTOR_ENVIRONMENTS,
    VECTOR_SAMPLER,
    VectorEnvironment,
    mnist_environments,
    run_vectors,
    vector_environments,
)
from sortition.lab.bench import (
    DEFAULT_SAMPLER,
    MOST_CLIENTS,
    REGIMES,
    Measurement,
    Regime,
    measure_each,
    most_clients,
)
from sortition.lab.compare import DEFAULT_SAMPLERS, compare, make_problem, rounds_of
from sortition.lab.contestants import BASELINE, CONTESTANTS, GUIDANCE, INDEPENDENT_ONLY, find_contestant
from sortition.lab.diagnosis.diagnose import diagnose
from sortition.lab.diagnosis.findings import MEMORY
from sortition.lab.federations import FEDERATIONS
from sortition.lab.imported import imported
from sortition.lab.problems.softmax import STEP_SIZE, digits_federation
from sortition.lab.reports.comparison import MARKS
from sortition.lab.reports.diagnosis_page import how_to_read
from sortition.lab.reports.page import picture_png, picture_svg
from sortition.lab.reports.real_page import A_QUICK_RUN, picture, real_json, real_page, summary_table, verdict
from sortition.lab.reports.real_page import HOW_TO_READ as HOW_TO_READ_REAL
from sortition.lab.reports.reproduction import (
    check_outputs,
    fill_page,
    provenance,
    read_page,
    report_page,
    write_figure,
)
from sortition.lab.reports.standings import (
    MEASURES,
    arena_json,
    arena_table,
    closed_loop_table,
    heat_map,
    vector_table,
    vectors_json,
)
from sortition.lab.reproduce.figures import FIGURES, FULL, QUICK, VARIANTS, Variant
from sortition.lab.reproduce.finished import origins_in_words, write_whole
from sortition.lab.reproduce.results import Result, execute, plan
from sortition.lab.warmup import TASKS, warm_up

app = typer.Typer()

# sortition compare ------------------------------------------------------------------------------------------

DIGITS_CLIENTS = 100


@app.command("compare")
def compare_command(
    problem: Annotated[
        str | None,
        typer.Option(
            metavar="MODULE:FACTORY",
            show_default="handwritten digits",
            help="A federation of your own: a function or class that takes a seed "
            "(docs/tutorials/your-problem.md).",
        ),
    ] = None,
    clients: Annotated[
        int | None,
        typer.Option(
            parser=whole_number(2),
            metavar="N",
            show_default=str(DIGITS_CLIENTS),
            help="Clients of the federation of digits.",
        ),
    ] = None,
    cohort: Annotated[
        int, typer.Option(parser=whole_number(1), metavar="N", help="Clients drawn in a round.")
    ] = 5,
    rounds: Annotated[
        int, typer.Option(parser=whole_number(2), metavar="N", help="Rounds of training.")
    ] = 500,
    repeats: Annotated[
        int, typer.Option(parser=whole_number(1), metavar="N", help="Federations to average over.")
    ] = 5,
    samplers: Annotated[
        str,
        typer.Option(
            callback=some_of(CONTESTANTS, "sortition samplers", factories=True),
            metavar="A,B,...",
            help="Names, as sortition samplers prints them; or module:factory, called with a Trial.",
        ),
    ] = ",".join(DEFAULT_SAMPLERS),
    design: Annotated[
        str,
        typer.Option(callback=one_of(DESIGNS), metavar="NAME", help=f"How to draw: {', '.join(DESIGNS)}."),
    ] = "fixed_size",
    memory: Annotated[
        bool, typer.Option("--memory", help="Aggregate with a memory of earlier updates.")
    ] = False,
    step_size: Annotated[
        float, typer.Option(parser=number, metavar="X", help="Step size of the training.")
    ] = STEP_SIZE,
    tune: Annotated[
        bool,
        typer.Option(
            "--tune", help="Choose the step size for each sampler, on other federations: 5 times the work."
        ),
    ] = False,
    with_diagnosis: Annotated[
        bool,
        typer.Option("--diagnose", help="First tell what to expect, as sortition diagnose --no-pilots does."),
    ] = False,
    seed: Annotated[
        int, typer.Option(parser=whole_number(0, MOST_SEED), metavar="N", help="Repeat r uses seed + r.")
    ] = 0,
    jobs: Annotated[int, typer.Option(parser=whole_number(1), metavar="N", help="Processes to use.")] = 2,
    json: Annotated[
        Path | None,
        typer.Option(
            callback=writable_file,
            metavar="FILE",
            dir_okay=False,
            writable=True,
            help="Write results and curves here.",
        ),
    ] = None,
    report: ReportFile = None,
) -> None:
    """Train on a federation with several samplers, and print what each is worth in rounds."""
    if report is not None:
        import vl_convert  # noqa: F401 - a missing package is an error before the work, not after it
    if problem is None:
        factory: ProblemFactory = partial(digits_federation, num_clients=clients or DIGITS_CLIENTS)
    elif clients is not None:
        raise typer.BadParameter("--clients is for the federation of digits; a --problem has its own.")
    else:
        factory = imported("--problem", problem)
    options = {**OPTIONS, "num_clients": "--clients"} if problem is None else OPTIONS
    if with_diagnosis:
        with as_typed(options):
            found = diagnose(  # without pilots: the comparison itself trains
                make_problem(factory, seed),
                cohort_size=cohort,
                step_size=step_size,
                num_rounds=rounds,
                pilots=False,
                seed=seed,
            )
        typer.echo(f"{found.sentence}\n\n{found.table}\n\n{how_to_read(found)}")
        if found.choice == MEMORY and not memory:
            typer.echo("The comparison that follows has no memory; --memory adds one.")
        typer.echo()
    names = samplers.split(",")
    total = rounds_of(len({BASELINE, *names}), rounds, repeats, tune=tune)
    with as_typed(options), RoundsProgress(total=total) as progress:
        comparison = compare(
            factory,
            names,
            cohort_size=cohort,
            num_rounds=rounds,
            step_size=step_size,
            design=cast(Design, design),
            memory=memory,
            tune=tune,
            repeats=repeats,
            seed=seed,
            jobs=jobs,
            progress=progress.advance_to,
        )
    typer.echo(repr(comparison))
    if json is not None:
        write_text(json, comparison.json())
        typer.echo(f"Results: {json.resolve()}")
    if report is not None:
        write_text(report, comparison.page())
        typer.echo(f"Report: {report.resolve()}")


# sortition samplers, sortition warmup -----------------------------------------------------------------------


@app.command("samplers")
def samplers_command() -> None:
    """Print the samplers that other commands know by name, and when to take which."""
    console = Console(highlight=False)
    widen(console, 140)
    shown = ["needs", "learns", "designs", "guard", "cost", "best_when"]
    if console.width < 110:  # docs/how-to/which-sampler.md has all
        shown = ["needs", "best_when"]
    table = Table()
    table.add_column("sampler", min_width=max(map(len, GUIDANCE)))
    for column in shown:
        table.add_column(column.replace("_", " "))
    for name, guidance in GUIDANCE.items():
        table.add_row(name + MARKS.get(name, ""), *(getattr(guidance, column) for column in shown))
    console.print(table)
    console.print(
        "needs: before the first round; horizon is the number of rounds, bound the largest feedback.\n"
        "cost: K clients drawn a round, n ever drawn, M in all, E experts.\n"
        "Each is a class of the library: sortition.EmpiricalBayesSampler(num_clients, cohort_size, ...)."
    )


@app.command("warmup")
def warmup_command() -> None:
    """Compile every kernel now, for example in an image, so that the first run does not have to."""
    start = time.perf_counter()
    with RoundsProgress(total=len(TASKS), what="kernels") as progress:
        warm_up(progress.advance_to)
    typer.echo(f"Compiled in {time.perf_counter() - start:.0f} s, in {cache_directory()}")


# sortition arena --------------------------------------------------------------------------------------------

MODES = ("replay", "closed", "both", "vectors")
LONGEST_NAME = max(map(len, (*ENVIRONMENTS, *VECTOR_ENVIRONMENTS)))
ONE_IS = {
    "ratio": "the least that any probabilities can give by the sampler's design",
    "to_uniform": "uniform sampling",
}
HOW_TO_READ_ARENA = (
    "Lower is better throughout; in the cells 1 is {one}.\n"
    "Variances are by norms (docs/reference/metrics.md). First places and 'worst / the best' are by ratio.\n"
    "Oracles see every norm before they draw, and win no places. Nor do samplers of another design than\n"
    "uniform (k-vib draws independently): there 1 is the optimum of that design, or uniform sampling by it\n"
    "(in closed loop, which does not train that one: -)."
)
HOW_TO_READ_VECTORS = (
    "Lower is better throughout. Each round counts in units of the least variance of draws with\n"
    "replacement. At equal trainings with_replacement draws more often, so that K distinct clients train\n"
    "on average. l is the variance that the probabilities decide, over the least that the design allows.\n"
    "time: draw, aggregate and learn, over with_replacement; compare within one run only."
)


NOT_FOR_REAL = (None, None, 0, "replay", None, False, "all", None, "ratio")
"""The options that --real does not take, as they are if nobody gives them."""


def _list_environments(wanted: bool) -> None:
    if wanted:
        for environment in ENVIRONMENTS.values():
            typer.echo(f"{environment.name:<{LONGEST_NAME}} {environment.half:<7} {environment.about}")
        for with_vectors in VECTOR_ENVIRONMENTS.values():
            typer.echo(f"{with_vectors.name:<{LONGEST_NAME}} vectors {with_vectors.about}")
        raise typer.Exit


@app.command("arena")
@as_typed({"environments": "--environments", "samplers": "--samplers"})
def arena_command(
    samplers: Annotated[
        str | None,
        typer.Option(
            metavar="A,B,...",
            callback=some_of(CONTESTANTS, "sortition arena --help", factories=True),
            show_default=f"all; for vectors {VECTOR_SAMPLER}",
            help=f"Out of {', '.join(CONTESTANTS)}; or package.module:factory, called with a Trial.",
        ),
    ] = None,
    environments: Annotated[
        str | None,
        typer.Option(
            metavar="A,B,...",
            callback=some_of((*ENVIRONMENTS, *VECTOR_ENVIRONMENTS), "sortition arena --list"),
            show_default="all of the split; for vectors all of these",
            help="Environments by name, as --list prints them.",
        ),
    ] = None,
    seeds: Annotated[
        int | None,
        typer.Option(
            parser=whole_number(1),
            metavar="N",
            show_default="2; 10 for --real",
            help="Runs to average over.",
        ),
    ] = None,
    skip: Annotated[
        int,
        typer.Option(parser=whole_number(0), metavar="N", help="Leave out the first N seeds of the split."),
    ] = 0,
    mode: Annotated[
        str,
        typer.Option(
            callback=one_of(MODES),
            metavar="NAME",
            help="replay: recorded norms. closed: the sampler drives the training. both: these two. "
            "vectors: the true error of the aggregate, by design.",
        ),
    ] = "replay",
    designs: Annotated[
        str | None,
        typer.Option(
            callback=some_of(DESIGNS, "sortition arena --help"),
            metavar="A,B,...",
            show_default="all for vectors; with_replacement for closed",
            help=f"How to draw: {', '.join(DESIGNS)}. One of them for closed, any for vectors.",
        ),
    ] = None,
    memory: Annotated[
        bool,
        typer.Option(
            "--memory",
            help="closed: aggregate with a memory of earlier updates. vectors: each design with one, too.",
        ),
    ] = False,
    split: Annotated[
        str,
        typer.Option(
            callback=one_of(SPLITS),
            metavar="NAME",
            help="tune: half of the environments, even seeds. report: the other half, odd seeds. "
            "all: all environments, odd seeds.",
        ),
    ] = "all",
    data: Annotated[
        Path | None,
        typer.Option(
            metavar="DIR",
            exists=True,
            file_okay=False,
            help="vectors: only MNIST with label skew, from DIR/mnist.",
        ),
    ] = None,
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
            show_default="none; real-federations or real-quick for --real",
            help="Write arena.json and heat maps here (these need the extra 'reports').",
        ),
    ] = None,
    real: Annotated[
        bool,
        typer.Option(
            "--real",
            help="Real federations: train models with tuned steps and published rivals, and write a page to "
            "--out. Finished tasks found there are not run again (extras 'data', 'torch', 'reports').",
        ),
    ] = False,
    quick: Annotated[
        bool, typer.Option("--quick", help="With --real: three minutes, to see that it works.")
    ] = False,
    federations: Annotated[
        str | None,
        typer.Option(
            metavar="A,B,...",
            callback=some_of(FEDERATIONS, "sortition arena --help"),
            show_default="all",
            help=f"With --real: out of {', '.join(FEDERATIONS)}.",
        ),
    ] = None,
    ray: Annotated[
        str | None,
        typer.Option(
            metavar="ADDRESS",
            help="With --real: run on the Ray cluster at this address, or 'local' for one on this machine.",
        ),
    ] = None,
    list_all: Annotated[
        bool,
        typer.Option(
            "--list", callback=_list_environments, is_eager=True, help="Print the environments and exit."
        ),
    ] = False,
) -> None:
    """Run every sampler in every environment, and print how far from the optimum each one is."""
    if real:
        if (samplers, environments, skip, mode, designs, memory, split, data, measure) != NOT_FOR_REAL:
            raise typer.BadParameter(
                "--real has methods and --federations of its own; else it takes --quick, --seeds, --jobs, "
                "--ray and --out only."
            )
        _run_real(federations, quick, seeds, jobs, ray, out)
        return
    if quick or federations is not None or ray is not None:
        raise typer.BadParameter("--quick, --federations and --ray need --real.")
    seeds = seeds or 2
    named = None if environments is None else environments.split(",")
    if data is not None and (mode != "vectors" or named is not None):
        raise typer.BadParameter("--data needs --mode vectors, and names the environments itself.")
    if mode == "vectors":
        with_vectors = _vector_environments(named) if data is None else mnist_environments(data)
        _run_vectors(samplers or VECTOR_SAMPLER, with_vectors, designs, memory, split, seeds, skip, jobs, out)
        return
    closed_design = _design_of_closed_loop(mode, designs, memory)
    contestants = {name: find_contestant(name) for name in (samplers or ",".join(CONTESTANTS)).split(",")}
    chosen = environments_of(cast(Split, split), named)
    others = [env.name for env in chosen if split not in ("all", env.half)]
    if others:
        typer.echo(
            f"sortition: {', '.join(others)} are of the other half; of --split {split} only "
            "the seeds are taken.",
            err=True,
        )
    arenas: dict[str, Arena] = {}
    for name, fight in (("replay", run_replay), ("closed", run_closed_loop)):
        if mode not in (name, "both"):
            continue
        if name == "closed":
            chosen = [env.trained_by(closed_design, memory) for env in chosen]
            untrained = [env.name for env in chosen if env.training is None]
            if named and 0 < len(untrained) < len(chosen):
                typer.echo(f"Left out of closed loop, nothing to train: {', '.join(untrained)}.", err=True)
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
        _print_arena(arenas[name], measure)
    if out is not None:
        write_text(out / "arena.json", arena_json(arenas))
        for name, arena in arenas.items():
            _draw_heat_map(arena, measure, out / f"arena-{name}")
        typer.echo(f"Results: {out.resolve()}")


def _design_of_closed_loop(mode: str, designs: str | None, memory: bool) -> Design:
    """The design that closed loops draw by; replay has neither another one nor a memory."""
    if mode == "replay" and (designs is not None or memory):
        raise typer.BadParameter("--designs and --memory need --mode closed, both or vectors.")
    if designs is not None and "," in designs:
        raise typer.BadParameter(f"expected one design for --mode {mode}, got {designs!r}.")
    return cast(Design, designs or "with_replacement")


def _vector_environments(names: list[str] | None) -> list[VectorEnvironment]:
    """Those of these names; or all, except for what is not installed."""
    chosen = vector_environments(names)
    missing = [env.name for env in chosen if names is None and env.needs and find_spec(env.needs) is None]
    if missing:
        typer.echo(
            f"sortition: no {', '.join(missing)} without torch; run: pip install 'sortition[torch]' "
            "(in a clone: pip install '.[torch]')",
            err=True,
        )
    return [env for env in chosen if env.name not in missing]


def _run_vectors(
    samplers: str,
    environments: list[VectorEnvironment],
    designs: str | None,
    memory: bool,
    split: str,
    seeds: int,
    skip: int,
    jobs: int,
    out: Path | None,
) -> None:
    with RoundsProgress(total=seeds * sum(env.num_rounds for env in environments)) as progress:
        arena = run_vectors(
            samplers.split(","),
            environments,
            split=cast(Split, split),
            designs=cast(list[Design], (designs or ",".join(DESIGNS)).split(",")),
            memory=memory,
            seeds=seeds,
            skip=skip,
            jobs=jobs,
            progress=progress.advance_to,
        )
    console = Console(highlight=False)
    widen(console, 160)
    console.print(vector_table(arena))
    console.print(HOW_TO_READ_VECTORS)
    if out is not None:
        write_text(out / "arena.json", vectors_json(arena))
        typer.echo(f"Results: {out.resolve()}")


def _run_real(
    federations: str | None, quick: bool, seeds: int | None, jobs: int, ray: str | None, out: Path | None
) -> None:
    import torch  # noqa: F401 - a missing package is an error before the work, not after it
    import vl_convert  # noqa: F401

    target = out or Path("real-quick" if quick else "real-federations")
    writable_directory(target)
    names, missing = installed_federations(None if federations is None else federations.split(","))
    for name, reason in missing.items():
        typer.echo(f"sortition: {name} is left out: {reason}", err=True)
    tasks = tasks_of(names, quick=quick, seeds=seeds)
    left = rounds_left(tasks, target)
    if left < sum(task.effort.rounds for task in tasks):
        typer.echo(f"Finished tasks found in {target}", err=True)
    with RoundsProgress(total=left) as progress:
        run_real(tasks, target, jobs=jobs, ray=ray, progress=progress.advance_to)
    results = judge(tasks, target)
    console = Console(highlight=False)
    widen(console, 230)
    console.print(summary_table(results))
    console.print(HOW_TO_READ_REAL)
    console.print("\n".join([A_QUICK_RUN, *verdict(results)] if quick else verdict(results)))
    write_text(target / "real.json", real_json(results))
    for name in names:
        own = [result for result in results if result.cell.federation == name]
        (target / f"{name}.svg").write_bytes(picture_svg(picture(own)))
    made_by = origins_in_words(origins_of(tasks, target))
    write_text(target / "real.html", real_page(results, diagnoses(tasks, target), made_by, quick=quick))
    typer.echo(f"Report: {(target / 'real.html').resolve()}")


def _print_arena(arena: Arena, measure: str) -> None:
    console = Console(highlight=False)
    widen(console, max(110, 30 + 14 * len(arena.samplers)))
    console.print(arena_table(arena, measure))
    if arena.mode == "closed":
        console.print(closed_loop_table(arena))
    console.print(HOW_TO_READ_ARENA.format(one=ONE_IS[measure.removeprefix("early_")]))


def _draw_heat_map(arena: Arena, measure: str, path: Path) -> None:
    """Write the heat map as SVG and PNG if vl-convert is installed."""
    specification = heat_map(arena, measure)
    try:
        path.with_suffix(".svg").write_bytes(picture_svg(specification))
        path.with_suffix(".png").write_bytes(picture_png(specification))
    except ModuleNotFoundError:
        typer.echo(
            "sortition: no heat map without vl-convert; run: pip install 'sortition[reports]' "
            "(in a clone: pip install '.[reports]')",
            err=True,
        )


# sortition bench --------------------------------------------------------------------------------------------

DEFAULT_CLIENTS = (10**3, 10**4, 10**5, 10**6, 10**7, 10**8, 10**9)
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
    "seen",
    "mass",
    "moved",
    "MB",
)
HOW_TO_READ_BENCH = (
    "Microseconds; draw and obs. (observe) are medians, each followed by its worst round. A\n"
    "round is both; spike: a round in which a norm is 1e300. choice: numpy's\n"
    "Generator.choice(M, K, p=p), a draw alone; x: how many rounds take as long. dense: one of\n"
    "the first rounds of Adaptive-OSMD's readable specification. seen: clients drawn at least\n"
    "once; mass: their probability; moved: how much of the distribution has left the prior (at\n"
    "most 0.6; for samplers with experts); MB: peak memory of the process. Compare within one\n"
    "run only: machines differ, and so do their hours."
)


def numbers_of_clients(text: str | None) -> str | None:
    """Check a list like 1e3,1e6."""
    for part in () if text is None else text.split(","):
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
    sampler: Annotated[
        str,
        typer.Option(
            callback=one_of(CONTESTANTS, "sortition bench --help", factories=True),
            metavar="NAME",
            help=f"Out of {', '.join(CONTESTANTS)}; or package.module:factory, called with a Trial.",
        ),
    ] = DEFAULT_SAMPLER,
    design: Annotated[
        str,
        typer.Option(callback=one_of(DESIGNS), metavar="NAME", help=f"How to draw: {', '.join(DESIGNS)}."),
    ] = "with_replacement",
    clients: Annotated[
        str | None,
        typer.Option(
            callback=numbers_of_clients,
            metavar="A,B,...",
            show_default="1e3 to 1e9; up to 1e7 for oracles, independent draws and your own",
            help="Numbers of clients to measure.",
        ),
    ] = None,
    cohort: Annotated[
        int, typer.Option(parser=whole_number(1), metavar="N", help="Clients drawn in a round.")
    ] = 100,
    rounds: Annotated[int, typer.Option(parser=whole_number(1), metavar="N", help="Rounds to time.")] = 300,
    regime: Annotated[
        str,
        typer.Option(
            callback=one_of(REGIMES),
            metavar="NAME",
            help="fresh: from the start. adapted: after every client was seen (up to 1e6) and learnt from.",
        ),
    ] = "fresh",
    json: Annotated[
        Path | None,
        typer.Option(callback=writable_file, metavar="FILE", dir_okay=False, help="Write the results here."),
    ] = None,
) -> None:
    """Time a sampler's draw and observe beside numpy's choice and the dense specification."""
    if sampler in INDEPENDENT_ONLY:
        design = "independent"  # they have no other
    if clients is None:
        sizes = [size for size in DEFAULT_CLIENTS if size <= most_clients(sampler)]
    else:
        sizes = [int(float(part)) for part in clients.split(",")]
    errors = Console(stderr=True)
    with errors.status(f"measuring {len(sizes)} federations, {regime}") as status:

        def on_measured(measurement: Measurement) -> None:
            status.update(f"measured {measurement.num_clients:.0e} clients, {regime}")

        with as_typed({**OPTIONS, "num_clients": "--clients", "samplers": "--sampler"}):
            results = measure_each(
                sizes, cohort, rounds, cast(Regime, regime), sampler, cast(Design, design), on_measured
            )
    console = Console(highlight=False)
    experts = f", {results[0].num_experts} experts" if results[0].num_experts else ""
    only = ", its only design" if sampler in INDEPENDENT_ONLY else ""
    drawn = f"{cohort} clients drawn a round ({design.replace('_', ' ')}{only})"
    console.print(f"{sampler}: {drawn}{experts}, {rounds} rounds, {regime}")
    console.print(_bench_table(results))
    console.print(HOW_TO_READ_BENCH, soft_wrap=True)
    if json is not None:
        rows = [{**asdict(result), "round_median": result.round_median} for result in results]
        finite = [{name: None if value != value else value for name, value in row.items()} for row in rows]
        write_text(json, json_module.dumps(finite, indent=1) + "\n")
        typer.echo(f"Results: {json.resolve()}")


def _bench_table(results: list[Measurement]) -> Table:
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
            "-" if math.isnan(result.share_adapted) else f"{result.share_adapted:.2f}",
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


# sortition reproduce ----------------------------------------------------------------------------------------

EVERYTHING = "all"


def known_figures(names: list[str]) -> list[str]:
    """Check names of figures; ``all`` stands for every one."""
    for name in names:
        one_of((*FIGURES, EVERYTHING))(name)
    return list(FIGURES) if EVERYTHING in names else list(dict.fromkeys(names))


def directory(text: str) -> Path:
    """A path; an empty one, perhaps from a variable that is not set, would be the current directory."""
    if not str(text):
        raise typer.BadParameter("expected a directory, got ''.")
    return Path(text)


@app.command("reproduce")
def reproduce_command(
    figures: Annotated[
        list[str],
        typer.Argument(callback=known_figures, metavar="FIGURE...", help="fig1 to fig8, or all."),
    ],
    out: Annotated[
        Path | None,
        typer.Option(
            parser=directory,
            metavar="DIR",
            show_default="reproduction, or reproduction-quick",
            help="Where results go; finished runs found there are not run again.",
        ),
    ] = None,
    quick: Annotated[
        bool, typer.Option("--quick", help="30 rounds of everything, to see that it works.")
    ] = False,
    variant: Annotated[
        str,
        typer.Option(
            callback=one_of((*VARIANTS, "both")),
            metavar="NAME",
            help="text, authors (with what their published code does differently) or both.",
        ),
    ] = "both",
    data: Annotated[
        Path | None,
        typer.Option(
            parser=directory,
            metavar="DIR",
            help="Directory with mnist, kmnist and fashion-mnist as IDX files (fig6).",
        ),
    ] = None,
    jobs: Annotated[int, typer.Option(parser=whole_number(1), metavar="N", help="Processes to use.")] = 2,
    docs: Annotated[
        list[Path] | None,
        typer.Option(
            metavar="FILE",
            exists=True,
            dir_okay=False,
            help="Fill the marked blocks of this page, too (for 'all' in full only); may be repeated.",
        ),
    ] = None,
) -> None:
    """Run the paper's experiments and draw its figures, published beside measured."""
    import vl_convert  # noqa: F401 - a missing package is an error before the work, not after it

    if docs and (quick or set(figures) != set(FIGURES) or variant != "both"):
        raise typer.BadParameter(
            "pages are filled by a run of everything: 'all' in both variants, and not --quick.",
            param_hint="'--docs'",
        )
    target = out or Path("reproduction-quick" if quick else "reproduction")
    writable_directory(target)
    scale = QUICK if quick else FULL
    variants = VARIANTS if variant == "both" else (cast(Variant, variant),)
    check_outputs([target / name for name in figures], quick)
    for markdown in docs or ():
        read_page(markdown)
    todo = plan(figures, target, variants=variants, scale=scale, data=data)
    if todo.kept:
        typer.echo(f"{todo.kept} finished runs found in {todo.store.directory}", err=True)
    begun = time.monotonic()
    with RoundsProgress(total=todo.rounds) as progress:
        results = execute(todo, jobs, progress.advance_to)
    seconds = time.monotonic() - begun
    if todo.rounds:
        typer.echo(f"{todo.rounds:,} rounds at most, in {seconds:.0f} s", err=True)
    origin = provenance(todo, results, scale, quick)
    for result in results:
        write_figure(result, target / result.figure.name, origin)
        typer.echo(f"{result.figure.name}: {target / result.figure.name}")
        _print_numbers(result)
    page = target / "report.html" if len(results) > 1 else target / figures[0] / "report.html"
    write_whole(page, report_page(results, origin).encode())
    typer.echo(f"Report: {page.resolve()}")
    for markdown in docs or ():
        typer.echo(f"Filled in {markdown}: {', '.join(fill_page(markdown, results, origin))}")


def _print_numbers(result: Result) -> None:
    """How many published numbers were reproduced."""
    for variant in VARIANTS:
        rows = [row for row in result.table if row["variant"] == variant]
        if rows:
            within = sum(row["within"] for row in rows)
            typer.echo(f"  {variant}: {within} of {len(rows)} published numbers within their tolerance")
        same = [
            abs(row["replayed"] - row["published"]) < 0.00051 for row in rows if row["replayed"] is not None
        ]
        if same:
            typer.echo(f"  with the authors' random numbers: {sum(same)} of {len(same)} to the last digit")
