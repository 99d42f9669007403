"""Run a method among real sites: ``pfl federation`` and ``pfl site``."""

GROUPS = {
    "federation": "Run a chosen method among real sites: what they agree on, and the server.",
    "site": "Take part in a federation with the samples of one site, which never leave it.",
}
COMMANDS = {
    "federation create": {
        "panel": "Among real sites",
        "options": "federation_options:CreateFederation",
        "function": "federation:create_federation",
    },
    "federation columns": {
        "panel": "Among real sites",
        "options": "column_options:AgreeOnColumns",
        "function": "columns.commands:agree_on_columns",
        "terminal": "column_terminal:AGREEMENT",
    },
    "federation check": {
        "panel": "Among real sites",
        "options": "federation_options:CheckFederation",
        "function": "federation:check_federation",
        "terminal": "terminal:FACTS",
    },
    "federation run": {
        "panel": "Among real sites",
        "options": "federation_options:RunFederation",
        "function": "federation:run_federation",
        "terminal": "terminal:RUN",
    },
    "site columns": {
        "panel": "Among real sites",
        "options": "column_options:SummarizeColumns",
        "function": "columns.commands:summarize_columns",
        "terminal": "column_terminal:SUMMARY",
    },
    "site check": {
        "panel": "Among real sites",
        "options": "site_options:CheckSite",
        "function": "site:check_site",
        "terminal": "terminal:CHECK",
    },
    "site serve": {
        "panel": "Among real sites",
        "options": "site_options:ServeSite",
        "function": "site:serve_site",
    },
    "site answer": {
        "panel": "Among real sites",
        "options": "site_options:AnswerMessage",
        "function": "site:answer_message",
        "terminal": "terminal:ANSWER",
    },
}
KINDS = {"federation": {"section": "show:section", "like": "columns.table:read_earlier"}}
