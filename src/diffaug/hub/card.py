"""The model card: README.md of a saved model, rendered from its recipe and scores with ``model_card.md``."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from html import escape
from pathlib import Path
from typing import Any
from urllib.parse import quote

import yaml
from huggingface_hub import EvalResult, ModelCardData
from jinja2 import Environment, FileSystemLoader, StrictUndefined

from diffaug.config import source_list
from diffaug.config.registry import plugin_names
from diffaug.data.table import HUB_PREFIX, IN_MEMORY, SAMPLE_PREFIX, hub_parts
from diffaug.errors import DiffaugError
from diffaug.hub.citations import PAPERS
from diffaug.models.config import Provenance
from diffaug.models.encoder import Encoder
from diffaug.models.io.fingerprint import fingerprint

CARD = "README.md"
_TAGS = ("diffaug", "sentence-transformers", "sentence-similarity", "feature-extraction")
_SOURCES = {
    "nli": "labelled (NLI)",
    "unlabelled": "unlabelled sentences",
    "dev": "dev, selects the best checkpoint",
    "test": "test",
}
# The hub's name for the metric of a protocol of `diffaug eval`, by the last part of the protocol's name.
_METRICS = {"spearman": "spearmanr", "accuracy": "accuracy", "mrr": "mrr"}
_HUB_NAME = re.compile(r"\w[\w.-]*(/\w[\w.-]*)?")


def model_card(
    encoder: Encoder,
    provenance: Provenance,
    *,
    name: str | None = None,
    license: str | None = None,
    report: Mapping[str, Any] | None = None,
) -> str:
    """Render the model card.

    Args:
        encoder: the model.
        provenance: its recipe and scores. Paths in the recipe are reduced to file names.
        name: the name on the hub; None for a folder.
        license: an identifier of the hub, such as ``mit``; None if it is not stated.
        report: scores of ``diffaug eval --json`` to include.

    Raises:
        DiffaugError: the report belongs to another model.
    """
    if report is not None:
        _check_report(report, encoder)
    recipe = public_recipe(provenance.recipe)
    data: Mapping[str, Any] = recipe.get("data", {})
    title = (name or provenance.method or "A sentence encoder").rpartition("/")[2]
    front_matter = ModelCardData(
        base_model=_base_model(provenance.recipe),
        datasets=_datasets(recipe),
        eval_results=_eval_results(recipe, provenance.scores, report) or None,
        library_name="diffaug",
        license=license,
        model_name=title,
        pipeline_tag="sentence-similarity",
        tags=[*_TAGS, *filter(None, [recipe.get("method")])],
    )
    settings = {"architecture": encoder.backbone.config.model_type, "width": encoder.width}
    settings |= {
        key: value for key, value in encoder.config.to_dict().items() if value not in (None, False, "", (), [])
    }
    recipe_yaml = yaml.safe_dump(recipe, sort_keys=False, allow_unicode=True)
    environment = Environment(  # no autoescape: this is Markdown
        loader=FileSystemLoader(Path(__file__).parent),
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
        keep_trailing_newline=True,
    )
    environment.filters |= {"source": _source_text, "cell": _cell, "html": _html, "code": _code}
    return environment.get_template("model_card.md").render(
        front_matter=front_matter.to_yaml(),
        title=title,
        # A model converted from a release has a method but no recipe.
        paper=PAPERS.get(str(recipe.get("method") or provenance.method)),
        width=encoder.width,
        backbone=recipe.get("model", {}).get("backbone", encoder.backbone.config.model_type),
        path=name or "path/to/this/folder",
        scores=provenance.scores,
        report=report,
        recipe=recipe,
        recipe_yaml=recipe_yaml,
        # A fence that the text cannot close.
        fence="`" * max(3, 1 + max(map(len, re.findall("`+", recipe_yaml)), default=0)),
        data=data,
        sources=[(role, data[key]) for key, role in _SOURCES.items() if data.get(key)],
        labels=_labels(data.get("labels", 1.0)),
        settings=settings,
        license=license,
    )


def public_recipe(recipe: Mapping[str, Any]) -> dict[str, Any]:
    """A recipe without paths of this machine: files and folders are reduced to their names."""
    shown: dict[str, Any] = json.loads(json.dumps(recipe))
    data, model = shown.get("data", {}), shown.get("model", {})
    for key in _SOURCES:
        if isinstance(source := data.get(key), str):
            data[key] = _without_folder(source)
        elif isinstance(source, list):
            data[key] = [_without_folder(one) for one in source]
    named = ((model, "backbone"), (shown.get("replaced", {}), "generator"), (shown.get("distil", {}), "teacher"))
    for group, key in named:
        if isinstance(source := group.get(key), str) and not _is_hub_name(source):
            group[key] = Path(source).name
    if "plugins" in shown:
        shown["plugins"] = plugin_names(shown["plugins"])
    return shown


def _without_folder(source: str) -> str:
    return source if source.startswith((HUB_PREFIX, SAMPLE_PREFIX)) else Path(source).name


def _is_hub_name(name: str) -> bool:
    return _HUB_NAME.fullmatch(name) is not None and not Path(name).exists()


def _base_model(recipe: Mapping[str, Any]) -> str | None:
    """The backbone's name on the hub, or None for a local folder."""
    name = recipe.get("model", {}).get("backbone")
    return name if isinstance(name, str) and name != "embedded" and _is_hub_name(name) else None


