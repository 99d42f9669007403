#!/usr/bin/env bash
# kNN-Per, Figures 1, 2, 5, 6, 7 and 8: accuracy over capacity, k, sigma and lambda, for several alpha, by `pfl sweep`.
#
#   bash examples/papers/knn-per/figures.sh fashion-mnist --root FOLDER     emnist, cifar10, cifar100
#
# For every alpha the global model is trained anew (Figure 6), and one sweep answers the rest: table.csv holds every
# point, with lambda shared or tuned, clients.csv what each client chose and how many samples it held then (Figure 8).
# In Figure 1 (capacity-one-model) clients of every alpha use the global model of the first. That has seen their
# training samples under other clients, but no test sample, as these are the dataset's own.
set -euo pipefail
. "$(dirname "$0")/../setup.sh"
. "$(dirname "$0")/datasets.sh"

runs=$(runs "$experiment")
seed=${seeds[0]}
setting alphas figures alphas
setting sigmas figures sigmas
for alpha in "${alphas[@]}"; do
  drawn_by "$alpha"
  at=$runs/alpha-$alpha
  pfl partition "$dataset" "${who[@]}" "${root[@]+"${root[@]}"}" --seed "$seed" -o "$at/partition" -q
  pfl train-global "$at/partition" "${how[@]}" "${weights[@]+"${weights[@]}"}" -o "$at/backbone"
  pfl extract "$at/backbone" -o "$at/embeddings" -q
  pfl sweep "$at/embeddings" --k 10 -o "$at/capacity"
  pfl sweep "$at/embeddings" --capacity 1 -o "$at/k"
  pfl sweep "$at/embeddings" --capacity 1 --k 10 --sigma "${sigmas[@]}" --plot lambda -o "$at/sigma"
  pfl extract "$runs/alpha-${alphas[0]}/backbone" --partition "$at/partition" -o "$at/embeddings-one-model" -q
  pfl sweep "$at/embeddings-one-model" --k 10 -o "$at/capacity-one-model"
done
