#!/usr/bin/env bash
# kNN-Per, Figures 1, 2, 5, 6, 7 and 8: accuracy over capacity, k, sigma and lambda, for several alpha, by `pfl sweep`.
#
#   bash examples/papers/knn-per/figures.sh fashion-mnist --root FOLDER
#
# For every alpha the global model is trained anew (Figure 6), and one sweep answers the rest: table.csv holds every
# point, with lambda shared or tuned, clients.csv what each client chose and how many samples it held then (Figure 8).
# In Figure 1 (capacity-one-model) clients of every alpha use the global model of alpha 0.3; they hold other samples.
set -euo pipefail
. "$(dirname "$0")/../setup.sh"

apart=yes
runs=$(runs "${1:-}")
seed=${seeds[0]}
for alpha in 0.3 0.1 1.0; do
  . "$(dirname "$0")/datasets.sh"
  at=$runs/alpha-$alpha
  pfl partition "$dataset" "${who[@]}" "${root[@]}" --seed "$seed" -o "$at/partition" -q
  pfl train-global "$at/partition" "${how[@]}" -o "$at/backbone"
  pfl extract "$at/backbone" -o "$at/embeddings" -q
  pfl sweep "$at/embeddings" --k 10 -o "$at/capacity"
  pfl sweep "$at/embeddings" --capacity 1 -o "$at/k"
  pfl sweep "$at/embeddings" --capacity 1 --k 10 --sigma 0.01,0.03,0.1,1,10,100,1000 --plot lambda -o "$at/sigma"

  who[-1]=2/$parts
  pfl partition "$dataset" "${who[@]}" "${root[@]}" --seed "$((seed + 1))" -o "$at/others" -q
  pfl extract "$runs/alpha-0.3/backbone" --partition "$at/others" -o "$at/others-embeddings" -q
  pfl sweep "$at/others-embeddings" --k 10 -o "$at/capacity-one-model"
done
