"""Base class of the options of a command, which are declared once, as the fields of a frozen dataclass.

A field has the type that Python callers pass, its default, and, in ``Annotated``, what Typer needs: help, flags,
metavar and completion. ``Typed`` describes how a value is typed if it is not a number, a word or a boolean. The
terminal's options (``cli/from_options.py``), the Python function (``options/function.py``) and the command line that an
artifact records (``Options.words``) are derived from the class.
"""

from __future__ import annotations

import csv
import functools
import types
import typing
from collections.abc import Callable, Mapping, Sequence
from dataclasses import KW_ONLY, MISSING, dataclass, field, fields
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, ClassVar

import typer

from pflcli.core import config, registry
from pflcli.core.errors import InputError, UsageError
from pflcli.core.execution import Execution
from pflcli.core.tasks import RANKING
from pflcli.core.wording import PathWord, as_typed
from pflcli.options import completion

if TYPE_CHECKING:
    from pflcli.artifacts.initial_weights import Weights
    from pflcli.artifacts.reader import Artifact


@dataclass(frozen=True)
class Typed:
    """How a value is typed on the command line: the type that Typer reads, a parser, and its inverse."""

    kind: Any
    parse: Callable[[Any], Any] = lambda typed: typed
    text: Callable[[Any], str | list[str]] = str
    """returns a list if the option is repeated"""


class Choices(tuple[str, ...]):
    """The words that an option takes, which a shell completes; any other word is an error."""


def split_words(text: str) -> list[str]:
    """Return the words of a text, which are separated by commas; one with a comma is quoted as in CSV."""
    words = next(csv.reader([text], skipinitialspace=True), []) if '"' in text else text.split(",")
    return [word.strip() for word in words if word.strip()]


def as_names(names: str | Sequence[str]) -> str:
    """Return names as a user types them: one with a comma is quoted as in CSV."""
    listed = [names] if isinstance(names, str) else names
    return ",".join('"' + name.replace('"', '""') + '"' if {",", '"'} & {*name} else name for name in listed)


def as_columns(columns: str | Sequence[str]) -> str:
    """Return names of columns as a user types them; a text is typed already."""
    return columns if isinstance(columns, str) else as_names(columns)


def split_items(text: str) -> list[str]:
    """Return the items of a text, which are separated by commas and may be empty; a comma alone is one item."""
    return [","] if text == "," else [item.strip() for item in text.split(",")]


def as_path(value: Any) -> str:
    """Return the path of a file, an artifact or ``Weights`` as a user types it."""
    return PathWord(getattr(value, "path", value))


def as_file(group: str, word: Any) -> str:
    """Return a name as a user types it: a user's file by its path, with the variant or option that follows."""
    file, rest = registry.locate(group, str(word))
    return str(word) if file is None else PathWord.of_parts(file, rest)


def as_files(group: str, words: Sequence[str]) -> str:
    """Return names, separated by commas, as a user types them."""
    parts: list[str | Path] = []
    for word in words:
        file, rest = registry.locate(group, word)
        parts += [",", *([word] if file is None else [file, rest])]
    return PathWord.of_parts(*parts[1:])


def as_pairs(values: Mapping[str, Any], owner: str = "") -> list[str]:
    """Return a table as ``key=value`` pairs, and a nested one (``{"ditto": {"lam": 0.5}}``) as ``ditto.lam=0.5``."""
    typed: list[str] = []
    for key, value in values.items():
        is_table = isinstance(value, Mapping)
        typed += as_pairs(value, f"{owner}{key}.") if is_table else [f"{owner}{key}={as_typed(value)}"]
    return typed


def parse_integers(text: str, option: str) -> list[int]:
    """Return the integers in ``0,1,2``, the value of ``option``; raises UsageError for anything else."""
    try:
        return [int(word) for word in text.split(",") if word.strip()]
    except ValueError:
        raise UsageError(f"{option} {text} is not a list of integers", f"{option} 0,1,2") from None


