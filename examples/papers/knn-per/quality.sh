#!/usr/bin/env bash
# kNN-Per, Figures 3, 12 and 13: accuracy of kNN-Per against that of the global model, along the latter's training.
#
#   bash examples/papers/knn-per/quality.sh fashion-mnist --root FOLDER     emnist, cifar10, cifar100
#
# Global models of 1, 2, 5, ... rounds, each with a sweep: lambda 0 is the global model, 1 the neighbours alone
# (Figure 12), tuned is kNN-Per (Figure 13). A shorter training is the beginning of a longer one: draws depend on the
# round alone. (The paper trains its global models centrally for this figure.)
set -euo pipefail
. "$(dirname "$0")/../setup.sh"
. "$(dirname "$0")/datasets.sh"

runs=$(runs "$experiment")
seed=${seeds[0]}
setting alphas quality alphas
setting counts quality rounds
echo "alpha,rounds,global,neighbours,kNN-Per"
for alpha in "${alphas[@]}"; do
  drawn_by "$alpha"
  pfl partition "$dataset" "${who[@]}" "${root[@]+"${root[@]}"}" --seed "$seed" -o "$runs/alpha-$alpha/partition" -q
  for rounds in "${counts[@]}"; do
    at=$runs/alpha-$alpha/rounds-$rounds
    setting how "$experiment" training "rounds=$rounds"
    pfl train-global "$runs/alpha-$alpha/partition" "${how[@]}" "${weights[@]+"${weights[@]}"}" -o "$at/backbone" -q
    pfl extract "$at/backbone" -o "$at/embeddings" -q
    pfl sweep "$at/embeddings" --capacity 1 --k 10 --weight 0,1 --plot lambda -o "$at/sweep" -q
    awk -F, -v at="$alpha,$rounds" '
      NR == 1 { for (i = 1; i <= NF; i++) column[$i] = i; next }
      { found = found "," $column["accuracy"] }
      END { print at found }' "$at/sweep/table.csv"
  done
done
