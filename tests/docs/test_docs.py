"""The documentation describes what exists, and its results are those of stored tables."""

from __future__ import annotations

import csv
import dataclasses
import importlib.util
import inspect
import re
import tomllib
from operator import attrgetter
from pathlib import Path

import pytest
import typer.main

import pflcli
from pflcli.cli import app
from pflcli.cli.from_options import walk_commands
from pflcli.core import methods, registry
from pflcli.core.datasets import Dataset
from pflcli.core.federation.run import Run
from pflcli.core.federation.uploads import Upload
from pflcli.core.models import Model
from pflcli.core.schemes import Scheme
from pflcli.core.settings import Settings
from pflcli.plugins.checks.laws import list_laws
from pflcli.plugins.checks.new import new
from pflcli.plugins.claims import claims_file
from pflcli.plugins.claims import presentation as verdicts

ROOT = Path(__file__).parents[2]
PAGES = {
    str(path.relative_to(ROOT)): path.read_text(encoding="utf-8")
    for path in (ROOT / "README.md", ROOT / "CONTRIBUTING.md", *sorted((ROOT / "docs").rglob("*.md")))
}
README = PAGES["README.md"]
FOR_USERS = ("api", "artifacts", "choosing", "data", "measurement", "methods", "not-included", "training")
COMMANDS = dict(walk_commands(typer.main.get_command(app)))


FOR_CONTRIBUTORS = {"CONTRIBUTING.md", "docs/architecture.md", "docs/settings.md", "docs/testing.md"}
NO_TEXT = re.compile(r"<!-- [^\n]* -->\n.*?<!-- end -->|^```.*?^```", flags=re.S | re.M)
"""What scripts write into a page, and blocks of code."""


def count_words(name):
    """Return the number of words of a page that people wrote, tables and links included."""
    return len(NO_TEXT.sub("", PAGES[name]).split())


def test_count_words_leaves_out_what_scripts_write_and_code(monkeypatch):
    monkeypatch.setitem(PAGES, "x", "one two\n<!-- rows of a.csv || -->\n| a |\n<!-- end -->\n\n```sh\npfl\n```\nthree")
    assert count_words("x") == 3


def test_readme_is_read_in_a_few_minutes():
    assert count_words("README.md") <= 950


def test_pages_for_users_are_read_in_an_evening():
    """All but those for contributors, and the changelog."""
    assert sum(count_words(name) for name in {*PAGES} - FOR_CONTRIBUTORS) <= 45_000


def load_script(name):
    """Return a script of docs/ as a module."""
    spec = importlib.util.spec_from_file_location(name, ROOT / "docs" / f"{name}.py")
    script = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(script)
    return script


def test_table_of_commands_leads_to_a_page_of_each():
    """No other page is in the folder."""
    rows = re.findall(r"^\| \[`pfl ([a-z-]+(?: [a-z]+)?)`\]\((\S+)\) \|", PAGES["docs/commands.md"], flags=re.M)
    assert [name for name, _ in rows] == list(COMMANDS)
    assert {f"docs/{page}" for _, page in rows} == {name for name in PAGES if name.startswith("docs/commands/")}


def test_table_of_methods_equals_pfl_list():
    row = r"^\| \[`([a-z-]+)`\]\(methods/\1\.md\) \| .* \| (\w+) \| (\w+) \|$"
    rows = re.findall(row, PAGES["docs/all-methods.md"], flags=re.M)
    facts = [registry.card("methods", name) for name in registry.names("methods")]
    assert rows == [(card.name, card.facts["KIND"], ", ".join(card.facts["NEEDS"]) or "partition") for card in facts]


@pytest.mark.parametrize(
    ("group", "page"),
    [
        ("datasets", "data"),
        ("schemes", "data"),
        ("models", "data"),
        ("uploads", "training"),
        ("aggregators", "training"),
        ("methods", "all-methods"),
    ],
)
def test_page_mentions_every_registered_name(group, page):
    for name in registry.names(group):
        assert f"`{name}`" in PAGES[f"docs/{page}.md"]


