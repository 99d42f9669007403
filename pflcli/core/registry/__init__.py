"""The registry: every file in a folder is a method, model, scheme and so on; others come from users and packages."""

from pflcli.core.registry.cards import Card, Option, card, cards, constants, options, read_homes, suggest_option
from pflcli.core.registry.contracts import complete, complete_object, find_longer_name, import_file, load
from pflcli.core.registry.files import (
    GROUPS,
    KINDS,
    ROOT,
    USED,
    exists,
    folder,
    is_foreign,
    names,
    origin,
    package,
    path,
    used_files,
)
from pflcli.core.registry.users_files import (
    add_arguments,
    group_of,
    is_file,
    join_arguments,
    locate,
    name_of_file,
    place_of_failure,
    search_used_folders,
    split_arguments,
    split_file,
    use,
)

__all__ = [
    "GROUPS", "KINDS", "ROOT", "USED", "Card", "Option", "add_arguments", "card", "cards", "complete",
    "complete_object", "constants", "exists", "find_longer_name", "folder", "group_of", "import_file", "is_file",
    "is_foreign", "join_arguments", "load", "locate", "name_of_file", "names", "options", "origin", "package",
    "path", "place_of_failure", "read_homes", "search_used_folders", "split_arguments", "split_file",
    "suggest_option", "use", "used_files",
]  # fmt: skip
