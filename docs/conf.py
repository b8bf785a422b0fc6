"""How Sphinx builds the site: `make docs`."""

from __future__ import annotations

import sys
import importlib.metadata
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1]))

project = "MAPA testbed"
author = "the MAPA testbed's authors"
release = importlib.metadata.version("mapa-testbed")

extensions = ["myst_parser", "sphinx.ext.autodoc"]
exclude_patterns = ["_build"]
nitpicky = True

myst_heading_anchors = 4
html_theme = "furo"
html_title = "MAPA testbed"
autodoc_mock_imports = ["torch"]
