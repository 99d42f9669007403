"""Formats of other tools for ``pfl import``: LEAF, TensorFlow Federated, and Hugging Face datasets on disk."""

FORMATS = {
    "leaf": {
        "reader": "leaf",
        "tool": "LEAF",
        "title": "JSON in LEAF's layout",
        "words": "leaf:FOLDER",
        "options": ["samples"],
        "deals": True,
    },
    "tff": {
        "reader": "tff",
        "tool": "TensorFlow Federated",
        "title": "HDF5 of TensorFlow Federated",
        "words": "tff:FILE",
        "deals": True,
    },
    "hf": {
        "reader": "hugging_face",
        "tool": "Hugging Face",
        "title": "a Hugging Face dataset",
        "words": "hf:FOLDER",
        "options": [
            "resize",
            "convert",
            "frame",
            "decimal",
            "thousands",
            "strip",
            "na",
            "categorical",
            "leave_out",
            "date_format",
            "samples",
        ],
    },
}
