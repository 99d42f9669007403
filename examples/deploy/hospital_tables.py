"""Write the tables of four hospitals: the heart-disease data of pfl, as each hospital might have them.

python examples/deploy/hospital_tables.py DIR             the same columns everywhere
python examples/deploy/hospital_tables.py DIR --differ    each with its own order and names of columns, and units
python examples/deploy/hospital_tables.py DIR --convert   cholesterol at Long Beach, to the unit of the others
python examples/deploy/hospital_tables.py DIR --pool      pooled.csv, the rows of all tables in DIR, by hospital
"""

from __future__ import annotations

import csv
import sys
from pathlib import Path

import pflcli

FILES = {"cleveland": "cleveland", "hungary": "hungarian", "long-beach": "va", "switzerland": "switzerland"}
EMPTY = ("slope", "ca", "thal")
"""Columns that are mostly empty."""
SHARED = ["age", "sex", "cp", "trestbps", "chol", "fbs", "restecg", "thalach", "exang", "oldpeak", "num"]
COLUMNS = [*SHARED[:-1], *EMPTY, "num"]
SPELLED = {"hungary": {"age": "Age", "trestbps": "trest bps", "num": "NUM"}, "switzerland": {"chol": "cholesterol"}}
MG_PER_MMOL = 38.67
"""Milligrams a decilitre of cholesterol that are a millimole a litre."""


def read_rows(hospital: str) -> list[dict[str, str]]:
    """Return the patients of a hospital, as pfl has them."""
    file = Path(pflcli.__file__).parent / "data/datasets/hospitals" / f"processed.{FILES[hospital]}.data"
    return [dict(zip(COLUMNS, line.split(","), strict=True)) for line in file.read_text().split()]


def spell(hospital: str, row: dict[str, str]) -> dict[str, str]:
    """Return a patient as the hospital writes it: with words for sex, and its own order, names and unit."""
    row = {name: row[name] for name in SHARED} | {"sex": "fm"[int(float(row["sex"]))]}
    if hospital == "switzerland":
        row["sex"] = row["sex"].upper()
    if hospital == "long-beach" and row["chol"] != "?":
        row["chol"] = repr(float(row["chol"]) / MG_PER_MMOL)
    order = SHARED[len(hospital) % 5 :] + SHARED[: len(hospital) % 5]
    return {SPELLED.get(hospital, {}).get(name, name): row[name] for name in order}


def convert(folder: Path) -> None:
    """Convert the cholesterol of Long Beach to milligrams a decilitre, as the hospital does when it is told to."""
    rows = read_table(folder / "long-beach.csv")
    for row in rows:
        row["chol"] = row["chol"] if row["chol"] == "?" else repr(float(row["chol"]) * MG_PER_MMOL)
    write_table(folder / "long-beach.csv", rows)


def pool(folder: Path) -> None:
    """Write the rows of all tables by the names that sites agreed on: for a simulation, which no deployment needs."""
    rows = []
    for hospital in FILES:
        names = {own: name for name, own in SPELLED.get(hospital, {}).items()}
        for row in read_table(folder / f"{hospital}.csv"):
            own = {names.get(name, name): value for name, value in row.items()}
            rows.append({"hospital": hospital, **{name: own[name] for name in SHARED}, "sex": own["sex"].lower()})
    write_table(folder / "pooled.csv", rows)


def read_table(path: Path) -> list[dict[str, str]]:
    """Return the rows of a table by column."""
    with path.open(newline="") as file:
        return [*csv.DictReader(file)]


def write_table(path: Path, rows: list[dict[str, str]]) -> None:
    """Write rows with the same columns as CSV."""
    with path.open("w", newline="") as file:
        writer = csv.DictWriter(file, [*rows[0]], lineterminator="\n")
        writer.writeheader()
        writer.writerows(rows)


def main(folder: Path, what: str) -> None:
    """Do what the command line asks for."""
    folder.mkdir(parents=True, exist_ok=True)
    if what in ("--convert", "--pool"):
        {"--convert": convert, "--pool": pool}[what](folder)
        return
    for hospital in FILES:
        rows = read_rows(hospital)
        write_table(folder / f"{hospital}.csv", [spell(hospital, row) for row in rows] if what == "--differ" else rows)


if __name__ == "__main__":
    main(Path(sys.argv[1]), sys.argv[2] if len(sys.argv) > 2 else "")
