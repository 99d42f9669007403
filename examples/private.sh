#!/usr/bin/env bash
# What differential privacy of clients costs: FedAvg, fine-tuning and nearest neighbours at epsilon 8, 4 and 1, and without noise.
# usage: bash examples/private.sh writers [RUNS]
#        bash examples/private.sh fashion-mnist [RUNS] --root FOLDER   (1000 clients)
set -euo pipefail
data=${1:-writers}
shift $(($# > 0 ? 1 : 0))
runs=runs/private-$data
case ${1:-} in '' | --*) ;; *) runs=$1 && shift ;; esac

case $data in
writers) partition=(--scheme natural) rate=0.5 delta=1e-3 clip=0.3 ;;
*) partition=(--scheme dirichlet --set alpha=0.1 --clients 1000 "$@") rate=0.1 delta=1e-4 clip=0.3 ;;
esac
training=(--model logistic --rounds 30 --participation "$rate" --epochs 2 --lr 0.1 --threads 1)

pfl partition "$data" -o "$runs/partition" "${partition[@]}"
for epsilon in none 8 4 1; do
  private=(--dp-epsilon "$epsilon" --dp-delta "$delta" --dp-clip "$clip")
  if [ "$epsilon" = none ]; then private=(); fi
  pfl compare "$runs/partition" -o "$runs/$epsilon" --methods fedavg,fedavg-plus,knn-per --seeds 0,1,2 \
    "${training[@]}" ${private[@]+"${private[@]}"}
done