def _parse_fractions(text: str) -> tuple[float, float, float]:
    """Return the fractions in ``0.6,0.2,0.2``; raises UsageError for anything but three numbers."""
    try:
        train, validation, test = (float(part) for part in text.split(","))
    except ValueError:
        raise UsageError(f"--fractions {text} is not a list of three numbers", "--fractions 0.6,0.2,0.2") from None
    return train, validation, test


def _parse_map(text: str) -> dict[str, str]:
    """Return the pairs in ``1=ill,2=ill``; raises UsageError for anything else."""
    pairs = [pair.partition("=") for pair in split_words(text)]
    if not pairs or not all(old and sign and new for old, sign, new in pairs):
        raise UsageError(f"--label-map {text} does not have the form OLD=NEW,OLD=NEW", "--label-map 1=ill,2=ill")
    return {old.strip(): new.strip() for old, _, new in pairs}


def merge_with_file(ctx: typer.Context, param: typer.CallbackParam, value: list[str] | None) -> list[str] | None:
    """Add the ``key=value`` pairs of the configuration file to the typed ones, which override them."""
    from_file = (ctx.default_map or {}).get(str(param.name))
    if not value or not from_file or value == from_file:
        return value
    typed = {pair.split("=", maxsplit=1)[0] for pair in value}
    return [*(pair for pair in from_file if pair.split("=", maxsplit=1)[0] not in typed), *value]


PATH = Typed(Path, text=as_path)
METHOD = Typed(str, text=functools.partial(as_file, "methods"))
METHODS = Typed(str, split_words, functools.partial(as_files, "methods"))
PATHS = Typed(list[Path], text=lambda paths: [*map(as_path, paths)])
WORDS = Typed(str, split_words, as_names)
ITEMS = Typed(str, split_items, as_typed)
ASSIGNMENTS = Typed(list[str], config.parse_assignments, as_pairs)
SEEDS = Typed(str, functools.partial(parse_integers, option="--seeds"), as_typed)
FRACTIONS = Typed(str, _parse_fractions, as_typed)

ArtifactPath = Annotated["Path | str | Artifact", PATH]
OptionalArtifactPath = Annotated["Path | str | Artifact | None", PATH]
ArtifactPaths = Annotated["Sequence[Path | str | Artifact]", PATHS]
FilePath = Annotated["Path | str", PATH]
OptionalPath = Annotated["Path | str | None", PATH]


def artifact_argument(help: str, *kinds: str, metavar: str = "") -> Any:
    """Return an argument that takes the path of an artifact of one of these kinds; the first is the metavar."""
    return typer.Argument(help=help, metavar=metavar or kinds[0].upper(), autocompletion=completion.artifacts(*kinds))


def artifacts_argument(help: str, *kinds: str) -> Any:
    """Return an argument that takes the paths of several artifacts of these kinds."""
    return artifact_argument(help, *kinds, metavar=f"{kinds[0].upper()}...")


def out_option(help: str, metavar: str = "DIR", show_default: str | bool = True) -> Any:
    """Return the option ``--out``."""
    return typer.Option("--out", "-o", help=help, metavar=metavar, show_default=show_default)


