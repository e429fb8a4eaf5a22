"""The pages of `make report` and `judge` in a real browser without a network: whole, silent, reachable, readable."""

import itertools
from pathlib import Path

import pytest

from helpers.commands import judge_page
from helpers.lab import export, ledger, notebook_file, report_page
from helpers.lab.cell_outputs import read_folder
from tests.commands.test_judge_page import HOSTILE, capped_judgement, stranger

pytestmark = pytest.mark.slow

# Contrast ratio (WCAG 2.1) of every text on the page against the nearest background that is not transparent.
CONTRAST = """() => {
  const light = c => { c /= 255; return c <= 0.03928 ? c / 12.92 : ((c + 0.055) / 1.055) ** 2.4 };
  const rgb = text => text.match(/[\\d.]+/g).map(Number);
  const luminance = ([r, g, b]) => 0.2126 * light(r) + 0.7152 * light(g) + 0.0722 * light(b);
  const poor = [];
  for (const e of document.querySelectorAll('body *')) {
    const own = [...e.childNodes].some(n => n.nodeType === 3 && n.textContent.trim());
    if (!own || !e.getClientRects().length) continue;
    let behind = [255, 255, 255];
    for (let up = e; up; up = up.parentElement) {
      const colour = rgb(getComputedStyle(up).backgroundColor);
      if (colour.length < 4 || colour[3] > 0) { behind = colour; break }
    }
    const style = getComputedStyle(e);
    const a = luminance(rgb(e.closest('svg') ? style.fill : style.color)), b = luminance(behind);
    const ratio = (Math.max(a, b) + 0.05) / (Math.min(a, b) + 0.05);
    if (ratio < 4.5) poor.push(e.tagName + ' ' + e.textContent.trim().slice(0, 40) + ' ' + ratio.toFixed(2));
  }
  return poor;
}"""


@pytest.fixture(scope="module")
def pages(tmp_path_factory) -> Path:
    """A report on the stored notebooks, one of them failed, as `make report` writes it, without minutes of running."""
    out = tmp_path_factory.mktemp("report")
    notebooks = read_folder(ledger.NOTEBOOKS)
    chapters = [report_page.Chapter(f"{key}.ipynb", export.title_of(n, key), 61.0, "") for key, n in notebooks.items()]
    chapters[-1] = report_page.Chapter(chapters[-1].name, "<b>Failed</b>", 2.0, "cell x: ZeroDivisionError: 1 / 0")
    notebook_file.write_text(report_page.report(chapters, notebooks, "report"), out / "report.html")
    for chapter in chapters:
        page = export.to_html(notebooks[chapter.key], chapter.title, "a banner")
        notebook_file.write_text(page, out / "report" / chapter.page)
    notebook_file.write_text(judge_page.page(capped_judgement(stranger())), out / "judge.html")
    return out


@pytest.fixture(scope="module")
def open_page(lab_kit):
    """Open a file in a browser whose every request to anything but files is refused and recorded as a fault."""
    from playwright.sync_api import sync_playwright

    faults: list[str] = []
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=lab_kit.CHROMIUM, args=lab_kit.CHROME_ARGUMENTS)

        def opened(path: Path, width: int = 1280):
            context = browser.new_context(viewport={"width": width, "height": 900}, offline=True)
            context.set_default_timeout(15_000)
            page = context.new_page()
            ours = (path.as_uri(), "data:")
            page.on("request", lambda r: r.url.startswith(ours) or faults.append(f"request: {r.url}"))
            page.on("console", lambda m: m.type in ("error", "warning") and faults.append(f"console: {m.text}"))
            page.on("pageerror", lambda e: faults.append(f"page error: {e}"))
            page.goto(path.as_uri())
            return page

        opened.faults = faults
        yield opened
        browser.close()


