"""Text stays text, whatever is in it."""

from __future__ import annotations

import json
import math

from report.made_runs import NASTY

from diffaug.report.markup import embedded_json, join, tag


def test_text_is_escaped_and_markup_is_not() -> None:
    assert tag("p", tag("b", "a < b"), ' & "c"', class_="x", hidden=True, title=None) == (
        '<p class="x" hidden><b>a &lt; b</b> &amp; &quot;c&quot;</p>'
    )
    assert tag("a", data_run=3, href='"><script>') == '<a data-run="3" href="&quot;&gt;&lt;script&gt;"></a>'
    assert join("<", None, tag("br")) == "&lt;<br>"


def test_json_in_a_script_element_cannot_end_it() -> None:
    text = embedded_json({"sentence": NASTY, "list": (1.5, [NASTY])})
    assert not set("<>&\u2028\u2029") & set(text)
    assert json.loads(text) == {"sentence": NASTY, "list": [1.5, [NASTY]]}


def test_what_is_no_number_becomes_null() -> None:
    assert embedded_json({1: [math.nan, math.inf, 2.0]}) == '{"1":[null,null,2.0]}'