Out = Annotated[FilePath, out_option("Write the artifact to this folder.")]
Seed = Annotated[
    int | None,
    typer.Option(
        help="Draw all random numbers from this seed; of a folder of `pfl compare` with several seeds, take this one.",
        show_default="that of the source",
        min=0,
        metavar="N",
    ),
]
Set = Annotated[
    Mapping[str, Any] | None,
    ASSIGNMENTS,
    typer.Option(
        "--set",
        help="Set an option of the method, scheme or dataset; repeat it for more. `pfl list` shows them.",
        metavar="KEY=VALUE",
        callback=merge_with_file,
    ),
]
ChosenMethod = Annotated[
    str | None,
    typer.Option(
        help="Take this method from a folder of `pfl compare`.",
        metavar="NAME",
        show_default="all",
        autocompletion=completion.names("methods"),
    ),
]
ChosenSeed = Annotated[
    int | None,
    typer.Option(help="Take this seed from a folder of `pfl compare`.", metavar="N", show_default="all"),
]
Baseline = Annotated[
    str, typer.Option(help="Measure gains against this method.", autocompletion=completion.names("methods"))
]
InitialWeights = Annotated[
    "Path | str | Weights | None",
    PATH,
    typer.Option(
        help="Start from this state dict (.safetensors or .pt).", metavar="FILE", show_default="random weights"
    ),
]
ExperimentWeights = Annotated[
    "Path | str | Weights | None",
    PATH,
    typer.Option(
        help="Start from this state dict (.safetensors or .pt) where an experiment has weights = true, which needs it.",
        metavar="FILE",
        show_default="no experiment needs it",
    ),
]
AttendanceFile = Annotated[
    OptionalPath,
    typer.Option(
        help="Repeat a deployment: clients that did not answer in a round by this attendance.csv of the"
        " server drop out of it.",
        metavar="FILE",
    ),
]
Target = Annotated[
    float | None,
    typer.Option(
        help="Also report the rounds, seconds and MB until validation accuracy first reaches this value (0 to 1), or"
        " the RMSE of quantities or the Poisson deviance of counts falls to it. It is measured every --eval-every"
        " rounds, with personal models if the method has them, otherwise with the global model.",
        metavar="F",
    ),
]
Link = Annotated[
    str | None,
    typer.Option(
        help="Also report the seconds that all rounds would take if clients worked in parallel behind links of this"
        " speed in Mbit/s, such as 10:50. A round takes the mean client's time to compute (on one core of this"
        " machine), receive and send.",
        metavar="UP:DOWN",
    ),
]
Metrics = Annotated[
    Sequence[str] | None,
    WORDS,
    typer.Option(
        "--metric",
        help="Rank methods by this metric, and compute gains, conclusion and picture from it:"
        f" {', '.join(RANKING[:-1])} or {RANKING[-1]}. Further names add columns.",
        metavar="NAME,NAME",
        show_default="accuracy",
        autocompletion=completion.comma_separated(completion.words(*RANKING)),
    ),
]
Positive = Annotated[
    str | None,
    typer.Option(
        help="Take this one of two classes as the positive class of sensitivity, specificity and average_precision.",
        metavar="CLASS",
        show_default="the last",
    ),
]
Coverage = Annotated[
    float | None,
    typer.Option(
        help="Also report prediction sets that contain the true class with this probability (between 0 and 1): their"
        " coverage and size on test samples. Thresholds are calibrated on validation samples: the client's own, pooled"
        " over clients, and shrunk between the two.",
        metavar="F",
    ),
]
GroupScores = Annotated[
    Sequence[str] | None,
    WORDS,
    typer.Option(
        help="Also report the scores of each group of samples with the same value in these columns, which `pfl import"
        " --keep` kept or which are features.",
        metavar="COL,COL",
        show_default="no groups",
    ),
]
Label = Annotated[
    str | None,
    typer.Option(
        help="Take each sample's class from this column or array, or make two classes by a condition such as 'COL>0'.",
        metavar="COL",
    ),
]
SplitColumn = Annotated[
    str | None,
    typer.Option(
        help="Split samples by this column or array of the words train, validation (or val) and test; 'none' if"
        " names such as train are no splits, or to join the splits of the data.",
        metavar="COL",
        show_default="drawn at random",
    ),
]
Layout = Annotated[
    str | None,
    Choices(("channels-first", "channels-last")),
    typer.Option(
        help="Read the arrays of series and images in this order: channels-first or channels-last.",
        metavar="NAME",
        show_default="channels-last",
    ),
]
Root = Annotated[
    OptionalPath,
    typer.Option(help="Read the dataset's files from this folder.", metavar="DIR"),
]
Download = Annotated[bool, typer.Option("--download", help="Download the dataset into --root.")]
DateFormat = Annotated[
    str | None,
    typer.Option(
        help="Read the dates of --order in this form, such as '%d/%m/%Y' (the codes of Python's strptime).",
        metavar="FORM",
        show_default="2024-03-31 or 2024-03-31 12:30",
    ),
]
FoldCase = Annotated[
    bool | None,
    typer.Option(
        "--fold-case/--no-fold-case",
        help="Treat names of classes, clients, groups and words that differ only in spelling as the same, or as"
        " different: in case, spaces, dashes, apostrophes or Unicode form, or as 01 and 1.",
        show_default="an error if there are any",
    ),
]
LabelMap = Annotated[
    Mapping[str, str] | None,
    Typed(str, _parse_map, lambda names: ",".join(f"{old}={new}" for old, new in names.items())),
    typer.Option(
        help="Give classes other names; several may get the same one, such as 1=ill,2=ill.", metavar="OLD=NEW"
    ),
]
RunWeights = Annotated[
    OptionalPath,
    typer.Option(
        help="Read the initial weights of the run from this file; needed if it started from --weights without a"
        " backbone.",
        metavar="FILE",
    ),
]
EncoderWeights = Annotated[
    OptionalPath,
    typer.Option(
        help="If the model takes features from `pfl embed`, embed images with the weights in this file.",
        metavar="FILE",
        show_default="the file that pfl embed read",
    ),
]
RAY = ("executor", "ray_address", "gpus_per_worker")
"""The hardware options that concern Ray."""


