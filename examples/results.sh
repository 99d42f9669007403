#!/usr/bin/env bash
# The results table of the README: kNN-Per against FedAvg, FedAvg+ and Local, three seeds each.
#
#   bash examples/results.sh writers [DIR]                      the 60 embedded writers, each a client
#   bash examples/results.sh fashion-mnist [DIR] --root FOLDER  Dirichlet(0.3), 100 clients; emnist likewise
#   bash examples/results.sh cifar10 [DIR] --root FOLDER        Dirichlet(0.3), 50 clients
#   bash examples/results.sh cifar100 [DIR] --root FOLDER       pachinko, 50 clients
#
# Interrupted, it goes on where it stopped when typed again. SEEDS="0" runs one seed.
set -euo pipefail

# The environment that examples/quickstart.sh makes, unless pfl is installed already.
home=$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)
command -v pfl > /dev/null || PATH="$home/.venv/bin:$PATH"
command -v pfl > /dev/null || { echo "pfl is not installed: bash examples/quickstart.sh" >&2; exit 3; }

dataset=${1:?writers or fashion-mnist}
runs=${2:-runs/results/$dataset}
shift $(($# < 2 ? $# : 2))

case $dataset in
  writers)
    who=(--scheme natural)
    how=(--rounds 100 --participation 0.2 --batch-size 10 --lr 0.1)
    ;;
  fashion-mnist)
    who=(--scheme dirichlet --set alpha=0.3 --clients 100 --min-samples 10)
    how=(--rounds 100 --participation 0.1 --batch-size 32 --lr 0.1 --eval-every 10)
    ;;
  emnist)
    who=(--scheme dirichlet --set alpha=0.3 --clients 100 --min-samples 10)
    how=(--rounds 100 --participation 0.1 --batch-size 32 --lr 0.1 --eval-every 10)
    ;;
  cifar10)
    who=(--scheme dirichlet --set alpha=0.3 --clients 50 --min-samples 10)
    how=(--rounds 100 --participation 0.2 --batch-size 32 --lr 0.05 --eval-every 10)
    ;;
  cifar100)
    who=(--scheme pachinko --clients 50)
    how=(--rounds 100 --participation 0.2 --batch-size 32 --lr 0.05 --eval-every 10)
    ;;
  *) echo "unknown dataset $dataset" >&2; exit 2 ;;
esac

partitions=()
for seed in ${SEEDS:-0 1 2}; do
  partitions+=("$runs/seed-$seed/partition")
  pfl partition "$dataset" "${who[@]}" "$@" --seed "$seed" -o "${partitions[-1]}"
done
pfl compare "${partitions[@]}" -o "$runs" "${how[@]}" --methods fedavg,local,fedavg-plus,knn-per
