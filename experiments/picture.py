"""Take the picture of the live page that README.md shows: python -m experiments.picture docs/dashboard.png

A real run of 20 edges on a private broker, in Chromium, well under way. Needs the extra `browser`.
"""

from __future__ import annotations

import argparse
import subprocess
import sys
import tempfile
from pathlib import Path

from experiments.bench.page import find_chromium
from mapa.commands.dashboard import page_beside
from mapa.processes import ends_with_parent

# the demonstration with 20 edges: a shard has 200 images, so batches are smaller
CHANGES = ("batch_size=64", "iterations=2981", "privacy.total_epsilon=3.0", "evaluation.every=50")
MOMENT = 2000  # updates: two thirds of the run


def main() -> int:
    about = (__doc__ or "").partition("\n")[0]
    parser = argparse.ArgumentParser(prog="python -m experiments.picture", description=about)
    parser.add_argument("file", type=Path)
    views = ["fleet", "training", "staleness", "privacy", "traffic"]
    parser.add_argument("--view", default="fleet", choices=views)
    parser.add_argument("--dark", action="store_true")
    arguments = parser.parse_args()
    program = find_chromium()
    if program is None:
        print("needs Chromium (Debian: apt install chromium)", file=sys.stderr)
        return 2
    with tempfile.TemporaryDirectory() as runs, page_beside(Path(runs)) as page:
        command = [sys.executable, "-m", "mapa.cli", "run", "demo", "--edges", "20", "--runs-dir", runs]
        command += ["--json", *(word for change in CHANGES for word in ("--set", change))]
        run = subprocess.Popen(ends_with_parent(command), stdout=subprocess.DEVNULL)
        try:
            take(program, page.address, arguments.file, arguments.view, dark=arguments.dark)
        finally:
            run.terminate()
            run.wait()
    print(f"{arguments.file}: {arguments.file.stat().st_size / 1000:.0f} kB")
    return 0


def take(program: str, address: str, file: Path, view: str, *, dark: bool) -> None:
    """Wait until the only run is well under way, and take a picture of a view."""
    from playwright.sync_api import sync_playwright

    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=program)
        page = browser.new_page(
            viewport={"width": 1280, "height": 1120}, color_scheme="dark" if dark else "light"
        )
        page.set_default_timeout(600_000)
        page.goto(address)
        page.locator("main a").first.click()
        page.locator("#run .badge.live").wait_for()
        page.locator("nav a", has_text=view.capitalize()).click()
        figure = page.locator("#run .tile strong").first
        while int(figure.inner_text().replace(",", "")) < MOMENT:
            page.wait_for_timeout(200)
        page.screenshot(path=file)
        browser.close()


if __name__ == "__main__":
    sys.exit(main())