@dataclass(frozen=True)
class Options:
    """Base of the options of a command."""

    NAME: ClassVar[str]
    """the command's name"""
    HARDWARE: ClassVar[tuple[str, ...]] = ()
    """the hardware options of the command, as names of fields of ``Execution``"""
    TRAINING_DEFAULT: ClassVar[str] = ""
    """the default that the help shows for every training setting; if empty, the help shows the actual value"""
    HAS_DRY_RUN: ClassVar[bool] = True
    FORCE_HELP: ClassVar[str] = ""
    """the help of --force, if it differs from that of ``Execution``"""

    execution: Execution = field(default=Execution(), kw_only=True)
    """how the artifact is made and where the run computes; it does not change the result"""

    def words(self) -> list[str]:
        """Return the command line with these options, without those that have their default."""
        line: list[str] = ["pfl", self.NAME]
        options: list[str] = []
        for option in declared_options(type(self)):
            value = getattr(self, option.name)
            if option.name == "settings":
                options += _setting_words(value or {})
            elif isinstance(option.info, typer.models.ArgumentInfo):
                text = option.text(value)
                line += text if isinstance(text, list) else [text]
            elif value is not None and value != option.default:
                options += option.words(value)
        return [*line, *options]


@dataclass(frozen=True)
class TableOptions(Options):
    """Base of the options of a command that reads the user's tables: how these are written."""

    _: KW_ONLY
    delimiter: Annotated[
        str | None,
        typer.Option(
            help="Split columns at this character, such as ';' or tab, or at whitespace.",
            metavar="CHAR",
            show_default="comma, or tab for .tsv and .tab",
        ),
    ] = None
    decimal: Annotated[
        str | None,
        typer.Option(help="Read numbers with this decimal mark, such as a comma.", metavar="CHAR", show_default="."),
    ] = None
    thousands: Annotated[
        str | None,
        typer.Option(
            help="Read numbers with this mark between thousands: a character, or space for every kind of space.",
            metavar="CHAR",
            show_default="none",
        ),
    ] = None
    strip: Annotated[
        str | Sequence[str] | None,
        ITEMS,
        typer.Option(help="Remove these marks before or after numbers, such as % or kg.", metavar="TEXT,TEXT"),
    ] = None
    na: Annotated[
        str | Sequence[str] | None,
        ITEMS,
        typer.Option(
            help="Treat these words or numbers as missing values too, also in labels and names; '' treats only"
            " empty cells as missing.",
            metavar="WORD,WORD",
            show_default="empty cells, NA, N/A, n/a, NaN, nan, NULL, null, None, ? and -",
        ),
    ] = None
    header: Annotated[
        bool | None,
        typer.Option(
            "--header/--no-header",
            help="Say whether the first line has the names of columns. Without them, columns are called 0, 1, ...",
            show_default="--header, or --no-header with --names",
        ),
    ] = None
    names: Annotated[
        str | Sequence[str] | None,
        WORDS,
        typer.Option(help="Call the columns by these names.", metavar="NAME,NAME", show_default="the first line"),
    ] = None
    skip_rows: Annotated[
        int | None,
        typer.Option(help="Skip this many lines at the beginning of the file.", min=0, metavar="N", show_default="0"),
    ] = None
    skip_footer: Annotated[
        int | None,
        typer.Option(
            help="Skip this many lines at the end of the file, such as a sum; blank lines do not count.",
            min=0,
            metavar="N",
            show_default="0",
        ),
    ] = None
    comment: Annotated[
        str | None,
        typer.Option(help="Skip what follows this text in a line, such as '#'.", metavar="TEXT"),
    ] = None
    sheet: Annotated[
        str | None, typer.Option(help="Read this sheet of an Excel file.", metavar="NAME", show_default="the only one")
    ] = None


