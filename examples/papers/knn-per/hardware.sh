#!/usr/bin/env bash
# kNN-Per, Figure 9: half of the clients hold less than half of their samples, the others as much more.
#
#   bash examples/papers/knn-per/hardware.sh fashion-mnist --root FOLDER
set -euo pipefail
. "$(dirname "$0")/../setup.sh"
. "$(dirname "$0")/datasets.sh"

runs=$(runs "$experiment")
setting spreads hardware spreads
embed
echo "spread,average,weak,strong"
for spread in "${spreads[@]}"; do
  at=$runs/spread-$spread
  pfl build-datastore "$runs/embeddings" --capacity 0.5 --capacity-spread "$spread" -o "$at/datastore" -q
  pfl personalize knn-per "$at/datastore" -o "$at/knn-per" -q
  pfl evaluate "$at/knn-per" -o "$at/evaluation" -q
  "$python" - "$spread" "$at" << 'PYTHON'
import csv, sys

spread, at = sys.argv[1:]
capacity = {row["client"]: float(row["capacity"]) for row in csv.DictReader(open(f"{at}/datastore/clients.csv"))}
rows = [row for row in csv.DictReader(open(f"{at}/evaluation/clients.csv")) if row["method"] == "knn-per"]
groups = {"average": rows, "weak": [], "strong": []}
for row in rows:
    groups["strong" if capacity[row["client"]] > 0.5 else "weak"].append(row)
means = []
for part in groups.values():
    n = sum(int(row["n_test"]) for row in part)
    means.append(f"{sum(float(row['accuracy']) * int(row['n_test']) for row in part) / n:.4f}" if n else "")
print(spread, *means, sep=",")
PYTHON
done
