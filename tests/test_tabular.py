"""Tables as text, checked letter by letter."""

from __future__ import annotations

import io
from dataclasses import replace

import pytest
from rich.console import Console

from diffaug.tabular import Section, escape_latex, fitted, latex, markdown, needed_width, rich_table, whole_rows

TABLE = Section(
    "Scores",
    ["row", "STS12", "average"],
    [["No training, [CLS]", "20.16", "29.19"], ["A & B", "71.00 ±0.12", "†72.00 ±0.30"], ["C|D", "", "-1.50*"]],
    bold=frozenset({(1, 1), (1, 2), (2, 1)}),
    headings={0: "no labels", 1: "1 % of the labels"},
)


def shown(section: Section, width: int, gap: int = 2) -> list[str]:
    out = io.StringIO()
    Console(file=out, width=width).print(rich_table(section, width, gap=gap))
    return [line.rstrip() for line in out.getvalue().splitlines()]


def test_markdown() -> None:
    assert markdown(TABLE) == [
        "**Scores**",
        "",
        "| row | STS12 | average |",
        "| :-- | --: | --: |",
        "| *no labels* |  |  |",
        "| No training, [CLS] | 20.16 | 29.19 |",
        "| *1 % of the labels* |  |  |",
        "| A & B | **71.00 ±0.12** | **†72.00 ±0.30** |",
        r"| C\|D |  | -1.50\* |",
    ]


def test_latex() -> None:
    assert latex(TABLE) == [
        r"\begin{tabular}{lrr}",
        r"\toprule",
        r"row & STS12 & average \\",
        r"\midrule",
        r"\multicolumn{3}{l}{\emph{no labels}} \\",
        r"No training, {[}CLS{]} & 20.16 & 29.19 \\",
        r"\midrule",
        r"\multicolumn{3}{l}{\emph{1 \% of the labels}} \\",
        r"A \& B & \textbf{71.00 $\pm$0.12} & \textbf{$^{\dagger}$72.00 $\pm$0.30} \\",
        r"C|D &  & $-$1.50$^{*}$ \\",
        r"\bottomrule",
        r"\end{tabular}",
    ]


@pytest.mark.parametrize(
    ("text", "escaped"),
    [
        (r"50 % of a_b {x} #1 $2 ~ ^ \ <>", r"50 \% of a\_b \{x\} \#1 \$2 \textasciitilde{} \textasciicircum{} "
         r"\textbackslash{} \textless{}\textgreater{}"),
        ("  paper", r"\quad paper"),
        ("stage2.learning_rate=3e-5, STS-B", r"stage2.learning\_rate=3e-5, STS-B"),
        ("-0.5 to +0.1", "$-$0.5 to +0.1"),
        ("1–2", "1--2"),
    ],
)  # fmt: skip
def test_latex_escaping(text: str, escaped: str) -> None:
    assert escape_latex(text) == escaped


def test_terminal_headings_go_over_all_columns() -> None:
    assert shown(TABLE, 80) == [
        " Scores",
        " row                       STS12       average",
        " ──────────────────────────────────────────────",
        " no labels",
        " No training, [CLS]        20.16         29.19",
        "",
        " 1 % of the labels",
        " A & B               71.00 ±0.12  †72.00 ±0.30",
        " C|D                                    -1.50*",
        "",
    ]


def test_terminal_bold_is_of_cells() -> None:
    out = io.StringIO()
    Console(file=out, width=80, force_terminal=True, color_system="standard").print(rich_table(TABLE, 80))
    assert "\x1b[1m71.00 ±0.12\x1b[0m" in out.getvalue()
    assert "\x1b[1m20.16" not in out.getvalue()


@pytest.mark.parametrize("width", range(34, 104, 7))
def test_what_is_fitted_is_never_too_wide_and_loses_nothing(width: int) -> None:
    numbers = [f"{i}{i}.00 ±0.12" for i in range(1, 8)]
    wide = Section("Wide", ["row", *(f"STS1{i}" for i in range(7))], [["a row with a name", *numbers]])
    parts = fitted(wide, width, 2)
    lines = [line for part in parts for line in shown(part, width)]
    assert max(map(len, lines)) <= width
    assert all(any(number in line for line in lines) for number in numbers)
    assert sum(len(part.columns) - 1 for part in parts) == 7
    if width >= needed_width(wide, 2):
        assert parts == [wide]


def test_a_part_keeps_its_bold_cells_and_headings_and_drops_what_is_empty() -> None:
    rows = [["a", "1", ""], ["b", "2", "3"]]
    table = replace(TABLE, rows=rows, bold=frozenset({(0, 1), (1, 1), (1, 2)}), headings={0: "one", 1: "two"})
    first, second = fitted(table, 15, 2)
    assert (first.columns, second.columns) == (["row", "STS12"], ["row", "average"])
    assert first.rows == [["a", "1"], ["b", "2"]]
    assert first.bold == {(0, 1), (1, 1)}
    assert first.headings == table.headings
    assert second.rows == [["b", "3"]]
    assert second.bold == {(0, 1)}
    assert second.headings == {0: "two"}


def test_whole_rows() -> None:
    assert whole_rows([["a", "b"], ["c", "d"]], {1}) == {(1, 0), (1, 1)}
