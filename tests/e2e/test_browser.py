"""The page in a real browser, against a real server: by mouse, by keyboard, on a phone, in the dark, and with bad manners."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from adapler.classifier import Classifier
from benchmarks.browser import browsing, missing
from benchmarks.serve_load import running, served
from tests.serving import made_up_dial, serving
from tests.tiny import tiny_classifier, tiny_texts

if (lacking := missing()) is not None:
    pytest.skip(lacking, allow_module_level=True)

from playwright.sync_api import expect

from tests.browsing import check_drawn, fail, opened, rows, saved, settled, slide, typed

if TYPE_CHECKING:
    from playwright.sync_api import Browser, Page

TEXT = "a brilliant film with a clever script, but the end is dull and unbelievably long"
LONG = " ".join(tiny_texts(12, seed=3))
Open = Callable[..., "Page"]


DIAL = made_up_dial(("1.3x", 0.5, 0.0, 1.3), ("2.0x", 1.0, 0.25, 2.0), ("3.0x", 1.6, 2.0, 3.0))


def dialled() -> Classifier:
    made = tiny_classifier(eta=0.5)
    made.dial = DIAL
    return made


@pytest.fixture(scope="module")
def classifier() -> Classifier:
    return dialled()


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    with browsing() as opened:
        yield opened


@pytest.fixture(scope="module")
def address(classifier: Classifier, tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """Of a server that is a process of its own, on a model folder with a dial."""
    folder = tmp_path_factory.mktemp("served") / "tiny"
    classifier.save_pretrained(folder)
    with running(served(str(folder), "--threads", "1", "--payload-limit", "300000")) as server:
        yield server.url


@pytest.fixture
def show(browser: Browser, address: str) -> Iterator[Open]:
    """`show(**options)`: the page, opened. Whatever it complains of and all it asks for must be as expected."""
    with ExitStack() as stack:

        def another(url: str = address, *, path: str = "/ui", allowed: str = "^$", waits: bool = True, **options: Any) -> Page:
            return stack.enter_context(opened(browser, url, path, allowed=allowed, waits=waits, options=options))

        yield another


def test_a_typed_text_is_drawn_as_reports_draw_it(show: Open, classifier: Classifier) -> None:
    page = show()
    for text in (TEXT, LONG):
        typed(page, text)
        expect(page.locator(".waterfall small").first).to_contain_text(f"/{len(classifier(text).tokens)}")
        check_drawn(page, classifier.explain(text, point="2.0x").picture())
    with pytest.raises(AssertionError):  # a picture that is not this one's would be noticed
        check_drawn(page, classifier.explain(LONG, point="3.0x").picture())


def test_the_answer_stands_beside_the_full_model_run_live(show: Open, classifier: Classifier) -> None:
    page = show()
    typed(page, TEXT)
    expect(page.locator(".waterfall")).to_contain_text("brilliant")
    settled(page)
    reduced, full = classifier(TEXT, point="2.0x"), classifier(TEXT, point="full")
    assert full.lengths == [len(full.tokens)] * 4 and full.flops == full.flops_full
    expect(page.locator(".answer .label")).to_have_text(f"{reduced.label} {100 * reduced.score:.1f} %")
    cells = page.locator("table.account tbody tr").evaluate_all(
        "rows => rows.map(row => [...row.cells].map(cell => cell.textContent))"
    )
    told = {row[0]: row[1:] for row in cells}
    assert told["answer"][:2] == [reduced.label, full.label]
    assert told["confidence"][:2] == [f"{100 * reduced.score:.1f} %", f"{100 * full.score:.1f} %"]
    ratio = reduced.flops_full / reduced.flops
    assert told["FLOPs"][2] == f"{round(100 - 100 / ratio)} %, {ratio:.2f}x"
    assert all(float(value) > 0 for value in told["milliseconds"][:2])
    assert told["tokens in the last layer"][:2] == [f"{reduced.lengths[-1]} of {len(reduced.tokens)}", str(len(full.tokens))]


def test_moving_the_dial_changes_the_tokens(show: Open, classifier: Classifier) -> None:
    page = show()
    typed(page, TEXT)
    expect(page.locator(".waterfall")).to_contain_text("brilliant")
    slider = page.get_by_role("slider", name="Dial")
    for key, name in (("ArrowRight", "3.0x"), ("Home", "1.3x"), ("ArrowRight", "2.0x")):
        slider.press(key)
        expect(slider).to_have_attribute("aria-valuetext", re.compile(f"^{name}: .*points lost on dev.*fewer FLOPs"))
        picture = classifier.explain(TEXT, point=name).picture()
        counts = [f"{layer.entered}/{picture.tokens}" for layer in picture.layers]
        expect(page.locator(".waterfall small")).to_have_text(counts)
        check_drawn(page, picture)
        expect(page.locator(".points .now").first).to_have_text(name)


def test_a_slider_moved_in_haste_ends_where_it_stands(show: Open, classifier: Classifier) -> None:
    page = show()
    typed(page, TEXT)
    for key in ("End", "Home", "End", "Home", "ArrowRight", "End"):
        slide(page, key)
        page.wait_for_timeout(60)
    settled(page)
    expect(page.locator(".readout b")).to_have_text("3.0x")
    check_drawn(page, classifier.explain(TEXT, point="3.0x").picture())


def test_every_point_can_be_timed_here(show: Open) -> None:
    page = show()
    page.get_by_role("button", name="Time every point").click()
    expect(page.locator(".pane .said")).to_contain_text("timed 7 times")
    times = page.locator(".points tr").last.locator("td").all_text_contents()
    assert len(times) == 3 and all(float(each) > 0 for each in times)


def test_what_the_doctor_found_stands_at_the_dial(show: Open) -> None:
    made = dialled()
    found = made.examine(["a good film", "a bad story"], seconds=0.1).latencies
    with serving(made) as server:
        page = show(server.url)
        settled(page)
        row = page.locator(".points tr").filter(has_text="ms, doctor").locator("td")
        assert [float(each) for each in row.all_text_contents()] == pytest.approx(
            [found[p.name] for p in DIAL.points], rel=0.05
        )
        expect(page.locator(".readout")).to_contain_text("ms a text on this machine (doctor)")


def test_a_race_is_run_to_its_end(show: Open) -> None:
    page = show()
    page.select_option("#race-count", "100")
    page.click("#race-go")
    said = page.locator("#race-said")
    expect(said).to_contain_text(re.compile(r"100 texts in [\d.]+ s against [\d.]+ s\. \d+ of 100 answers are the same"))
    for lane in page.get_by_role("progressbar").all():
        assert lane.get_attribute("aria-valuenow") == lane.get_attribute("aria-valuemax") == "100"
    expect(page.locator(".pace").first).to_contain_text("texts/s")
    full, reduced = (len((line.get_attribute("points") or "").split()) for line in page.locator(".course polyline").all())
    assert full == reduced == 1 + 7  # batches of 16
    page.get_by_text("Your own texts").click()
    page.fill("#race-lines", "a good film\n\n  a bad film \nthe end")
    page.click("#race-go")
    expect(said).to_contain_text("3 texts in")


def test_a_race_can_be_stopped(show: Open) -> None:
    page = show()
    page.select_option("#race-count", "600")
    page.click("#race-go")
    page.click("#race-stop")
    expect(page.locator("#race-said")).to_have_text("Stopped.")
    expect(page.locator("#race-go")).to_be_enabled()


def test_two_texts_and_two_points_stand_side_by_side(show: Open, classifier: Classifier) -> None:
    page = show()
    typed(page, TEXT)
    settled(page)
    page.get_by_role("button", name="Side by side").click()
    settled(page, 1)
    expect(page.locator(".readout b")).to_have_text(["2.0x", "3.0x"])  # the same text, one point further
    check_drawn(page, classifier.explain(TEXT, point="3.0x").picture(), 1)
    typed(page, LONG, 1)
    slide(page, "Home", pane=1)
    expect(page.locator(".waterfall").nth(1)).to_contain_text(LONG.split()[-1])
    settled(page, 1)
    check_drawn(page, classifier.explain(TEXT, point="2.0x").picture(), 0)
    check_drawn(page, classifier.explain(LONG, point="1.3x").picture(), 1)
    left, right = (page.locator(".pane").nth(index).bounding_box() for index in (0, 1))
    assert left is not None and right is not None and left["y"] == right["y"] and left["x"] < right["x"]
    page.get_by_role("button", name="Side by side").click()
    expect(page.locator(".pane")).to_have_count(1)


def test_a_link_brings_everything_back(show: Open, address: str) -> None:
    page = show()
    odd = "schön & <b>数据</b> 🙂 100% #s=?"
    typed(page, odd)
    page.get_by_label("a pair of texts").check()
    page.locator(".second-text").fill("the second")
    page.get_by_role("button", name="Side by side").click()
    slide(page, "Home", pane=1)
    typed(page, LONG, 1)
    page.get_by_role("button", name="Copy link").click()
    expect(page.locator("#told")).to_contain_text("copied")
    link = page.locator("#link-text").input_value()
    assert page.evaluate("navigator.clipboard.readText()") == link == page.url
    again = show(path=link.removeprefix(address))
    settled(again, 1)
    assert again.locator(".text").nth(0).input_value() == odd
    assert again.locator(".second-text").nth(0).input_value() == "the second"
    assert again.locator(".text").nth(1).input_value() == LONG
    expect(again.locator(".readout b")).to_have_text(["2.0x", "1.3x"])
    assert rows(again, 1) == rows(page, 1)
    slide(again, "End")  # another state: the link is not of it
    expect(again).to_have_url(address + "/ui")


def test_a_link_that_was_cut_is_said_to_be(show: Open) -> None:
    page = show(path="/ui#s=W3sidGV4dCI6Im")
    for fragment in ("#s=", "#s=!!!", "#s=bm90IGEgc3RhdGU", "#s=W10", "#s=W3sidGV4dCI6MX1d"):
        expect(page.locator("#notice")).to_contain_text("cannot be read")
        page.evaluate("document.querySelector('#notice').textContent = ''")
        page.evaluate(f"location.hash = '{fragment}'")
    expect(page.locator("#notice")).to_contain_text("cannot be read")


def test_a_link_to_a_point_of_another_model_is_told(show: Open) -> None:
    page = show()
    page.get_by_role("button", name="Copy link").click()
    state = "W3sidGV4dCI6ImEgZmlsbSIsInBvaW50IjoiOTl4In1d"  # [{"text":"a film","point":"99x"}]
    page.evaluate(f"location.hash = '#s={state}'")
    expect(page.locator("#notice")).to_contain_text("does not have")
    expect(page.locator(".text")).to_have_value("a film")


def test_all_of_it_is_reached_by_keyboard_alone(show: Open, classifier: Classifier) -> None:
    page = show()
    page.locator("body").press("Tab")
    expect(page.locator(".skip")).to_be_focused()
    page.keyboard.press("Enter")
    page.keyboard.press("Tab")
    expect(page.locator(".text")).to_be_focused()
    page.keyboard.press("Control+A")
    page.keyboard.type(TEXT)
    page.keyboard.press("Control+Enter")
    expect(page.locator(".waterfall")).to_contain_text("brilliant")
    settled(page)
    seen = []
    for _ in range(40):
        page.keyboard.press("Tab")
        seen.append(page.evaluate("(at => at.id || at.className || at.tagName)(document.activeElement)"))
        style = page.evaluate("(s => [s.outlineStyle, s.outlineWidth])(getComputedStyle(document.activeElement))")
        if page.evaluate("document.activeElement !== document.body"):
            assert style[0] != "none" and style[1] != "0px", seen[-1]  # it can be seen where one is
        if seen[-1].startswith("dial-"):
            page.keyboard.press("ArrowRight")
            expect(page.locator(".readout b")).to_have_text("3.0x")
    names = " ".join(seen)
    for part in [
        "examples",
        "pair",
        "run",
        "dial-",
        "small",
        "account",
        "picture",
        "save-html",
        "save-png",
        "race-count",
        "race-point",
        "race-go",
    ]:
        assert part in names, part
    check_drawn(page, classifier.explain(TEXT, point="3.0x").picture())


def test_arrow_keys_follow_a_token_through_the_layers(show: Open, classifier: Classifier) -> None:
    page = show()
    typed(page, TEXT)
    expect(page.locator(".waterfall")).to_contain_text("brilliant")
    settled(page)
    told = classifier.explain(TEXT, point="2.0x")
    page.locator(".picture").focus()
    for place in range(4):
        page.keyboard.press("ArrowRight")
        left = told.left[place]
        end = "goes through all layers" if left is None else f"leaves in front of layer {left + 1}"
        expect(page.locator(".trail-said")).to_contain_text(end)
        expect(page.locator(".trail-said")).to_contain_text(told.pieces[place])


def test_screen_readers_get_names_states_and_a_table(show: Open) -> None:
    page = show()
    typed(page, "a good film")
    expect(page.locator(".pane .said")).to_contain_text("tokens reach the last layer")
    tree = page.locator("body").aria_snapshot()
    for part in (
        'textbox "Text"',
        'slider "Dial"',
        'button "Run',
        'rowheader "layer 1',
        'region "Layer by layer',
        "status",
        'table "Reduced',
    ):
        assert part in tree, tree
    unnamed = page.evaluate("""[...document.querySelectorAll("input, select, textarea, button")]
        .filter(each => !each.labels?.length && !each.textContent.trim()).map(each => each.outerHTML)""")
    assert unnamed == []
    page.get_by_text("Which words left where").click()
    expect(page.locator(".list tbody tr")).to_have_count(5)


def test_a_key_is_asked_for_and_goes_nowhere_else(show: Open, classifier: Classifier) -> None:
    with serving(classifier, key="open-sesame") as server:
        page = show(server.url, waits=False, allowed="401")
        expect(page.locator("#notice")).to_have_text("This server wants an API key. Type it above.")
        expect(page.get_by_label("API key of this server")).to_be_focused()
        for wrong, words in (("wrong", "not this server's"), ("schlüssel", "plain letters")):
            page.get_by_label("API key of this server").fill(wrong)
            page.keyboard.press("Enter")
            expect(page.locator("#notice")).to_contain_text(words)
        page.get_by_label("API key of this server").fill("open-sesame")
        page.keyboard.press("Enter")
        settled(page)
        expect(page.locator("#notice")).to_have_text("")
        page.get_by_role("button", name="Copy link").click()
        expect(page.locator("#told")).to_contain_text("no key")
        kept = page.evaluate("[location.href, document.cookie, JSON.stringify(localStorage), JSON.stringify(sessionStorage), "
                             "document.documentElement.outerHTML].join()")  # fmt: skip
        assert "open-sesame" not in kept and "b3Blbi1zZXNhbW" not in kept


HOSTILE = {
    "markup": '<script>alert(1)</script><img src=x onerror=alert(2)> </textarea><svg onload="alert(3)">',
    "turned round": "abc \u202e evil \u2066 hidden \u200b\u200f \u00ad end",
    "controls": "nul \u0000 bell \u0007 escape \u001b[31m delete \u007f line \u2028 end",
    "right to left": "שלום עולם مرحبا بالعالم good film",
    "marks": "z̷̢̛a̶l̵g̶o " * 20 + "👩‍👩‍👧‍👦🏴‍☠️",
    "one word": "x" * 3000,
}


def test_hostile_text_is_shown_as_text(show: Open, classifier: Classifier) -> None:
    page = show()
    for name, text in HOSTILE.items():
        typed(page, text)
        expect(page.locator(".waterfall small").first).to_contain_text(f"/{len(classifier(text).tokens)}")
        expect(page.locator(".pane .wrong")).to_have_text("")
        assert page.locator("script").count() == 1 and page.locator("img, svg:not(.course)").count() == 0, name
        shown = page.locator(".result").text_content() or ""
        assert not re.search("[\u0000-\u0008\u001b\u007f\u202e\u2066\u200b\u2028]", shown), name
        assert page.evaluate("document.documentElement.scrollWidth <= innerWidth"), name
    page.evaluate("document.querySelector('.text').value = 'nul \\u0000 film'")  # no keyboard types it
    page.locator(".text").press("Control+Enter")
    expect(page.locator(".waterfall")).to_contain_text("nul")


def test_half_characters_are_read_as_the_server_reads_them(show: Open, classifier: Classifier) -> None:
    page = show()
    page.evaluate("document.querySelector('.text').value = 'a good \\ud800 film \\udc00'")
    page.locator(".text").press("Control+Enter")
    expect(page.locator(".waterfall small").first).to_contain_text("/5")
    check_drawn(page, classifier.explain("a good \ud800 film \udc00", point="2.0x").picture())


def test_text_cannot_become_a_program(show: Open) -> None:
    page = show(allowed="Content Security Policy|Trusted(HTML|Script)")
    assert (
        page.evaluate("(() => { try { document.body.innerHTML = '<b>no</b>'; } catch (error) { return error.name; } })()")
        == "TypeError"
    )
    page.evaluate("""(() => { const script = document.createElement("script");
        try { script.text = "window.ran = 1"; document.body.append(script); } catch { /* refused already */ } })()""")
    assert page.evaluate("window.ran === undefined")
    refused = page.evaluate("fetch('http://127.0.0.2:1/').then(() => 'sent', error => error.name)")
    assert refused == "TypeError"


def test_huge_text_is_cut_or_refused_in_words(show: Open) -> None:
    page = show()
    typed(page, "a good film " * 8400)
    expect(page.locator(".note")).to_contain_text("longer than the model reads: this is about 512 tokens")
    settled(page)
    page.get_by_role("button", name="Copy link").click()
    expect(page.locator("#notice")).to_contain_text("too long for a link")
    typed(page, "a good film " * 30_000)
    expect(page.locator(".pane .wrong")).to_contain_text("larger than this server takes (300,000 bytes). Shorten it.")


def test_empty_text_asks_for_one_and_nothing_of_the_server(show: Open) -> None:
    page = show()
    settled(page)
    asked: list[str] = []
    page.on("request", lambda request: asked.append(request.url))
    typed(page, "")
    expect(page.locator(".pane .said")).to_have_text("The text is empty. Type one, or pick an example.")
    expect(page.locator(".result")).to_be_hidden()
    slide(page, "End")
    page.wait_for_timeout(400)
    assert asked == []
    page.get_by_label("Example").select_option("Two sentences")
    expect(page.locator(".second-text")).to_be_visible()
    settled(page)


TROUBLES = {
    422: "refuses the request. It says: no such point.",
    504: "no answer in time",
    500: "status 500",
    429: "busy and asks to come back in 1 s",
}


def test_troubles_are_told_with_what_to_do(show: Open) -> None:
    page = show(allowed="|".join(map(str, TROUBLES)))
    for status, words in TROUBLES.items():
        page.route("**/explain", partial(fail, status), times=1)
        typed(page, TEXT)
        expect(page.locator(".pane .wrong")).to_contain_text(words)
    expect(page.locator(".waterfall")).to_contain_text("brilliant")  # after 429 it comes back by itself
    expect(page.locator(".pane .wrong")).to_have_text("")


def test_a_server_that_is_gone_is_told_and_found_again(show: Open, classifier: Classifier) -> None:
    with serving(classifier) as server:
        page = show(server.url, allowed="ERR_CONNECTION|Failed to load")
    typed(page, TEXT)
    expect(page.locator(".pane .wrong")).to_contain_text("The server does not answer. See whether adapler serve still runs")


def test_a_model_without_a_dial_says_how_to_get_one(show: Open) -> None:
    with serving(tiny_classifier(eta=0.5)) as server:
        page = show(server.url)
        expect(page.locator(".dial")).to_contain_text("adapler dial MODEL --data DEV")
        expect(page.locator("input[type=range]")).to_have_count(0)
        page.select_option("#race-count", "100")
        page.click("#race-go")
        expect(page.locator("#race-said")).to_contain_text("100 texts in")
        settled(page)


def test_a_model_that_removes_nothing_still_answers(show: Open) -> None:
    with serving(tiny_classifier(reduced=False)) as server:
        page = show(server.url, waits=False)
        expect(page.locator(".dial")).to_contain_text("adapler train")
        expect(page.locator(".pane .said")).to_contain_text("This model removes nothing")
        expect(page.locator("#race")).to_be_hidden()


def test_a_phone_shows_it_without_scrolling_sideways(show: Open) -> None:
    page = show(viewport={"width": 360, "height": 740}, is_mobile=True, has_touch=True)
    for text in ("a good film", LONG):
        typed(page, text)
        settled(page)
        page.locator(".run").first.tap()
        page.get_by_text("Which words left where").tap()
        assert page.evaluate("[document.documentElement.scrollWidth, innerWidth]") == [360, 360]
    page.get_by_role("button", name="Side by side").tap()
    settled(page, 1)
    page.select_option("#race-count", "100")
    page.locator("#race-go").tap()
    expect(page.locator("#race-said")).to_contain_text("100 texts in")
    assert page.evaluate("[document.documentElement.scrollWidth, innerWidth]") == [360, 360]
    small = page.locator("button:visible").evaluate_all(
        "all => all.filter(each => each.offsetHeight < 32).map(each => each.textContent)"
    )
    assert small == []  # large enough for a thumb


def test_dark_pages_are_dark_and_still_can_stand_still(show: Open) -> None:
    light, dark = show(), show(color_scheme="dark", reduced_motion="reduce")
    brightness = "name => getComputedStyle(document.body)[name].match(/\\d+/g).slice(0, 3).map(Number).reduce((a, b) => a + b)"
    assert light.evaluate(brightness, "backgroundColor") > 700 > light.evaluate(brightness, "color")
    assert dark.evaluate(brightness, "backgroundColor") < 100 < dark.evaluate(brightness, "color")
    moving = "getComputedStyle(document.querySelector('.waterfall .layer')).animationName"
    assert (light.evaluate(moving), dark.evaluate(moving)) == ("come", "none")


def test_what_is_saved_is_the_picture(show: Open, tmp_path: Path, browser: Browser) -> None:
    page = show()
    typed(page, "a good film </style><script>alert(1)</script>")
    expect(page.locator(".waterfall")).to_contain_text("alert")
    settled(page)
    expected = rows(page)
    files = {kind: saved(page, kind, tmp_path) for kind in ("html", "png")}
    assert [file.name for file in files.values()] == ["adapler-2.0x.html", "adapler-2.0x.png"]
    written = files["html"].read_text(encoding="utf-8")
    assert "<script" not in written and "http" not in re.sub("http-equiv", "", written)
    other = browser.new_context().new_page()
    asked: list[str] = []
    other.on("request", lambda request: asked.append(request.url))
    other.goto(files["html"].as_uri())
    assert rows(other) == expected and asked == [files["html"].as_uri()]
    other.context.close()
    raw = files["png"].read_bytes()
    width, height = (int.from_bytes(raw[at : at + 4], "big") for at in (16, 20))
    assert raw[:8] == b"\x89PNG\r\n\x1a\n" and width > 1000 and height > 300
