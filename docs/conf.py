"""Sphinx configuration; `nox -s docs` builds with warnings fatal."""

project = "SS-HSDP"
copyright = "the SS-HSDP contributors"  # noqa: A001 - Sphinx reads this name

extensions = ["myst_parser", "sphinx.ext.doctest"]
exclude_patterns = ["_build"]
myst_enable_extensions = ["dollarmath"]
myst_heading_anchors = 2
nitpicky = True

html_theme = "furo"
html_title = project
