"""Fewer labels: SimCSE, PromptBERT and DiffAug with a part of them."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from diffaug.errors import DiffaugError
from diffaug.reproduce.plans import methods
from diffaug.reproduce.plans.base import Column, Plan, PlanSettings, Row, build_plan, own_columns

_PAPER = ("0 %", "1 %", "10 %", "100 %")
_PAPER_LABELS = 275_601
# With no labels at all, joint training is the unsupervised method; nothing else has a figure there.
_WITHOUT_LABELS = {"simcse-joint": "simcse-unsup", "promptbert-joint": "promptbert-unsup"}
ROWS = (
    *methods.WITH_LABELS["SimCSE"],
    *methods.WITH_LABELS["PromptBERT"],
    methods.DIFFAUG_SEMI,
    methods.DIFFAUG_AUX,
    *methods.SUPERVISED_METHODS,
)


def plan(settings: PlanSettings) -> Plan:
    """The paper's table of label fractions; columns may also be numbers of labels."""
    total = settings.data.count_labels()
    columns = own_columns(settings, _PAPER, _column(total))
    note = f"There are {total:,} labelled examples"
    if total != _PAPER_LABELS:
        note += f"; the paper's 100 % are {_PAPER_LABELS:,}, its 10 % 27,560 and its 1 % 2,756"
    return build_plan(
        "low-label",
        "Fewer labels",
        [(row, found) for row in ROWS if (found := _columns_of(row, columns))],
        settings,
        columns_are="labelled examples",
        notes=(note, *_draws_note(settings, columns), methods.JOINT_NOTE),
    )


def _column(total: int) -> Callable[[str], Column]:
    """What makes a column of `10%`, `10 %`, `0.1`, `27560` or `27,560`."""

    def build(text: str) -> Column:
        labels, name = _labels(text, total)
        if not 0 <= labels <= total:
            raise DiffaugError(f"{text} labels are asked for, and there are {total:,}; ask for 0 to {total:,}")
        if labels == total:
            return Column(name)
        if labels == 0:
            return Column(name, labels=0)
        # By their number, not as a fraction: a single example would be the fraction 1.0, which means all.
        if labels == 1:
            raise DiffaugError(f"{text}: one labelled example is too few to train on; ask for more")
        return Column(name, (f"data.labels={labels}",), labels)

    return build


def _labels(text: str, total: int) -> tuple[int, str]:
    """How many labelled examples are meant, and what the column is called."""
    number = text.removesuffix("%").strip().replace(",", "")
    try:
        value = float(number)
    except ValueError:
        raise DiffaugError(f"{text!r} is no amount of labels; write 10%, 0.1 or a number such as 27560") from None
    if text.endswith("%"):
        return _part(value / 100, total), f"{value:g} %"
    if 0 < value < 1 or "." in number:
        return _part(value, total), f"{100 * value:g} %"
    return int(value), "0 %" if value == 0 else f"{int(value):,}"


def _part(fraction: float, total: int) -> int:
    return 0 if fraction == 0 else max(1, round(fraction * total))


def _columns_of(row: Row, columns: Sequence[Column]) -> list[Column]:
    found = []
    for column in columns:
        if column.labels != 0:
            found.append(column)
        elif row.recipe in _WITHOUT_LABELS:
            found.append(Column(column.name, labels=0, recipe=_WITHOUT_LABELS[row.recipe]))
    return found


def _draws_note(settings: PlanSettings, columns: Sequence[Column]) -> list[str]:
    if not any(column.labels for column in columns):
        return []
    draws = f"{settings.draws} draws" if settings.draws > 1 else "one draw"
    seeds = f"{len(settings.seeds)} seeds" if len(settings.seeds) > 1 else "one seed"
    return [f"A part of the labels: {draws} of them, {seeds} each; a small draw lies within the larger ones"]
