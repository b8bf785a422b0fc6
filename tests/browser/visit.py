"""One window on the page, as a person uses it."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any

PATIENCE = 180.0  # seconds for one step of a visit; reached only where something is missing

_OF_THE_MACHINE = (
    "net::ERR_NETWORK_CHANGED"  # an interface came or went, such as a container's; the page asks again
)

VIEWS = ("fleet", "training", "staleness", "privacy", "traffic", "events")


@dataclass
class Visit:
    """A page, what it asked for, and what its console said."""

    page: Any
    address: str
    outside: list[str] = field(default_factory=list)  # requests to another host
    said: list[str] = field(
        default_factory=list
    )  # errors and warnings of the console, breaches of the CSP too

    def go(self, place: str) -> None:
        """Open a place of the page and wait until it is drawn."""
        self.page.goto(f"{self.address}/#/{place}")
        current = f'#views a[aria-current][href="#/{place}"]'  # not the view before it
        self.page.locator(current).wait_for(state="attached")
        view = place.partition("?")[0].rpartition("/")[2]
        self.page.locator(f'main .view[data-view="{view}"]').wait_for()

    def text(self, selector: str) -> str:
        return str(self.page.locator(selector).inner_text())

    def changed(self, selector: str, before: str) -> None:
        """Wait until the text there is another."""
        from playwright.sync_api import expect  # an extra: the tests are collected without it

        expect(self.page.locator(selector)).not_to_have_text(before, timeout=PATIENCE * 1000)

    def shows(self, selector: str, text: str) -> None:
        """Wait until the text there is this."""
        from playwright.sync_api import expect

        expect(self.page.locator(selector)).to_have_text(text, timeout=PATIENCE * 1000)

    def tile(self, name: str) -> Any:
        """Return the figure of a tile by its label, the first of that name."""
        label = self.page.locator(".tile .label", has_text=name).and_(self.page.get_by_text(name, exact=True))
        return label.first.locator("xpath=following-sibling::strong")

    def rows(self, caption: str) -> list[list[str]]:
        """Return the cells of a table by its caption, all at one instant."""
        region = self.page.get_by_role("region", name=caption, exact=False).first
        region.wait_for()
        region.and_(self.page.locator(":not([aria-busy])")).wait_for()  # all its rows are there
        cells = "rows => rows.map(row => [...row.querySelectorAll('td')].map(cell => cell.innerText))"
        found: list[list[str]] = region.locator("tbody tr").evaluate_all(cells)
        return found

    def chart(self, label: str) -> Any:
        """Return a chart by the beginning of its label, once it is drawn."""
        found = self.page.locator(f'.chart[aria-label^="{label}"]')
        found.locator(".u-over").wait_for()
        return found

    def read(self, label: str) -> list[list[str]]:
        """Return every value of a chart as the keyboard reads them: x, then each line."""
        chart = self.chart(label)
        chart.focus()
        self.page.keyboard.press("Home")
        found: list[list[str]] = []
        while not found or self._legend(chart)[0] != found[-1][0]:
            found.append(self._legend(chart))
            self.page.keyboard.press("ArrowRight")
        return found

    def hover(self, label: str, share: float) -> list[str]:
        """Point at a share of a chart's width; return x and the values that the legend has then."""
        chart = self.chart(label)
        chart.scroll_into_view_if_needed()
        box = chart.locator(".u-over").bounding_box()
        self.page.mouse.move(box["x"] + share * box["width"], box["y"] + box["height"] / 2)
        return self._legend(chart)

    def _legend(self, chart: Any) -> list[str]:
        return list(chart.locator(".u-legend .u-value").all_inner_texts())

    @property
    def width(self) -> int:
        return int(self.page.evaluate("document.documentElement.scrollWidth"))


Opens = Callable[..., Visit]


@contextlib.contextmanager
def visiting(chromium: Any) -> Iterator[Opens]:
    """Return what opens windows; at the end each must have kept to its host, with nothing to complain about."""
    visits: list[tuple[Visit, Any]] = []

    def open_one(address: str, place: str | None = "runs", **looks: Any) -> Visit:
        context = chromium.new_context(**{"viewport": {"width": 1280, "height": 900}, **looks})
        context.set_default_timeout(PATIENCE * 1000)
        page = context.new_page()
        visit = Visit(page, address)

        def foreign(url: str) -> bool:
            return not url.startswith((f"{address}/", "data:"))

        def stop(route: Any) -> None:
            visit.outside.append(route.request.url)
            route.abort()

        context.route(foreign, stop)
        page.on("console", lambda m: visit.said.append(m.text) if m.type in ("error", "warning") else None)
        page.on("pageerror", lambda error: visit.said.append(str(error)))
        page.on("dialog", lambda dialog: (visit.said.append(f"dialog: {dialog.message}"), dialog.dismiss()))
        visits.append((visit, context))
        if place is not None:
            visit.go(place)
        return visit

    try:
        yield open_one
    finally:
        for _, context in visits:
            context.close()
    for visit, _ in visits:
        assert visit.outside == [], visit.outside
        assert visit.said == [], visit.said