def well_made(page) -> None:
    """Language, title, one h1, no heading level left out, alt texts, table headers, anchors, contrast; no script."""
    assert page.locator("html").get_attribute("lang") == "en"
    assert page.title()
    levels = page.evaluate("() => [...document.querySelectorAll('h1,h2,h3,h4')].map(h => Number(h.tagName[1]))")
    assert levels[0] == 1
    assert levels.count(1) == 1
    assert all(after - before <= 1 for before, after in itertools.pairwise(levels))
    assert page.locator("img:not([alt]), img[alt=''], svg:not([role='img'])").count() == 0
    assert page.evaluate("() => [...document.images].every(i => i.complete && i.naturalWidth > 0)")
    assert page.locator("table:not(:has(th[scope='col']))").count() == 0
    targets = page.evaluate("() => [...document.querySelectorAll(\"a[href^='#']\")].map(a => a.getAttribute('href'))")
    ids = set(page.evaluate("() => [...document.querySelectorAll('[id]')].map(e => '#' + e.id)"))
    assert set(targets) <= ids
    assert page.locator("script").count() == 0
    assert page.evaluate(CONTRAST) == []


def keyboard_reaches(page) -> None:
    """Tab comes to the skip link first, shows where it is, and reaches every wide region, which the arrows scroll."""
    page.keyboard.press("Tab")
    assert page.evaluate("() => document.activeElement.textContent") == "Skip to the content"
    page.keyboard.press("Tab")
    assert page.evaluate("() => getComputedStyle(document.activeElement).outlineStyle") != "none"
    wide = page.locator("pre, .scroll")
    for number in range(wide.count()):
        assert wide.nth(number).get_attribute("tabindex") == "0"
        assert wide.nth(number).get_attribute("aria-label")


def test_the_report_is_whole_and_asks_for_nothing(pages, open_page):
    page = open_page(pages / "report.html")
    well_made(page)
    keyboard_reaches(page)
    assert page.locator("figure img").count() > 10
    assert page.locator("#claims ~ .scroll tbody tr").first.text_content().startswith("C1")
    assert "FAILED: cell x: ZeroDivisionError: 1 / 0" in page.locator("main").text_content()
    assert page.locator("b").count() == 0, "a title is text"
    page.get_by_role("link", name="04, c10-claim").first.click()
    assert page.evaluate("() => location.hash") == "#04_moe_gating_skew--c10-claim"
    assert page.evaluate("() => document.querySelector(':target').getBoundingClientRect().top < 100")
    page.context.close()
    assert open_page.faults == []


def test_the_page_of_a_judgement_is_whole_and_runs_nothing_of_a_stranger(pages, open_page):
    page = open_page(pages / "judge.html")
    well_made(page)
    keyboard_reaches(page)
    assert page.locator("h1").text_content() == f"Judgement of {HOSTILE}"
    assert page.locator("svg[role='img']").count() == 5
    page.locator("summary").press("Enter")
    assert page.locator("details pre").is_visible()
    page.context.close()
    assert open_page.faults == []


def test_poor_contrast_would_be_found(pages, open_page):
    page = open_page(pages / "judge.html")
    page.locator("h1").evaluate("e => { e.style.color = '#aaa' }")
    page.locator("svg text").first.evaluate("e => { e.style.fill = '#bbb' }")
    assert len(page.evaluate(CONTRAST)) == 2
    page.context.close()


@pytest.mark.parametrize("name", ["report.html", "judge.html"])
def test_the_pages_fit_a_narrow_window(pages, open_page, name):
    page = open_page(pages / name, width=360)
    assert page.evaluate("() => document.documentElement.scrollWidth") <= 360
    page.context.close()


@pytest.mark.parametrize("name", [path.stem for path in sorted(ledger.NOTEBOOKS.glob("[0-9][0-9]_*.ipynb"))])
def test_the_page_of_a_notebook_asks_for_nothing(pages, open_page, name):
    page = open_page(pages / "report" / f"{name}.html")
    assert page.get_by_role("status").first.text_content() == "a banner"
    assert page.locator("img:not([alt]), img[alt='']").count() == 0
    page.context.close()
    assert open_page.faults == []
