"""Sphinx builds the documentation from these Markdown files and from docstrings: `make docs`."""

from ntfa import __version__

project = "NTFA"
author = "the NTFA developers"
copyright = author
release = __version__

extensions = ["myst_parser", "sphinx.ext.autodoc", "sphinx.ext.napoleon"]
exclude_patterns = ["_build"]
myst_enable_extensions = ["colon_fence"]
myst_heading_anchors = 3

html_theme = "alabaster"
html_theme_options = {
    "description": "How participants and stimuli differ in an fMRI experiment, with uncertainty",
    "fixed_sidebar": True,
    "page_width": "1100px",
    "body_max_width": "900px",
}
html_show_copyright = False
html_copy_source = False

autodoc_member_order = "bysource"
autodoc_typehints = "signature"
python_maximum_signature_line_length = 88
default_role = "code"
napoleon_use_ivar = False
napoleon_use_rtype = False
nitpicky = False
