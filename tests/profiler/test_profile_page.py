"""The page of a profile, in a headless Chromium: it opens offline, and answers the mouse."""

from __future__ import annotations

import re

import pytest

import gtensor as gt
from tests.browser import browser, faint_texts, spoilt_texts
from tests.profiler.test_recorder import training
from tests.profiler.test_views import EMPTY, some

pytestmark = pytest.mark.thorough


@pytest.fixture(scope="module")
def tab():
    with browser() as page:
        yield page


@pytest.fixture
def page(tab, tmp_path):
    some().html(tmp_path / "p.html")
    tab.errors.clear()
    tab.open(tmp_path / "p.html")
    yield tab
    assert not tab.errors


def middle_of(page, item):
    """A point of the window on an op of the time line."""
    return page.run(f"(() => {{ const r = plot.getBoundingClientRect(), [x, y] = middle({item});"
                    " return [r.left + x, r.top + y]; })()")


def test_it_loads_nothing(page, tmp_path):
    text = (tmp_path / "p.html").read_text()
    assert not re.findall(r"https?://|src=|@import|url\(", text)
    assert text.count("</script>") == 2, "a user's line ends the script"
    assert page.run("performance.getEntriesByType('resource').length") == 0


def test_a_click_chooses_an_op_and_its_backward(page):
    page.run("zoomTo(3)")
    page.click(*middle_of(page, 3))
    assert page.run("[chosen, $('name').textContent]") == [3, "op3 forward"]
    assert "Net.part0" in page.run("$('details').textContent")
    assert "</script><b>" in page.run("$('details').textContent")
    page.run("$('partner').click()")
    assert page.run("$('name').textContent") == "op3 backward"
    assert page.run("link[chosen]") == 3


def test_hover_wheel_drag_keys_and_search(page):
    x, y = middle_of(page, 3)
    page.mouse("Moved", x, y)
    page.run("new Promise(r => requestAnimationFrame(() => requestAnimationFrame(r)))")
    assert page.run("$('tip').style.display") == "block"
    whole = page.run("view[1] - view[0]")
    page.mouse("Wheel", x, y, deltaX=0, deltaY=-120)
    page.run("new Promise(r => requestAnimationFrame(() => requestAnimationFrame(r)))")
    assert page.run("view[1] - view[0]") < whole
    page.run("look(0, end)")
    page.mouse("Pressed", 400, y, button="left", clickCount=1)
    page.mouse("Moved", 500, y, button="left")
    page.mouse("Released", 500, y, button="left", clickCount=1)
    assert page.run("(view[1] - view[0]) / end") == pytest.approx(
        100 / page.run("width()"), rel=0.02)
    page.run("plot.focus()")
    page.call("Input.dispatchKeyEvent", type="keyDown", key="Escape")
    assert page.run("view[1] - view[0]") == whole
    page.run("$('search').value = 'part1'; find()")
    assert page.run("$('hits').textContent") == "67 found"
    page.run("$('search').value = 'OP2'; find()")
    assert page.run("[...document.querySelectorAll('#rows tr')].length") == 2


def test_the_table_is_the_profile(page):
    assert page.run("table.reduce((a, r) => a + r.calls, 0)") == 400
    page.run("$('group').value = 'module'; $('group').onchange()")
    assert sorted(page.run("table.map(r => r.name)")) == [
        "(outside modules)", "Net.part0", "Net.part1", "Net.part2"]
    page.run("document.querySelector('[data-key=moved]').click()")
    moved = page.run("table.map(r => r.moved)")
    assert moved == sorted(moved, reverse=True)


def test_an_empty_profile_opens(tab, tmp_path):
    EMPTY.html(tmp_path / "p.html")
    tab.errors.clear()
    tab.open(tmp_path / "p.html")
    assert "nothing was recorded" in tab.run("$('rows').textContent") and not tab.errors


def test_an_error_of_a_page_is_found(tab, tmp_path):
    (tmp_path / "p.html").write_text("<script>console.error('planted')</script>"
                                     "<script>missing()</script>")
    tab.errors.clear()
    tab.open(tmp_path / "p.html")
    assert any("planted" in error for error in tab.errors)
    assert any("missing is not defined" in error for error in tab.errors)


def test_the_page_of_a_thousand_steps_answers_a_click(tab, tmp_path):
    step = training()
    with gt.profiler.profile() as p:
        for _ in range(1000):
            step()
    p.html(tmp_path / "p.html")
    tab.errors.clear()
    tab.open(tmp_path / "p.html")
    last = max(i for i, span in enumerate(p.spans) if span.link is not None)
    tab.run(f"zoomTo({last})")
    tab.click(*middle_of(tab, last))
    assert tab.run("[chosen, link[chosen]]") == [last, p.spans[last].link] and not tab.errors


@pytest.mark.parametrize("width", [420, 1280, 1920])
@pytest.mark.parametrize(("what", "drawn"), [("profile", "0 ms"), ("memory", "0 B")])
def test_no_text_is_cut_faint_or_over_another(tab, tmp_path, what, drawn, width):
    path = tmp_path / "p.html"
    if what == "profile":
        some(20).html(path)
    else:
        with gt.settings.override(arena_min_bytes=0), gt.memory.timeline(path, stacks=True):
            training()()
    tab.errors.clear()
    tab.open(path, width)
    for theme in "light", "dark":
        assert tab.run("document.documentElement.dataset.theme") == theme
        assert spoilt_texts(tab) == [] == faint_texts(tab) and not tab.errors
        tab.run("theme.click()")
    at = tab.run("document.querySelector('h1').getBoundingClientRect().left")
    for left in (at, width - 9):
        tab.run("document.body.insertAdjacentHTML('beforeend', '<b style=\"position: absolute; "
                f"top: 22px; left: {left}px\">planted</b>')")
    kinds = {text for pair in spoilt_texts(tab) if "planted" in pair for text in pair}
    assert "cut" in kinds and kinds - {"cut", "planted"}
    tab.run("document.documentElement.style.setProperty('--soft', '#fe7f80')")
    assert {tab.run("subtitle.textContent"), drawn} <= {text for text, _ in faint_texts(tab)}
