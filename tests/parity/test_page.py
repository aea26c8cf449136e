"""The report as a page: one file, well formed, with every plot and the place of the fault."""

import re
from html.parser import HTMLParser
from xml.etree import ElementTree

import numpy as np
import pytest
from small_traces import shipped

from mlx_diffusiongemma.parity.comparison import compare
from mlx_diffusiongemma.parity.page import as_page
from mlx_diffusiongemma.parity.plots import Series, error_map, histogram, line_plot
from mlx_diffusiongemma.parity.trace import Trace
from mlx_diffusiongemma.parity.verdict import judge


class Tags(HTMLParser):
    """Every tag that was opened must be closed in its turn."""

    def __init__(self):
        super().__init__()
        self.open, self.seen = [], []

    def handle_starttag(self, tag, attributes):
        self.seen.append(tag)
        if tag not in ("meta", "br", "line", "circle", "path", "rect") or tag == "circle":
            self.open.append(tag)

    def handle_startendtag(self, tag, attributes):
        self.seen.append(tag)

    def handle_endtag(self, tag):
        if tag != "rect":
            assert self.open.pop() == tag


def page_of(change=None):
    trace = shipped("small_window")
    arrays = dict(trace.arrays)
    name = "passes/long/prompt/layers/2/dense"
    if change is not None:
        arrays[name] = change(arrays[name])
    comparison = compare(trace, Trace(trace.manifest, arrays))
    return as_page(comparison, judge(comparison))


def svgs(page):
    return [ElementTree.fromstring(text) for text in re.findall(r"<svg.*?</svg>", page, re.S)]


def texts(element):
    return [each.text for each in element.iter() if each.tag == "text"]


@pytest.mark.parametrize(
    "change", [None, lambda rows: rows * 1.1, lambda rows: rows * np.float32("nan")]
)
def test_the_page_is_whole_and_needs_nothing_else(change):
    page = page_of(change)
    tags = Tags()
    tags.feed(page)
    assert tags.open == []
    assert not {"script", "link", "img", "iframe", "object"} & set(tags.seen)
    assert not re.search(r"https?:|src=|@import|url\(", page)
    assert len(svgs(page)) == 4  # by layer, map, KL, one generation
    assert "nan" not in page.lower().replace("finance", "")
    assert ("PASS" in page) is (change is None)


def test_the_fault_is_told_and_framed():
    page = page_of(lambda rows: rows * 1.1)
    assert "First fault: layer 2, dense (prompt of long): error jumps from " in page
    (framed,) = [e for e in svgs(page)[1].iter() if "fault" in e.get("class", "")]
    assert framed.find("title").text.startswith("2, dense: 1.00e-01")
    assert "First fault" not in page_of()


def test_names_from_a_trace_are_escaped():
    shown = line_plot([Series("<b>", [0.5])], ["&"], x_name="<i>", is_log=False)
    assert "<b>" not in shown and "<i>" not in shown
    assert {"<b>", "&", "<i>"} <= set(texts(ElementTree.fromstring(shown)))


def test_a_larger_error_lies_higher_and_the_limit_in_between():
    series = [Series("one", [1e-6, 1e-2])]
    plot = ElementTree.fromstring(line_plot(series, ["0", "1"], x_name="", is_log=True, limit=1e-4))
    low, high = (float(e.get("cy")) for e in plot.iter() if e.tag == "circle")
    (limit,) = [float(e.get("y1")) for e in plot.iter() if e.get("class") == "limit"]
    assert high < limit < low
    assert limit == pytest.approx((low + high) / 2, abs=0.1)


def test_gaps_zeros_and_infinities_are_drawn():
    series = [Series("one", [0.0, None, float("inf"), 1e-3])]
    plot = ElementTree.fromstring(line_plot(series, list("abcd"), x_name="", is_log=True))
    heights = [float(e.get("cy")) for e in plot.iter() if e.tag == "circle"]
    assert len(heights) == 3 and min(heights) == heights[1]
    assert sum(e.tag == "path" for e in plot.iter()) == 1  # none across the gap


def test_bars_are_as_high_as_their_counts():
    plot = ElementTree.fromstring(histogram([1, 0, 4], ["a", "b", "c"], x_name="n"))
    heights = [float(e.get("height")) for e in plot.iter() if e.tag == "rect"]
    assert heights[1] == 0 and heights[2] == pytest.approx(4 * heights[0], rel=0.01)
    assert {"1", "4"} <= set(texts(plot)) and "0" not in texts(plot)


def test_the_map_is_darker_where_the_error_is_larger():
    values = [[1e-8, 1e-4, 1.0, None]]
    plot = ElementTree.fromstring(error_map(["0"], list("abcd"), values, worst=(0, 2)))
    cells = [e for e in plot.iter() if e.tag == "rect"]
    assert [float(e.get("fill-opacity")) for e in cells] == [0.02, 0.5, 1.0]
    assert [e.get("class") for e in cells] == ["cell", "cell", "cell fault"]
