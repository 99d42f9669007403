"""Scores by group of samples: ``--group-scores`` of ``pfl evaluate`` and ``pfl compare``."""

SCORES = {
    "group_scores": {
        "parse": "scores:parse_columns",
        "require": "scores:require_columns",
        "summarize": "scores:summarize",
        "fields": "tables:Fields",
        "tables": "tables:list_tables",
        "notes": "tables:list_notes",
        "numbers": "tables:list_numbers",
    }
}