def test_reference_pages_are_up_to_date():
    for path, text in load_script("reference").write_files().items():
        assert path.read_text(encoding="utf-8") == text, f"{path.name}: run python docs/reference.py"


def test_readme_states_the_number_of_laws():
    assert f"under {len(list_laws('methods'))} laws" in README


@pytest.mark.parametrize("command", ["train-global", "personalize", "compare"])
def test_every_training_setting_is_a_command_option(command):
    flags = {f"--{field.name.replace('_', '-')}" for field in dataclasses.fields(Settings)}
    assert flags <= list_options(COMMANDS[command])


def list_options(command):
    return {opt for param in command.params for opt in (*param.opts, *param.secondary_opts)}


WITH_COMMANDS = [
    *("README.md", "docs/commands.md", "docs/data.md", "docs/measurement.md", "docs/artifacts.md", "docs/training.md"),
    *sorted(name for name in PAGES if name.startswith("docs/commands/")),
    *(f"examples/{path.name}" for path in (ROOT / "examples").glob("*.sh")),
]


@pytest.mark.parametrize("path", WITH_COMMANDS)
def test_command_lines_in_the_docs_use_existing_options(path):
    """What the help of a command prints is tested where its examples are run."""
    lines = re.findall(
        rf"^[^#\n]*?\bpfl ({'|'.join(COMMANDS)})(?![\w-])([^\n|)#]*)",
        re.sub(r"<!-- options of .*?<!-- end -->", "", (ROOT / path).read_text(encoding="utf-8"), flags=re.S),
        flags=re.M,
    )
    assert lines or path.startswith("docs/commands/")
    for name, rest in lines:
        for option in re.findall(r"(?<=\s)--?[a-z][a-z-]*", rest):
            assert option in list_options(COMMANDS[name]), f"{path}: pfl {name} has no {option}"


def test_methods_page_shows_the_template_of_pfl_new(tmp_path):
    code = re.search(r"```python\n(.*?)```", PAGES["docs/methods.md"], flags=re.S)[1]
    assert code == new("method", tmp_path / "my_method.py").read_text()


def test_methods_page_names_existing_members_of_run():
    calls = re.findall(r"`run\.(\w+)", PAGES["docs/methods.md"])
    assert calls
    members = {*dir(Run), *(field.name for field in dataclasses.fields(Run))}
    assert {*calls} <= members


def test_methods_page_names_existing_constants():
    names = {*re.findall(r"`([A-Z_]{3,})\b", PAGES["docs/methods.md"])}
    assert names
    contracts = (methods.Method, Model, Dataset, Scheme, Upload)
    assert names <= {name for contract in contracts for name in contract.__annotations__}


