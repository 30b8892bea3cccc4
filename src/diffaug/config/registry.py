"""The registry of methods, kinds of views, losses and evaluation tasks; plugins add to it.

A plugin is a Python module that registers its own with decorators, or an installed package with entry points in the
groups `diffaug.methods`, `diffaug.views`, `diffaug.losses` and `diffaug.tasks`. The package's own are listed here by
name and imported on first use, so that a recipe is checked without torch.
"""

from __future__ import annotations

import hashlib
import inspect
import sys
import traceback
from collections.abc import Callable, Iterable, Mapping
from importlib import import_module
from importlib.metadata import EntryPoint, entry_points
from importlib.util import module_from_spec, spec_from_file_location
from pathlib import Path
from typing import Any, TypeVar

from diffaug.config.typed import nearest
from diffaug.errors import DiffaugError

T = TypeVar("T")
_FILE_MODULE = "diffaug_plugin_"


class Registry:
    """Objects of one kind by name: those of the package, those of plugins, and those of installed packages.

    Args:
        what: the kind, for error messages.
        group: the group of entry points.
        own: those of the package, as `module:name`; they are imported on first use.
    """

    def __init__(self, what: str, group: str, own: Mapping[str, str]) -> None:
        self.what = what
        self.group = group
        self._own = {name: EntryPoint(name, value, group) for name, value in own.items()}
        self._loaded: dict[str, Any] = {}
        self._plugins: dict[str, Any] = {}

    def register(self, name: str) -> Callable[[T], T]:
        """A decorator that registers a class or function under ``name``.

        Raises:
            DiffaugError: another module has registered this name.
        """

        def add(registered: T) -> T:
            before = self._plugins.get(name)
            if name in self._own or (before is not None and _module(before) != _module(registered)):
                owner = "diffaug" if name in self._own else plugin_of(before)
                raise DiffaugError(
                    f"the {self.what} {name!r} of {plugin_of(registered)} has the name of one of {owner}; register it "
                    "under another name"
                )
            self._plugins[name] = registered
            return registered

        return add

    def names(self) -> list[str]:
        """All names, sorted."""
        return sorted({*self._own, *self._plugins, *self._entry_points()})

    def is_own(self, name: str) -> bool:
        """Whether it comes with the package."""
        return name in self._own

    def __contains__(self, name: object) -> bool:
        return name in self._own or name in self._plugins or name in self._entry_points()

    def check(self, name: str, where: str = "") -> None:
        """Check that there is such a name; nothing is imported.

        Args:
            name: the name.
            where: what names it, for the error message.

        Raises:
            DiffaugError: it is unknown; the message lists the known names.
        """
        if name not in self:
            known = ", ".join(self.names()) or "none"
            hint = nearest(name, self.names()) if self.names() else ";"
            hint = f"{hint} Known: {known}" if hint.endswith("?") else f"; known: {known}"
            raise DiffaugError(
                f"{where}unknown {self.what} {name!r}{hint}. If it is your own, name its module under plugins or with "
                "--plugin"
            )

    def get(self, name: str) -> Any:
        """What is registered under ``name``.

        Raises:
            DiffaugError: it is unknown, or cannot be imported.
        """
        if name in self._plugins:
            return self._plugins[name]
        if name not in self._loaded:
            self.check(name)
            if name in self._own:
                self._loaded[name] = self._own[name].load()
            else:
                entry = self._entry_points()[name]
                self._loaded[name] = _imported(f"{entry.value} ({self.group})", entry.load)
        return self._loaded[name]

    def _entry_points(self) -> dict[str, EntryPoint]:
        return {entry.name: entry for entry in entry_points(group=self.group)}


METHODS = Registry(
    "method",
    "diffaug.methods",
    {
        "consert": "diffaug.methods.consert:ConSERT",
        "diffaug": "diffaug.methods.diffaug:DiffAug",
        "diffcse": "diffaug.methods.diffcse:DiffCSE",
        "distil": "diffaug.methods.distil:Distil",
        "flow": "diffaug.methods.flow:BertFlow",
        "promptbert": "diffaug.methods.promptbert:PromptBERT",
        "sbert": "diffaug.methods.sbert:SBERT",
        "simcse": "diffaug.methods.simcse:SimCSE",
        "untrained": "diffaug.methods.untrained:Untrained",
    },
)
VIEWS = Registry(
    "kind of views",
    "diffaug.views",
    {
        "adapter": "diffaug.models.views.adapter:Adapter",
        "cutoff": "diffaug.models.views.cutoff:Cutoff",
        "dropout": "diffaug.models.views.base:DROPOUT",
        "lora": "diffaug.models.views.lora:Lora",
        "prefix": "diffaug.models.views.prefix:ReparametrisedPrefix",
        "synonym": "diffaug.models.views.synonym:SynonymReplacement",
    },
)
LOSSES = Registry(
    "loss",
    "diffaug.losses",
    {
        "info_nce": "diffaug.losses.contrastive:info_nce",
        "nt_xent": "diffaug.losses.contrastive:nt_xent",
    },
)
TASKS = Registry("task", "diffaug.tasks", {})


