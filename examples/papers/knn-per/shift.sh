#!/usr/bin/env bash
# kNN-Per, Figures 4 and 14: the clients' distributions change, and their stores follow or do not.
#
#   bash examples/papers/knn-per/shift.sh fashion-mnist --root FOLDER
#
# Each client has samples of one Dirichlet draw, then of another. The global model is trained on the first; of the
# second it has seen no test sample, as these are the dataset's own. Half of the first fills the store; the rest comes
# in batches, and then, from the change on, the second. A step is answered on the test samples of the distribution that
# it is of.
set -euo pipefail
. "$(dirname "$0")/../setup.sh"
. "$(dirname "$0")/datasets.sh"

runs=$(runs "$experiment")
seed=${seeds[0]}
setting batches shift batches
setting clients shift clients
setting who "$experiment" partition "clients=$clients"
pfl partition "$dataset" "${who[@]}" "${root[@]+"${root[@]}"}" --seed "$seed" -o "$runs/before" -q
pfl partition "$dataset" "${who[@]}" "${root[@]+"${root[@]}"}" --seed "$((seed + 1))" -o "$runs/after" -q
pfl train-global "$runs/before" "${how[@]}" "${weights[@]+"${weights[@]}"}" -o "$runs/backbone"
for when in before after; do
  pfl extract "$runs/backbone" --partition "$runs/$when" -o "$runs/$when-embeddings" -q
done
pfl build-datastore "$runs/before-embeddings" --capacity 0.5 -o "$runs/store" -q

echo "policy,step,accuracy,global"
for policy in fifo concatenate fixed; do
  store=$runs/store
  for ((step = 1; step <= 2 * batches; step++)); do
    at=$runs/$policy/$step
    read -r when first last < <(awk -v s="$step" -v b="$batches" 'BEGIN {
      if (s <= b) print "before", 0.5 + 0.5 * (s - 1) / b, 0.5 + 0.5 * s / b
      else print "after", (s - b - 1) / b, (s - b) / b }')
    pfl update-datastore "$store" "$runs/$when-embeddings" --policy "$policy" --from "$first" --to "$last" \
      -o "$at/store" -q
    store=$at/store
    pfl personalize knn-per "$store" -o "$at/knn-per" -q
    pfl evaluate "$at/knn-per" -o "$at/evaluation" -q
    "$python" - "$policy" "$step" "$at/evaluation/metrics.json" << 'PYTHON'
import json, sys

policy, step, path = sys.argv[1:]
(found,) = [method["metrics"] for method in json.load(open(path))["methods"]]
accuracy = found["accuracy"]["value"]
print(policy, step, f"{accuracy:.4f}", f"{accuracy - found['gain']['value']:.4f}", sep=",")
PYTHON
  done
done
