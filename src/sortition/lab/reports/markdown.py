"""The numbers of a reproduction as Markdown, put between the marks of a page that people wrote."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

from sortition.core.errors import DataError
from sortition.lab.reports.charts import chart
from sortition.lab.reports.page import picture_svg
from sortition.lab.reports.reproduction import made
from sortition.lab.reproduce import VARIANTS, Result
from sortition.lab.reproduce.departures import DEPARTURES, OUR_READINGS
from sortition.lab.reproduce.store import write_whole

VARIANT_NAMES = {"text": "text", "authors": "authors' code"}


def fill_page(page: Path, results: Sequence[Result], provenance: dict[str, Any]) -> list[str]:
    """Replace what stands between ``<!-- NAME -->`` and ``<!-- end -->``, and draw the pictures NAME.svg.

    Blocks of figures that were not run stay as they are, and only pictures that the page shows are drawn.
    Returns the names of the blocks replaced.
    """
    text = read_page(page)
    blocks = _blocks(results, provenance)
    filled = []
    for name, block in blocks.items():
        opening = f"<!-- {name} -->\n"
        before, found, rest = text.partition(opening)
        if found:
            text = f"{before}{opening}\n{block}\n<!-- end -->{rest.partition('<!-- end -->')[2]}"
            filled.append(name)
    for result in results:
        for picture in re.findall(rf"\((\S*\b{result.figure.name}\.svg)\)", text):
            write_whole(page.parent / picture, picture_svg(chart(result)))
    write_whole(page, text.encode())
    return filled


def read_page(page: Path) -> str:
    """The text of a page that can be filled: it has marks, and an end to each."""
    try:
        text = page.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise DataError(f"the page must be text that can be read, got {str(page)!r} ({error})") from None
    marks = re.findall(r"^<!-- (\S+) -->$", text, re.MULTILINE)
    if not marks or "end" in marks[::2] or set(marks[1::2]) != {"end"} or len(marks) % 2:
        raise DataError(
            f"the page must have blocks that begin with <!-- NAME --> and end with <!-- end -->, got "
            f"{str(page)!r} with {', '.join(marks) or 'none'}"
        )
    return text


def _blocks(results: Sequence[Result], provenance: dict[str, Any]) -> dict[str, str]:
    images = "; ".join(f"{name}: {source}" for name, source in provenance["images"].items())
    blocks = {
        "provenance": f"{made(provenance)}: "
        f"{provenance['rounds']} rounds, {provenance['repeats']} repeats, {provenance['image_repeats']} on "
        "images" + (f" ({images})" if images else "") + ".\n",
        "departures": _table(("what", "text", "authors' code"), DEPARTURES),
        "readings": "".join(f"- {reading}\n" for reading in OUR_READINGS),
    }
    for result in results:
        name = result.figure.name
        if result.table:
            blocks["published"] = _published(result)
            blocks["published-in-the-end"] = _published_in_the_end(result)
        if result.bounds and name == "fig1":
            blocks["bounds"] = _table(
                ("panel", "regret", "variation of the optimum", "bound of Theorem 8", "kept"),
                [(b["panel"], b["regret"], b["variation"], b["bound"], b["kept"]) for b in result.bounds],
            )
        blocks[name] = _sizes(result) if name == "fig5" else _finals(result)
    return blocks


def _published(result: Result) -> str:
    """A row a published number, the variants side by side."""
    rows: dict[tuple[Any, ...], list[Any]] = {}
    for row in result.table:
        key = (row["panel"], row["sampler"], row["quantity"], row["round"], row["published"])
        cells = rows.setdefault(key, [None] * 5)
        measured = f"{row['measured']:.2f} ± {row['spread']:.2f}".replace("-", "−")
        if row["variant"] == "authors":
            cells[:4] = [row["replayed"], row["of figure"], measured, row["within"]]
        else:
            cells[4] = measured
    runs = max(row["runs"] for row in result.table)
    ten = min(row["runs"] for row in result.table)
    columns = ("panel", "sampler", "quantity", "round", "published")
    return _table(
        (*columns, "replayed", "our first 10 runs", f"our {runs} runs", "within", f"text, {ten} runs"),
        [(*key, *cells) for key, cells in rows.items()],
    )


def _published_in_the_end(result: Result) -> str:
    """The same after the last round, for a page with less room."""
    last = max(row["round"] for row in result.table)
    rows: dict[tuple[Any, ...], list[Any]] = {}
    for row in result.table:
        if row["round"] == last:
            cells = rows.setdefault((row["panel"], row["sampler"], row["quantity"], row["published"]), [])
            cells += [row["replayed"], row["measured"]] if row["variant"] == "authors" else [row["measured"]]
    return _table(
        ("", "sampler", "", "published", "replayed", "our random numbers", "as the text says"),
        [(*key, *cells) for key, cells in rows.items()],
    )


def _finals(result: Result) -> str:
    """The last round: a row a line, the variants and quantities side by side."""
    rows: dict[tuple[str, str], dict[str, str]] = {}
    columns: dict[str, None] = {}
    for row in result.final():
        column = f"{row['quantity']}, {VARIANT_NAMES[row['variant']]}"
        columns[column] = None
        value = "-" if row["mean"] is None else f"{row['mean']:.2f} ± {row['spread']:.2f}".replace("-", "−")
        if (
            len({candidate.step_size for candidate in result.figure.runs()}) > 2
            and row["quantity"] == "log loss"
        ):
            value += f" (step {row['step_size']:g})"
        rows.setdefault((row["panel"], row["sampler"]), {})[column] = value
    ordered = sorted(columns, key=lambda column: column.split(", ")[0] == "log regret")
    ordered = [
        column for variant in VARIANTS for column in ordered if column.endswith(VARIANT_NAMES[variant])
    ]
    return _table(
        ("panel", "sampler", *ordered),
        [(*key, *(cells.get(column, "-") for column in ordered)) for key, cells in rows.items()],
    )


def _sizes(result: Result) -> str:
    """Figure 5: how many clients have how many images; a size stands in the place of a round."""
    counts = {
        (int(size), curve.variant): round(count)
        for curve in result.curves
        for size, count in zip(curve.rounds, curve.mean, strict=True)
    }
    variants = [variant for variant in VARIANTS if any(variant == own for _, own in counts)]
    totals = [sum(size * count for (size, own), count in counts.items() if own == v) for v in variants]
    sizes = sorted({size for size, _ in counts})
    return _table(
        ("training images of a client", *(f"clients, {VARIANT_NAMES[variant]}" for variant in variants)),
        [
            *((size, *(counts.get((size, variant), 0) for variant in variants)) for size in sizes),
            ("images in all", *totals),
        ],
    )


def _table(columns: Sequence[str], rows: Iterable[Sequence[Any]]) -> str:
    lines = ["| " + " | ".join(columns) + " |", "|" + "---|" * len(columns)]
    lines += ["| " + " | ".join(_cell(value) for value in row) + " |" for row in rows]
    return "\n".join(lines) + "\n"


def _cell(value: Any) -> str:
    if isinstance(value, bool):
        return "yes" if value else "**no**"
    if value is None:
        return "-"
    if isinstance(value, float):
        text = f"{value:.2e}" if abs(value) >= 1e5 else f"{value:.2f}"
        return text.replace("-", "−", 1) if value < 0 else text
    return str(value).replace("|", "\\|")