@dataclass(frozen=True)
class Option:
    """A field of ``Options`` as an option or argument of the command line."""

    name: str
    default: Any
    kind: Any
    """the type that Typer reads"""
    info: Any
    """Typer's option or argument"""
    typed_as: Typed | None
    choices: tuple[str, ...] = ()
    is_required: bool = False
    is_positional: bool = False
    """whether the Python function takes it without its name"""
    is_list: bool = False
    """whether Python callers pass a sequence of values"""

    @property
    def flag(self) -> str:
        """The flag, the short one if there is one."""
        # In Annotated, Typer takes the first flag for a default.
        declared_flags = [flag for flag in (self.info.default, *(self.info.param_decls or ())) if isinstance(flag, str)]
        flags = [flag for flag in declared_flags if flag.startswith("-")]
        return flags[-1] if flags else f"--{self.name.replace('_', '-')}"

    def text(self, value: Any) -> str | list[str]:
        """Return the value as it is typed; a list if it consists of several words."""
        return as_typed(value) if self.typed_as is None else self.typed_as.text(value)

    def words(self, value: Any) -> list[str]:
        """Return the words that set the option to a value."""
        yes, _, no = self.flag.partition("/")
        if isinstance(value, bool) and bool in (self.kind, *typing.get_args(self.kind)):
            return [yes if value else no or f"--no-{self.name.replace('_', '-')}"]
        text = self.text(value)
        return [word for each in (text if isinstance(text, list) else [text]) for word in (yes, each)]


_HEAVY = ("Artifact", "Weights")
"""Types that are not imported to parse a command line, because their modules import NumPy or PyTorch."""


def _is_list(kind: Any) -> bool:
    """Return whether a type is a sequence, possibly optional; a sequence that may be a single value is not."""
    is_union = typing.get_origin(kind) in (types.UnionType, typing.Union)
    parts = typing.get_args(kind) if is_union else (kind,)
    return {typing.get_origin(part) for part in parts if part is not types.NoneType} == {Sequence}


