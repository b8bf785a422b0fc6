"""How Sphinx builds the site: `make docs`. Pages are Markdown that reads well without it, too."""

from __future__ import annotations

import importlib.metadata
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1]))

project = "MAPA testbed"
author = "the authors of the MAPA testbed"
release = importlib.metadata.version("mapa-testbed")

extensions = ["myst_parser", "sphinx.ext.autodoc"]
exclude_patterns = ["_build"]
nitpicky = True
nitpick_ignore_regex = [
    ("py:.*", ".*")
]  # types in signatures; links between pages are MyST's, and all checked

myst_heading_anchors = 4

autodoc_mock_imports = ["torch"]  # the API page is made without it
autodoc_typehints = "signature"
autodoc_member_order = "bysource"
autodoc_preserve_defaults = True
python_use_unqualified_type_names = True

html_theme = "furo"
html_title = "MAPA testbed"
html_copy_source = False
html_theme_options = {"source_repository": ""}

linkcheck_ignore = [r"http://(127\.0\.0\.1|localhost)[:/].*"]  # addresses of a run
linkcheck_timeout = 20