def register_method(name: str) -> Callable[[T], T]:
    """Register a subclass of `diffaug.Method` (usually of `diffaug.TwoStage`) as `method: NAME` of recipes."""
    return METHODS.register(name)


def register_views(name: str) -> Callable[[T], T]:
    """Register a subclass of `diffaug.Views` or `diffaug.TextViews` as `views.kind: NAME` of recipes."""
    return VIEWS.register(name)


def register_loss(name: str) -> Callable[[T], T]:
    """Register a contrastive loss as `stage2.loss: NAME` of recipes.

    It is a function ``loss(anchors, positives, negatives, temperature, **options)`` that returns a scalar. Anchors and
    positives are (examples, width), negatives the same or None; the options are `stage2.loss_options`.
    """
    return LOSSES.register(name)


def register_task(name: str) -> Callable[[T], T]:
    """Register an evaluation task as `diffaug eval --tasks NAME`.

    It is a class or function without arguments that returns a task, see `diffaug.evaluation.tasks.Task`.
    """
    return TASKS.register(name)


def load_plugin(plugin: str, folder: Path | None = None) -> str:
    """Import a module that registers methods, views, losses or tasks; once per process.

    Args:
        plugin: the name of a module, or the path of a .py file.
        folder: what a relative path is relative to; default: the current folder.

    Returns:
        the name of the module, or the absolute path of the file.

    Raises:
        DiffaugError: it does not exist or cannot be imported.
    """
    if not plugin.endswith(".py"):
        _imported(f"{plugin!r} (a module; for a file, write its path with .py)", lambda: import_module(plugin))
        return plugin
    path = ((folder or Path()) / plugin).resolve()
    # The user's own code may have imported the file already.
    if all(vars(module).get("__file__") != str(path) for module in list(sys.modules.values()) if module is not None):
        _imported(str(path), lambda: _run_file(path))
    return str(path)


def load_plugins(plugins: Any, folder: Path | None = None) -> Any:
    """`load_plugin` for each of the setting `plugins`; a value that is no list of texts is returned as it is."""
    if not isinstance(plugins, (list, tuple)) or not all(isinstance(plugin, str) for plugin in plugins):
        return plugins
    return list(dict.fromkeys(load_plugin(plugin, folder) for plugin in plugins))


def plugin_of(registered: Any) -> str:
    """The name of the plugin that registered an object, without the folders of this machine."""
    module = _module(registered)
    return Path(str(sys.modules[module].__file__)).name if module.startswith(_FILE_MODULE) else module


def check_options(setting: str, function: Callable[..., Any], options: Mapping[str, Any], *arguments: str) -> None:
    """Check that a plugin's function takes these options.

    Args:
        setting: the recipe's setting with the options, for the error message.
        function: the function or class.
        options: its keywords, as in the recipe.
        arguments: the names of the arguments that diffaug passes by position.

    Raises:
        DiffaugError: an option is unknown or missing.
    """
    try:
        inspect.signature(function).bind(*arguments, **options)
    except TypeError as error:
        raise DiffaugError(f"{setting} does not fit {function.__name__} of {plugin_of(function)}: {error}") from error


def _module(registered: Any) -> str:
    return str(getattr(registered, "__module__", None) or type(registered).__module__)


def _run_file(path: Path) -> None:
    # Another name than that of the file, which may be the name of some other module.
    name = f"{_FILE_MODULE}{path.stem}_{hashlib.sha256(str(path).encode()).hexdigest()[:8]}"
    spec = spec_from_file_location(name, path)
    assert spec is not None
    assert spec.loader is not None
    module = sys.modules[name] = module_from_spec(spec)
    try:
        spec.loader.exec_module(module)
    except BaseException:
        del sys.modules[name]
        raise


def _imported(what: str, load: Callable[[], T]) -> T:
    try:
        return load()
    except DiffaugError:
        raise
    except Exception as error:
        where = traceback.extract_tb(error.__traceback__)[-1]
        line = "" if isinstance(error, (OSError, ImportError)) else f" (line {where.lineno} of {where.filename})"
        raise DiffaugError(f"the plugin {what} cannot be imported: {type(error).__name__}: {error}{line}") from error


def plugin_names(plugins: Iterable[str]) -> list[str]:
    """Plugins without the folders of this machine."""
    return [Path(plugin).name if plugin.endswith(".py") else plugin for plugin in plugins]
