"""The model card: README.md of a saved model, written from its recipe and its scores."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import yaml
from huggingface_hub import EvalResult, ModelCardData

from diffaug.config import source_list
from diffaug.data.table import HUB_PREFIX, IN_MEMORY, SAMPLE_PREFIX, hub_parts
from diffaug.errors import DiffaugError
from diffaug.hub.citations import PAPERS, Paper
from diffaug.models.config import ModelConfig, Provenance
from diffaug.models.encoder import Encoder
from diffaug.models.io.fingerprint import fingerprint

CARD = "README.md"
_SOURCES = {
    "nli": "labelled (NLI)",
    "unlabelled": "unlabelled sentences",
    "dev": "dev, which chose the checkpoint",
    "test": "test",
}
# The metric behind each protocol of `diffaug eval`, by the end of its name, as the hub's model-index calls it.
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
    """The text of a model's card.

    Args:
        encoder: the model.
        provenance: its recipe and its scores. Paths in the recipe are shortened to the names of the files.
        name: the name it has on the hub; None for a folder.
        license: an identifier of the hub's, such as ``mit``; None leaves it unsaid.
        report: scores from ``diffaug eval --json``, if they should be in the card too.

    Raises:
        DiffaugError: the report is about another model.
    """
    if report is not None:
        _check_report(report, encoder)
    recipe = public_recipe(provenance.recipe)
    paper = _paper(recipe, provenance)
    title = name or provenance.method or "A sentence encoder"
    results = _eval_results(recipe, provenance.scores, report)
    front = ModelCardData(
        base_model=_base_model(provenance.recipe),
        datasets=_datasets(recipe),
        eval_results=results or None,
        library_name="diffaug",
        license=license,
        model_name=title.rpartition("/")[2],
        pipeline_tag="sentence-similarity",
        tags=_tags(recipe),
    )
    sections = [
        f"# {title.rpartition('/')[2]}",
        _what_it_is(encoder, recipe, paper),
        f"## Usage\n\n{_usage(name)}",
        f"## Scores\n\n{_scores(recipe, provenance.scores, report)}" if provenance.scores or report else "",
        f"## Training\n\n{_training(recipe)}" if recipe else "",
        f"## The model\n\n{_settings(encoder.config, encoder)}",
        f"## Licence\n\n{_licence(license)}",
        f"## Citation\n\n```bibtex\n{paper.bibtex()}\n```" if paper else "",
    ]
    return f"---\n{front.to_yaml()}\n---\n\n" + "\n\n".join(filter(None, sections)) + "\n"


def public_recipe(recipe: Mapping[str, Any]) -> dict[str, Any]:
    """A recipe fit for others to see: of a path on this machine, the last part."""
    shown: dict[str, Any] = json.loads(json.dumps(recipe))
    data, model = shown.get("data", {}), shown.get("model", {})
    for key in _SOURCES:
        if isinstance(source := data.get(key), str):
            data[key] = _without_folder(source)
        elif isinstance(source, list):
            data[key] = [_without_folder(one) for one in source]
    if isinstance(backbone := model.get("backbone"), str) and not _is_hub_name(backbone):
        model["backbone"] = Path(backbone).name
    return shown


def _without_folder(source: str) -> str:
    return source if source.startswith((HUB_PREFIX, SAMPLE_PREFIX)) else Path(source).name


def _is_hub_name(name: str) -> bool:
    return _HUB_NAME.fullmatch(name) is not None and not Path(name).exists()


def _paper(recipe: Mapping[str, Any], provenance: Provenance) -> Paper | None:
    """The method's; a model that was converted from a release has its method and no recipe."""
    return PAPERS.get(str(recipe.get("method") or provenance.method))


def _tags(recipe: Mapping[str, Any]) -> list[str]:
    tags = ["diffaug", "sentence-transformers", "sentence-similarity", "feature-extraction"]
    return [*tags, *filter(None, [recipe.get("method")])]


def _base_model(recipe: Mapping[str, Any]) -> str | None:
    """The backbone's name on the hub, if it has one: a folder's name would lead nowhere, or to another model."""
    name = recipe.get("model", {}).get("backbone")
    return name if isinstance(name, str) and name != "embedded" and _is_hub_name(name) else None


def _datasets(recipe: Mapping[str, Any]) -> list[str] | None:
    given = [source for key in _SOURCES for source in source_list(recipe.get("data", {}).get(key))]
    names = [hub_parts(source)[0] for source in given if source.startswith(HUB_PREFIX)]
    return list(dict.fromkeys(names)) or None


def _eval_results(
    recipe: Mapping[str, Any], scores: Mapping[str, float], report: Mapping[str, Any] | None
) -> list[EvalResult]:
    """Every score of a data set, as the hub's model-index wants it; all of them are times 100."""
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
        raise DiffaugError("the scores are not those of diffaug eval --json: write them with it")
    if theirs != fingerprint(encoder):
        raise DiffaugError(
            f"the scores are those of another model ({report['model'].get('name')}): evaluate this one with "
            "diffaug eval --json"
        )


