#!/usr/bin/env bash
# Should kNN-Per choose lambda by few validation samples, or also by the samples in its store (cross_validate)?
#
#   bash examples/few-validation-samples.sh FEDERATION --root FOLDER     emnist-5, emnist-15, fashion-mnist-0.1, fashion-mnist-0.3,
#                                                                        air-quality, relabelled; hospitals, writers need no folder
#   python examples/few_validation_samples.py runs/examples/few-validation-samples/*         the table
#
# More options: examples/papers/setup.sh. Three partitions; FedAvg is trained to the end, and the others start from it.
set -euo pipefail
. "$(dirname "$0")/papers/setup.sh"

((${#arguments[@]})) || arguments=(hospitals)
federation=${arguments[0]}
runs=$(runs "$federation")
methods=fedavg,knn-per,knn-per@paper,knn-per-plus,knn-peers
rounds=300 how=(--model mlp --participation 1 --batch-size 10 --lr 0.05)
letters=(emnist --part 1/3 --scheme dirichlet --set alpha=0.3 --clients 100 --min-samples 30)
clothes=(fashion-mnist --part 1/10 --scheme dirichlet --clients 20 --min-samples 10)
case $federation in
  emnist-5) who=("${letters[@]}" --fractions 0.05,0.02,0.93) rounds=600 how[3]=0.2 how+=(--epochs 2) ;;
  emnist-15) who=("${letters[@]}" --fractions 0.15,0.05,0.8) rounds=600 how[3]=0.2 how+=(--epochs 2) ;;
  fashion-mnist-0.1 | fashion-mnist-0.3) who=("${clothes[@]}" --set "alpha=${federation##*-}") ;;
  air-quality) who=(air-quality --scheme natural --set stride=240) rounds=150 ;;
  relabelled) who=(mnist --part 1/15 --scheme clusters --set groups=4 --set kind=labels --clients 20) ;;
  hospitals) who=(heart-disease --scheme natural) root=() rounds=150 how[1]=logistic ;;
  writers) who=(writers --scheme natural) root=() rounds=600 how[3]=0.4 ;;
  *) echo "unknown federation $federation" >&2; exit 2 ;;
esac
for seed in "${seeds[@]}"; do
  pfl partition "${who[@]}" "${root[@]+"${root[@]}"}" --seed "$seed" -o "$runs/partition-$seed" -q
done
pfl compare "${seeds[@]/#/"$runs/partition-"}" -o "$runs/compared" "${how[@]}" --rounds "$rounds" --eval-every $((rounds / 10)) \
  --methods "$methods" --set knn-per@paper.cross_validate=0 --no-references -q