def test_scripts_of_the_api_page_run(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    in_memory, commands = re.findall(r"```python\n(.*?)```", PAGES["docs/api.md"], flags=re.S)[:2]
    exec(in_memory, simulated := {})
    assert simulated["result"].accuracy() > 0.7
    assert len(simulated["short"].rounds) < 100
    assert " rounds\n" in (printed := capsys.readouterr().out)
    assert "gain_low" in printed
    exec(commands, names := {})
    assert {*names["table"].index} == {"fedavg", "local", "constant", "pooled"}
    assert len(names["clients"]) == 3 * len(names["table"])
    assert capsys.readouterr().out.startswith("new 3 clients\n4 runs/p exists and was made by another request")


def list_functions_that_make():
    """Return the functions of commands that make an artifact, in the order of the help."""
    functions = dict[str, object]()
    for command in COMMANDS:
        group, _, word = command.replace("-", "_").rpartition(" ")
        home = getattr(pflcli, group) if group else pflcli
        functions[f"{group}.{word}".lstrip(".")] = getattr(home, "import_data" if word == "import" else word, None)
    return [name for name, made in functions.items() if made and inspect.signature(made).return_annotation == "Outcome"]


def test_api_page_lists_one_function_per_command():
    rows = re.findall(r"^\| `([\w.]+)` \| (.*) \| \w", PAGES["docs/api.md"], flags=re.M)
    named = [row[0].removeprefix("pflcli.").replace("import_data", "import") for row in rows]
    assert named == list_functions_that_make()
    for place, arguments in rows:
        function = attrgetter(place.removeprefix("pflcli."))(pflcli)
        parameters = inspect.signature(function).parameters.values()
        needed = [item.name for item in parameters if item.kind is not item.KEYWORD_ONLY]
        assert re.findall(r"`(\w+)`", arguments) == needed


@pytest.mark.parametrize("page", ["README.md", *(f"docs/{name}.md" for name in FOR_USERS)])
def test_pages_name_only_existing_options(page):
    of_recipes = {"--paper"}
    pfl = typer.main.get_command(app)
    known = set().union(*(list_options(command) for command in (pfl, *COMMANDS.values())), {"--help"}, of_recipes)
    assert set(re.findall(r"(?<![\w-])--[a-z][a-z-]+", PAGES[page])) <= known


def list_anchors(page):
    """Return the anchors of a page's headings, as GitHub makes them."""
    headings = re.findall(r"^#+ (.*)$", re.sub(r"^```.*?^```", "", page, flags=re.M | re.S), flags=re.M)
    return {re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-") for heading in headings}


def list_links(name):
    """Return the paths of this repository to which a page links."""
    targets = re.findall(r"\]\(([^)#\s]+)", PAGES[name])
    paths = [(ROOT / name).parent / target for target in targets if "://" not in target]
    return {str(path.resolve().relative_to(ROOT)) for path in paths}


def test_readme_links_to_every_page_but_those_of_single_commands_and_methods():
    pages = {name for name in PAGES if not name.startswith(("docs/commands/", "docs/methods/"))}
    assert pages - {"README.md"} - list_links("README.md") == set()


def test_site_has_every_page():
    """The table of all methods leads to their cards."""
    cards = {f"docs/methods/{name}.md" for name in registry.names("methods")}
    site = (ROOT / "properdocs.yml").read_text(encoding="utf-8").split("\nnav:\n")[1]
    pages = {f"docs/{page}" for page in re.findall(r"([\w/-]+\.md)$", site, flags=re.M)}
    assert pages - {"docs/index.md", "docs/contributing.md", "docs/changelog.md", "docs/security.md"} == {
        name for name in PAGES if name.startswith("docs/") and name not in cards
    }


@pytest.mark.parametrize("name", PAGES)
def test_links_in_the_docs_resolve(name):
    for link in re.findall(r"\]\(([^)\s]+)\)", (ROOT / name).read_text(encoding="utf-8")):
        target, _, anchor = link.partition("#")
        if "://" in link:
            continue
        linked = (ROOT / name).parent / target if target else ROOT / name
        assert linked.exists(), f"{name}: {link}"
        if anchor:
            assert anchor in list_anchors(linked.read_text(encoding="utf-8")), f"{name}: {link}"


GLOSSARY = PAGES["docs/glossary.md"]


def test_glossary_defines_each_term_once():
    rows = re.findall(r"^\| (\*\*.*?) \| (.*) \|$", GLOSSARY, flags=re.M)
    terms = [term for bold, meaning in rows for term in re.findall(r"\*\*(.+?)\*\*", bold + meaning)]
    assert terms
    assert sorted({*terms}) == sorted(terms)


ARCHITECTURE = PAGES["docs/architecture.md"]
PACKAGE = ROOT / "pflcli"


def test_architecture_map_lists_exactly_the_packages():
    mapped = re.findall(r"^\| `(pflcli/\S+)` \|", ARCHITECTURE.split("## What is where")[1], flags=re.M)
    inner = [file for folder in (PACKAGE, PACKAGE / "core") for file in folder.glob("*.py")]
    files = [file.relative_to(ROOT).as_posix() for file in inner if file != PACKAGE / "core" / "__init__.py"]
    folders = ("*", "core/*", "plugins/*", "workflow/*")
    packages = [file.parent for folder in folders for file in PACKAGE.glob(f"{folder}/__init__.py")]
    assert mapped == sorted([*files, *(f"{package.relative_to(ROOT).as_posix()}/" for package in packages)])


def test_architecture_map_names_existing_paths():
    table = ARCHITECTURE.split("## Where do I put X?")[1]
    kinds = re.findall(r"^\| an? ([\w ]+?)(?: \||,)", table, flags=re.M)
    groups = ["method", "dataset", "scheme", "model", "metric", "artifact kind", "command", "upload step", "executor"]
    assert {*groups} <= {*kinds}
    paths = re.findall(r"`((?:\w+/)+(?:\w+\.py)?|\w+\.py)`", ARCHITECTURE)
    assert paths
    for name in paths:
        real = re.sub(r"my_\w+(\.py|/)$", "", name)
        spots = [
            ROOT / real,
            PACKAGE / real,
            PACKAGE / "artifacts" / real,
            *PACKAGE.glob(f"plugins/*/{real}"),
            PACKAGE / "core" / "engine" / real,
            PACKAGE / "methods" / real,
            PACKAGE / "commands" / real,
            PACKAGE / "data" / real,
            PACKAGE / "evaluation" / real,
            PACKAGE / "core" / "federation" / real,
            PACKAGE / "core" / "simulation" / real,
            PACKAGE / "workflow" / "training" / real,
            ROOT / "tests" / real,
        ]
        assert any(spot.exists() for spot in spots), f"docs/architecture.md: {name} does not exist"


@pytest.fixture(scope="module")
def fill_script():
    """docs/fill.py as a module."""
    return load_script("fill")


@pytest.mark.parametrize("name", PAGES)
def test_tables_on_a_page_match_their_csv_files(fill_script, name):
    assert PAGES[name] == fill_script.fill(PAGES[name], (ROOT / name).parent), "run python docs/fill.py"


def test_every_csv_file_is_linked_from_a_page():
    links = {
        (ROOT / name).parent.joinpath(link).resolve()
        for name, page in PAGES.items()
        for link in re.findall(r"\]\(([^)\s]+\.csv)\)", page)
    }
    assert links == {path for path in (ROOT / "docs").rglob("*.csv") if path.parent.name != "scores"}


def test_every_table_in_commands_toml_has_a_csv_file(fill_script):
    commands = tomllib.loads((fill_script.RESULTS / "commands.toml").read_text(encoding="utf-8"))
    scores = commands.pop("scores")
    names = [name for tables in commands.values() for name in tables if name]
    assert len({*names}) == len(names)
    assert {*scores} <= {*names}
    for name in names:
        assert (fill_script.RESULTS / f"{name}.csv").exists()


def test_parse_tables_and_select_combine_markdown_tables(fill_script):
    one, two = fill_script.parse_tables(
        "Of a:\n\n| method | b | c |\n|---|--:|--:|\n| `x` | 1 | 2 |\n| `y` | 4 | 5 |\n\n"
        "| method | c |\n|-|-|\n| `x` | 3 |\n"
    )
    assert one == [["method", "b", "c"], ["x", "1", "2"], ["y", "4", "5"]]
    assert fill_script.select({"one": one, "two": two}, ["y", "x"], ["c"]) == [
        ["method", "one: c", "two: c"], ["y", "5", "-"], ["x", "2", "3"],
    ]  # fmt: skip
    with pytest.raises(ValueError, match="no row z"):
        fill_script.select({"": one}, ["z"], [])


def test_keep_rows_replaces_the_rows_of_claims_that_were_judged_again(fill_script):
    old = [["claim", "verdict"], ["a", "undecided"], ["b", "confirmed"]]
    new = [["claim", "verdict"], ["c", "in part"], ["a", "confirmed"]]
    assert fill_script.keep_rows(old, new) == [old[0], ["a", "confirmed"], ["b", "confirmed"], ["c", "in part"]]
    other = [["claim", "verdict", "size"], ["a", "confirmed", "60 clients"]]
    assert fill_script.keep_rows(old, other) == [other[0], ["a", "confirmed", "60 clients"], ["b", "confirmed", ""]]
    scores = [["comparison", "seed"], ["x", "0"], ["x", "1"], ["y", "0"]]
    again = [["comparison", "seed"], ["x", "5"]]
    assert fill_script.keep_rows(scores, again) == [scores[0], ["x", "5"], ["y", "0"]]


def test_stored_verdicts_are_about_claims_of_the_papers_as_they_are_stated_now(fill_script):
    """What a paper has instead is as cited, too."""
    files = [*fill_script.RESULTS.glob("verdicts-*.csv")]
    assert files
    for file in files:
        stem = file.stem.removeprefix("verdicts-")
        name = next((word for word in ("pretrained", "frozen") if stem.endswith(f"-{word}")), "claims")
        paper = stem.removesuffix(f"-{name}")
        stated = claims_file.read(ROOT / "examples" / "papers" / paper / f"{name}.toml")
        heading, *rows = fill_script.read(file)
        for row in rows:
            stored, claim = dict(zip(heading, row, strict=True)), stated.claims[row[0]]
            assert (stored["says"], stored["where"]) == (claim.says, claim.where), file
            for part in stored["size"].split("; "):
                experiment, _, size = part.partition(": ")
                cell = {"size": {}, "paper": stated.experiments[experiment].papers}
                assert size.partition(" (paper")[1:] == verdicts.describe_size(cell).partition(" (paper")[1:], row[0]


def test_claims_are_shown_in_a_line_in_detail_and_as_numbers_of_verdicts(fill_script, tmp_path):
    """Claims without a place in a paper are questions; those by hand have the paper as a column."""
    heading = ["claim", "says", "where", "condition", "verdict", "holds in", "decided by", "size"]
    size, decided = "x: 3 seeds (paper: rounds 5)", "m - n on x, m.k 5: accuracy -1.7 [-2.3, -1.0]"
    rows = [
        ["a", "A", "Table 1", "higher", "confirmed", "1 of 2 settings: x", decided, size],
        ["b", "B", "", "higher", "undecided", "0 of 1 setting", decided, size],
    ]
    by_hand = [
        ["paper", "claim", "says", "where", "verdict", "effect", "seeds", "seen"],
        ["P", "c", "C", "1.2", "undecided", "m - n: {t[m; score; 2] - t[n; score; 2]}", "3", "alone {t[m; score; 1]}"],
        ["Q", "d", "D", "1.3", "not testable", "", "", "no data"],
    ]
    table = [["method", "score"], ["m", "0.7 / 60.0 ± 3.0"], ["n", "0.8 / 65.0 ± 4.0"]]
    for name, stored in {"v": [heading, *rows], "h": by_hand, "t": table}.items():
        with (tmp_path / f"{name}.csv").open("w", newline="") as file:
            csv.writer(file).writerows(stored)
    parts = {"P": "claims of P=v.csv, P=h.csv", "Ours": "questions of P=v.csv", "All": "details of P=v.csv, Q=h.csv"}
    page = "<!-- verdicts -->\n<!-- end -->\n" + "".join(
        f"## {title}\n<!-- {block} -->\n<!-- end -->\n\n" for title, block in parts.items()
    )
    filled = fill_script.fill(page, tmp_path)
    assert fill_script.fill(filled, tmp_path) == filled
    counts, claims, questions = fill_script.parse_tables(filled)
    assert counts[1] == ["P", "1 + 0", "0 + 0", "0 + 0", "0 + 1", "0 + 0"]
    assert counts[2] == ["Ours", "0 + 0", "0 + 0", "0 + 0", "1 + 0", "0 + 0"]
    line = ["Table 1", "confirmed", "m - n: accuracy -1.7 [-2.3, -1.0]", "1 of 2", "3"]
    assert claims[1] == ["[A](claims-details.md#p-a)", *line]
    half = 4.303 * 5 / 3**0.5
    interval = f"[{-5 - half:+.1f}, {-5 + half:+.1f}]"
    assert claims[2] == ["[C](claims-details.md#p-c)", "1.2", "undecided", f"m - n: -5.0 {interval}", "by hand", "3"]
    assert [row[:3] for row in questions[1:]] == [["[B](claims-details.md#p-b)", "P", "undecided"]]
    details = filled.split("## All")[1]
    assert re.findall("^### (.*)$", details, flags=re.M) == ["P: a", "P: b", "Q: d"]
    assert f"- holds in: 1 of 2 settings: x\n- decided by: {decided}\n- size: {size}\n" in details


def test_columns_of_numbers_are_right_aligned_and_columns_of_text_are_not(fill_script):
    body = [
        ["x", "+1.5 [-0.2, +3.0]", "a of b", "-", "12 MB"],
        ["y", "**2.0 ± 0.1**", "1 of 2 settings", "3", "not finite"],
    ]
    marks = fill_script.to_markdown([["name", "a", "b", "c", "d"], *body, ["z", "0.3", "in part", "4", "7 s"]])
    assert marks.splitlines()[1] == "| --- | ---: | --- | ---: | ---: |"


def read_verdicts(fill_script):
    """Return the claims of all files of verdicts, those of ``pfl verify`` and those by hand."""
    papers = {
        "fedattn": "FedAttn",
        "fedham": "FedHAM",
        "knn-per": "kNN-Per",
        "knn-per-frozen": "kNN-Per",
        "knn-per-pretrained": "kNN-Per",
        "panm": "PANM",
    }
    files = {file.stem.removeprefix("verdicts-"): file for file in fill_script.RESULTS.glob("verdicts-*.csv")}
    assert {*files} == {*papers}
    by_hand = [f"{paper}=claims-by-hand.csv" for paper in dict.fromkeys(papers.values())]
    named = ", ".join([*(f"{papers[name]}={file.name}" for name, file in files.items()), *by_hand])
    return fill_script.read_claims(named, fill_script.RESULTS)


def test_every_verdict_has_a_line_that_leads_to_its_details(fill_script):
    claims = read_verdicts(fill_script)
    links = re.findall(r"\]\(claims-details\.md#([^)]+)\)", PAGES["docs/claims.md"])
    titles = re.findall("^### (.*)$", PAGES["docs/claims-details.md"], flags=re.M)
    assert sorted(titles) == sorted(f"{paper}: {row['claim']}" for paper, row in claims)
    assert sorted(links) == sorted(title.lower().replace(": ", "-") for title in titles)
    assert len({*links}) == len(links)
    assert len(fill_script.read(fill_script.RESULTS / "claims-by-hand.csv")) == 1 + sum(
        "paper" in row for _, row in claims
    )


INTERVAL = re.compile(r"[+-][\d,.]+ \[([+-][\d,.]+), ([+-][\d,.]+)\]")


def holds(condition, low, high):
    """Return whether an interval, with rounded ends, can satisfy a condition, and whether it can contradict it."""
    direction, _, rest = condition.partition(" ")
    margin, rounding = float(rest.split()[-1]) if rest else 0.0, 0.05
    if direction in ("lower", "not-higher"):
        low, high = -high, -low
    if direction == "level":
        return -low <= margin + rounding >= high, max(low, -high) >= margin - rounding
    least = -margin if direction.startswith("not-") else margin
    return low >= least - rounding, high <= least + rounding


def test_a_verdict_is_what_the_interval_beside_it_says(fill_script):
    """Not confirmed means contradicted, and nothing is decided by fewer than three seeds."""
    checked = 0
    for _, row in read_verdicts(fill_script):
        assert row["verdict"] in fill_script.VERDICTS
        if "paper" in row and row["seeds"] and int(row["seeds"]) < 3:
            assert row["verdict"] == "undecided", row["claim"]
        found = INTERVAL.search(row.get("effect") or row.get("decided by", ""))
        if found is None:
            continue
        low, high = (float(bound.replace(",", "")) for bound in found.groups())
        if "paper" in row:
            assert (row["verdict"] in ("confirmed", "not confirmed")) == (not low <= 0 <= high), row["claim"]
        elif row["verdict"] != "undecided":
            satisfied, contradicted = holds(row["condition"], low, high)
            assert satisfied if row["verdict"] == "confirmed" else contradicted, row["claim"]
        checked += 1
    assert checked > 50


# A result, such as 93.4. Numbers of sections, versions, licences and of the heterogeneity alpha are none.
FIGURE = re.compile(r"(?<![\w.+/-])(?<!\u03b1 )[+-]?(\d+\.\d+)(?![\w.])")
NO_RESULT = re.compile(r"(?:[Ss]ections?|Theorem|Python|CC BY(?:-SA)?) [\d.]+(?:,? (?:and )?[\d.]+)*")
FILLED = re.compile(r"<!-- (?:rows of|claims of|questions of|details of|verdicts) .*?<!-- end -->", flags=re.S)


@pytest.mark.parametrize("name", ["README.md", "docs/results.md", "docs/claims.md", "docs/claims-details.md"])
def test_every_result_in_the_text_is_in_a_csv_file_that_its_section_links(fill_script, name):
    """The rows of tables link their own files, beside the place in the paper."""
    for section in re.split(r"^(?=## )" if "details" in name else r"^(?=##+ )", PAGES[name], flags=re.M):
        text = NO_RESULT.sub("", re.sub(r"```.*?```|`[^`]*`", "", FILLED.sub("", section), flags=re.S))
        rows = re.findall(r"^\|.*$", text, flags=re.M)
        for part in [
            re.sub(r"^\|.*$", "", text, flags=re.M),
            *(re.sub(r" \| [^|]*", " | ", row, count=1) for row in rows),
        ]:
            files = re.findall(r"\]\(([^)\s]+\.csv)\)", part if part.startswith("|") else section)
            stored = {
                figure
                for file in files
                for row in fill_script.read((ROOT / name).parent / file)
                for figure in FIGURE.findall(" ".join(row))
            }
            typed = {*FIGURE.findall(re.sub(r"\]\([^)]*\)", "", part))} - stored
            assert not typed, f"{section.splitlines()[0]}: no linked file has {', '.join(sorted(typed))}: {part[:80]}"


def test_every_verdict_by_hand_names_its_evidence(fill_script):
    """A command, the seeds, and tables that have each result."""
    for row in (row for _, row in read_verdicts(fill_script) if "paper" in row):
        evidence = row["stands on"]
        recipes = re.findall(r"`((?:[\w-]+/)?[\w-]+\.sh)", evidence)
        for name in recipes:
            assert any((ROOT / "examples" / folder / name).exists() for folder in ("", "papers")), name
        if row["verdict"] != "not testable":
            assert recipes or "`pfl " in evidence, f"{row['claim']}: names no command"
            assert row["seeds"].isdigit(), f"{row['claim']}: names no seeds"
        typed = re.sub(r"`[^`]*`", "", INTERVAL.sub("", " ".join(row[name] for name in ("effect", "seen", "settings"))))
        files = re.findall(r"\]\(([^)\s]+\.csv)\)", evidence)
        cells = [" ".join(cells) for file in files for cells in fill_script.read(ROOT / "docs" / file)]
        missing = {*FIGURE.findall(typed)} - {*FIGURE.findall(" ".join(cells))}
        assert not missing, f"{row['claim']}: no linked file has {', '.join(sorted(missing))}"