def _what_it_is(encoder: Encoder, recipe: Mapping[str, Any], paper: Paper | None) -> str:
    method = "" if paper is None else f" trained with {paper.method}. {paper.idea}"
    backbone = recipe.get("model", {}).get("backbone", encoder.backbone.config.model_type)
    base = {"embedded": "the small encoder that comes with diffaug"}.get(backbone, f"`{backbone}`")
    return (
        f"A sentence encoder{method or '.'} It maps a sentence to {encoder.width} numbers; sentences of similar "
        f"meaning have a high cosine. It started from {base}."
    )


def _usage(name: str | None) -> str:
    place = name or "path/to/this/folder"
    return f"""With diffaug (`pip install diffaug`):

```python
from diffaug import Embedder

embedder = Embedder.from_pretrained("{place}")
vectors = embedder.encode(["A dog runs.", "A puppy is running."])
print(embedder.similarity("A dog runs.", "A puppy is running."))
```

With sentence-transformers, diffaug installed beside it:

```python
from sentence_transformers import SentenceTransformer

model = SentenceTransformer("{place}", trust_remote_code=True)
vectors = model.encode(["A dog runs.", "A puppy is running."])
```

The flag lets it import a class that is not its own; that class is part of the installed diffaug, and no code is in this
folder. Template, prefix, pooling and head are part of the model and applied by both; there is nothing to set."""


def _scores(recipe: Mapping[str, Any], scores: Mapping[str, float], report: Mapping[str, Any] | None) -> str:
    lines = ["| data | measure | score |", "|---|---|---|"]
    data = recipe.get("data", {})
    for key, value in scores.items():
        if key in ("dev", "test"):
            lines.append(f"| {key} ({_described(data.get(key))}) | Spearman of the cosine x 100 | {value:.2f} |")
        else:
            lines.append(f"| training pairs | {key} | {value:.3f} |")
    if report is not None:
        for task, found in report["tasks"].items():
            shown = "undefined" if found["score"] is None else f"{found['score']:.2f}"
            lines.append(f"| {task} ({found['rows']:,} rows) | {found['protocol']} | {shown} |")
        for group, found in report.get("averages", {}).items():
            of = f"{found['over']} of {found['of']}" if found["over"] != found["of"] else f"{found['of']}"
            lines.append(f"| **{group}, average of {of}** | {found['protocol']} | **{found['score']:.2f}** |")
    return "\n".join(lines)


def _described(source: object) -> str:
    if isinstance(source, list):
        return " and ".join(map(_described, source))
    if not isinstance(source, str):
        return "own data"
    if source.startswith(HUB_PREFIX):
        name = hub_parts(source)[0]
        return f"[{source.removeprefix(HUB_PREFIX)}](https://huggingface.co/datasets/{name})"
    if source.startswith(IN_MEMORY):
        return source
    if source.startswith(SAMPLE_PREFIX):
        return f"the sample data of diffaug, `{source}`"
    return f"`{source}`"


def _training(recipe: Mapping[str, Any]) -> str:
    data = recipe.get("data", {})
    lines = [f"- {what}: {_described(data[key])}" for key, what in _SOURCES.items() if data.get(key)]
    labels = data.get("labels", 1.0)
    if labels != 1.0:
        kept = f"{labels:.3g} of the labelled examples" if labels < 1 else f"{int(labels):,} labelled examples"
        lines.append(f"- kept: {kept}, draw {data.get('label_draw', 0)}")
    if lines:
        lines = ["Data:", "", *lines, ""]
    text = yaml.safe_dump(recipe, sort_keys=False, allow_unicode=True)
    lines += [
        "Every setting, as `diffaug train --recipe FILE.yaml` takes it:",
        "",
        f"<details><summary>{recipe.get('name', 'recipe')}.yaml</summary>",
        "",
        f"```yaml\n{text}```",
        "",
        "</details>",
    ]
    return "\n".join(lines)


def _settings(config: ModelConfig, encoder: Encoder) -> str:
    settings: dict[str, Any] = {"architecture": encoder.backbone.config.model_type, "width": encoder.width}
    settings |= {key: value for key, value in config.to_dict().items() if value not in (None, False, "", (), [])}
    return "| | |\n|---|---|\n" + "\n".join(f"| {key} | {_cell(value)} |" for key, value in settings.items())


def _cell(value: Any) -> str:
    if isinstance(value, Mapping):
        return ", ".join(f"{key} {_cell(inner)}" for key, inner in value.items())
    if isinstance(value, (list, tuple)):
        return "; ".join(_cell(inner) for inner in value)
    text = str(value).replace("|", "\\|")
    return {"True": "yes", "False": "no"}.get(text, f"`{text}`" if isinstance(value, str) else text)


def _licence(license: str | None) -> str:
    if license is None:
        return "Not stated. What the licences of the backbone and of the training data ask for holds in any case."
    return f"`{license}`; what the licences of the backbone and of the training data ask for holds besides."
