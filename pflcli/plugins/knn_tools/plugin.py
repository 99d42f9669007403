"""Tools of kNN-Per: ``pfl sweep`` scores many of its options, ``pfl update-datastore`` adds and removes samples."""

COMMANDS = {
    "update-datastore": {
        "panel": "Single steps",
        "after": "build-datastore",
        "options": "update_datastore_options:UpdateDatastore",
        "function": "update_datastore:update_datastore",
    },
    "sweep": {"panel": "More", "options": "sweep_options:Sweep", "function": "sweep:sweep"},
}
KINDS = {"sweep": {"module": "kind"}}