@config.cached
def declared_options(cls: type[Options]) -> tuple[Option, ...]:
    """Return the options of a command in their order, its own first; ``settings`` stands for all training settings."""
    names = {**dict.fromkeys(_HEAVY, object), "Path": Path, "Mapping": Mapping, "Sequence": Sequence, "Any": Any}
    hints = typing.get_type_hints(cls, localns=names, include_extras=True)
    options = []
    for each in sorted(fields(cls), key=lambda each: each.name not in vars(cls)["__annotations__"]):
        if each.name == "execution":
            continue
        default = None if each.default is MISSING else each.default
        if each.name == "settings":
            options.append(Option("settings", None, None, None, None))
            continue
        kind, *extras = typing.get_args(hints[each.name]) or (None,)
        typed_as = next((extra for extra in extras if isinstance(extra, Typed)), None)
        choices = next((extra for extra in extras if isinstance(extra, Choices)), Choices())
        info = next((extra for extra in extras if isinstance(extra, typer.models.ParameterInfo)), None)
        if info is None:
            raise InputError(f"{cls.__module__}.{cls.__name__}: {each.name} is not Annotated[TYPE, typer.Option(...)]")
        if choices:
            info.autocompletion = completion.words(*choices)
        options.append(
            Option(
                each.name,
                default,
                kind if typed_as is None else typed_as.kind,
                info,
                typed_as,
                choices,
                is_required=each.default is MISSING,
                is_positional=not each.kw_only,
                is_list=_is_list(kind),
            )
        )
    return tuple(options)


def _setting_words(settings: Mapping[str, Any]) -> list[str]:
    """Return the training settings that differ from their default as options, with one flag per upload step."""
    from pflcli.core.settings import Settings

    line: list[str] = []
    defaults = Settings()
    for name, value in settings.items():
        flag, default = f"--{name.replace('_', '-')}", getattr(defaults, name, MISSING)
        if as_typed(value) == as_typed(default) or (name == "epochs" and settings.get("steps")):
            continue
        if isinstance(default, bool):
            line.append(flag if as_typed(value) == "true" else f"--no-{flag.removeprefix('--')}")
        elif name == "upload":
            steps = [value] if isinstance(value, str) else value
            line += [word for step in steps for word in (flag, as_file("uploads", step))]
        elif name in _GROUPS_OF_SETTINGS:
            line += [flag, as_file(_GROUPS_OF_SETTINGS[name], value)]
        else:
            line += [flag, as_typed(value)]
    return line


_GROUPS = {"method": "methods", "methods": "methods", "dataset": "datasets", "scheme": "schemes"}
"""The options whose values may be users' files, with the groups of these files."""
_GROUPS_OF_SETTINGS = {"model": "models", "upload": "uploads", "aggregator": "aggregators"}
"""The same for training settings."""


def _use_files(values: Mapping[str, Any], groups: Mapping[str, str]) -> dict[str, Any]:
    """Return those ``values`` that name files of ``groups``, with the names of users' files in place of their paths."""
    used: dict[str, Any] = {}
    for option, group in groups.items():
        value = values.get(option)
        if isinstance(value, str | Path):
            name = registry.use(group, str(value))
            used[option] = value if name == str(value) else name
        elif isinstance(value, Sequence):
            used[option] = [registry.use(group, word) for word in value]
    return used


def names_of_files(asked: Options) -> dict[str, Any]:
    """Return the options that may name users' files, with the names of the files in place of their paths."""
    named, settings = _use_files(vars(asked), _GROUPS), getattr(asked, "settings", None)
    if settings:
        named["settings"] = {**settings, **_use_files(settings, _GROUPS_OF_SETTINGS)}
    options = getattr(asked, "options", None) or {}
    arguments = {key.removeprefix("model."): value for key, value in options.items() if key.startswith("model.")}
    arguments |= options["model"] if isinstance(options.get("model"), Mapping) else {}
    if arguments:
        named["settings"] = _add_arguments(named.get("settings") or {}, arguments)
        named["options"] = {key: value for key, value in options.items() if key.partition(".")[0] != "model"}
    return named


def _add_arguments(settings: Mapping[str, Any], arguments: Mapping[str, Any]) -> dict[str, Any]:
    """Return the settings with arguments of the model's class; raises UsageError if the model is no such class."""
    model = settings.get("model")
    if model is None or not registry.is_foreign("models", str(model).partition(":")[0]):
        key, value = next(iter(arguments.items()))
        raise UsageError(f"--set model.{key}={value} needs a model that is a class of yours", "--model ./net.py:Net")
    return {**settings, "model": registry.add_arguments(str(model), arguments)}