def _datasets(recipe: Mapping[str, Any]) -> list[str] | None:
    given = [source for key in _SOURCES for source in source_list(recipe.get("data", {}).get(key))]
    names = [hub_parts(source)[0] for source in given if source.startswith(HUB_PREFIX)]
    return list(dict.fromkeys(names)) or None


def _eval_results(
    recipe: Mapping[str, Any], scores: Mapping[str, float], report: Mapping[str, Any] | None
) -> list[EvalResult]:
    """Scores in the format of the hub's model index; all are times 100."""
    results = []
    for split in ("dev", "test"):
        if split in scores:
            source = str(recipe.get("data", {}).get(split) or "own data")
            results.append(
                _result(source.removeprefix(HUB_PREFIX), "spearmanr", "Spearman x 100", scores[split], split)
            )
    for task, found in (report or {}).get("tasks", {}).items():
        if found["score"] is not None:
            ending = str(found["protocol"]).rpartition("_")[2]
            metric = _METRICS.get(ending, "accuracy")
            results.append(_result(task, metric, str(found["protocol"]), found["score"]))
    return results


def _result(dataset: str, metric: str, name: str, value: float, split: str | None = None) -> EvalResult:
    return EvalResult(
        task_type="sentence-similarity" if metric == "spearmanr" else "text-classification",
        dataset_type=dataset,
        dataset_name=dataset,
        dataset_split=split,
        metric_type=metric,
        metric_name=name,
        metric_value=round(float(value), 2),
    )


def _check_report(report: Mapping[str, Any], encoder: Encoder) -> None:
    try:
        theirs = report["model"]["fingerprint"]
        complete = all({"protocol", "score", "rows"} <= found.keys() for found in report["tasks"].values())
    except (KeyError, TypeError, AttributeError):
        complete = False
    if not complete:
        raise DiffaugError("the scores must be the output of diffaug eval --json")
    if theirs != fingerprint(encoder):
        raise DiffaugError(
            f"the scores belong to another model ({report['model'].get('name')}); evaluate this one with diffaug eval "
            "--json"
        )


def _source_text(source: object) -> str:
    """A data source in Markdown, with a link if it is on the hub."""
    if isinstance(source, list):
        return " and ".join(map(_source_text, source))
    if not isinstance(source, str):
        return "own data"
    if source.startswith(HUB_PREFIX):
        name = hub_parts(source)[0]
        return f"[{_html(source.removeprefix(HUB_PREFIX))}](https://huggingface.co/datasets/{quote(name)})"
    if source.startswith(IN_MEMORY):
        return _html(source)
    if source.startswith(SAMPLE_PREFIX):
        return f"diffaug's sample data, {_code(source)}"
    return _code(source)


def _labels(labels: float) -> str | None:
    """The number or share of labelled examples, unless all are used."""
    if labels == 1.0:
        return None
    return f"{labels:.3g} of the labelled examples" if labels < 1 else f"{int(labels):,} labelled examples"


def _cell(value: Any) -> str:
    """A setting in a Markdown table."""
    if isinstance(value, Mapping):
        return ", ".join(f"{_html(key)} {_cell(inner)}" for key, inner in value.items())
    if isinstance(value, (list, tuple)):
        return "; ".join(_cell(inner) for inner in value)
    text = {"True": "yes", "False": "no"}.get(str(value), str(value))
    return (_code(text) if isinstance(value, str) else _html(text)).replace("|", "\\|")


def _html(text: object) -> str:
    """Text in which HTML has no meaning."""
    return escape(str(text), quote=False)


def _code(text: object) -> str:
    """Text as code on one line, in which HTML has no meaning; a backtick would end it."""
    return f"`{' '.join(str(text).split()).replace('`', chr(39))}`"
