"""The site: `make docs` builds it. It needs no network, neither to build nor to read."""

from __future__ import annotations

import re
import sys
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from sphinx.ext.napoleon import Config
from sphinx.ext.napoleon.docstring import NumpyDocstring

import sortition

sys.path.insert(0, str(Path(__file__).parent))  # commands.py

MATHJAX = Path(find_spec("sphinx-mathjax-offline").origin).parent  # a package that only carries the file

project = "Sortition"
author = "the Sortition maintainers"
copyright = f"2026, {author}. Apache-2.0"
release = version = sortition.__version__

extensions = [
    "myst_nb",
    "sphinx.ext.autodoc",
    "sphinx.ext.viewcode",
    "sphinx.ext.mathjax",
    "sphinx_copybutton",
    "sphinx_click",
]
exclude_patterns = ["_build"]
smartquotes = False  # --option stays --option

# Pages
myst_enable_extensions = ["dollarmath", "colon_fence", "attrs_inline", "deflist"]
myst_heading_anchors = 3
nb_execution_mode = "force"
nb_execution_raise_on_error = True
nb_execution_timeout = 900  # a busy machine that compiles
nb_merge_streams = True

# Reference. What other libraries define has no page here, and some inner types show in signatures only.
nitpicky = True
autodoc_typehints_format = "short"
autodoc_member_order = "bysource"
autodoc_preserve_defaults = True
autodoc_default_options = {"members": True}
python_maximum_signature_line_length = 90
ALIASES = (
    "ArrayLike",
    "BoolArray",
    "Design",
    "FloatArray",
    "IntArray",
    "MakeSampler",
    "Norms",
    "Updates",
    "Weighed",
    "WeightsOf",
)
autodoc_type_aliases = {name: name for name in ALIASES}
nitpick_ignore_regex = [
    ("py:.*", r"(abc|collections|flwr|numba|numpy|os|pathlib|torch|typing)\b.*"),
    ("py:.*", "|".join(ALIASES)),
    ("py:.*", r"sortition\.(engine|ledger\.store|samplers\.static\.StaticSampler)\b.*"),
    ("py:.*", r"sortition\.lab\.(arena\.environments\.ProblemFactory|diagnosis\.findings\.Heterogeneity)"),
    ("py:.*", r"sortition\.integrations\.torch\.adaptive_batches\.EpochPlan"),
]


def place_in_the_paper(*arguments: Any) -> None:
    """A formula that ends in "    (Equation 2)" shows that as text, and not as a product of letters."""
    lines: list[str] = arguments[-1]
    indent = None  # of the formula that the line belongs to
    for number, line in enumerate(lines):
        depth = len(line) - len(line.lstrip())
        if line.lstrip().startswith(".. math::"):
            indent = depth
        elif line.strip() and indent is not None and depth <= indent:
            indent = None
        if indent is not None:
            lines[number] = re.sub(r" {2,}(\([A-Z][^()]*\))$", r" \\qquad \\text{\1}", line)


def numpy_sections(app: Any, what: str, name: str, obj: Any, options: Any, lines: list[str]) -> None:
    """The section "Parameters" as a list. Napoleon as an extension would take "Name: text" for a type."""
    if any(line.startswith("-----") for line in lines):
        text = NumpyDocstring("\n".join(lines), Config(), app, what, name, obj, options)
        lines[:] = str(text).splitlines()


def plain_aliases(*arguments: Any) -> tuple[str, str] | None:
    """Sphinx 9 shows the alias X in a union as TypeAliasForwardRef('X'), and can't read <factory>."""
    signature, returned = arguments[-2:]
    if signature is None:
        return None
    alias = re.compile(r"TypeAliasForwardRef\('(\w+)'\)")
    return alias.sub(r"\1", signature).replace("<factory>", "..."), alias.sub(r"\1", returned or "")


def setup(app: Any) -> None:
    """Called by Sphinx."""
    app.connect("autodoc-process-signature", plain_aliases)
    app.connect("autodoc-process-docstring", place_in_the_paper)
    app.connect("autodoc-process-docstring", numpy_sections)


# Looks
html_theme = "furo"
pygments_dark_style = "a11y-dark"  # the theme's own underlines names of modules, like links
html_title = f"Sortition {release}"
html_static_path = ["_static", f"{MATHJAX}/static/mathjax/tex-svg.js"]
html_css_files = ["site.css"]
html_copy_source = False
html_show_sphinx = False
mathjax_path = "tex-svg.js"  # formulas are drawn as paths: no fonts to load, also from file://
