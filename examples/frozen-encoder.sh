#!/usr/bin/env bash
# Which methods personalize best if the backbone is a frozen encoder?
#
#   bash examples/frozen-encoder.sh WEIGHTS ROOT [DIR]     artifacts go to DIR (default runs/frozen)
#
# WEIGHTS is a state dict of torchvision's mobilenet_v2, ROOT the folder with CIFAR-10 and CIFAR-100. Features of images
# of 96 pixels are computed once; all methods then train linear heads on them. Three partitions among 80 clients, by
# Dirichlet with alpha 0.3, and with a few classes per client (the datasets v2 of kNN-Per): first all clients train, then a
# fifth of them joins after training. Prints tables with the layout of kNN-Per's Tables 2 and 3. cifar100-dirichlet is not a
# row of theirs: the paper divides CIFAR-100 by Pachinko allocation (examples/papers/knn-per/tables.sh cifar100).
set -euo pipefail

home=$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)
command -v pfl > /dev/null || PATH="$home/.venv/bin:$PATH"
command -v pfl > /dev/null || { echo "pfl is not installed: bash examples/quickstart.sh" >&2; exit 3; }
weights=${1:?WEIGHTS: a state dict of mobilenet_v2} root=${2:?ROOT: the folder with the datasets} runs=${3:-runs/frozen}

methods=fedavg,local,fedavg-plus,ditto,apfl,clustered-fl,fedprox,pfedme,knn-per,knn-per-plus,gaussian-head,prior

# compare DATA NAME SCHEME...: compare all methods on three partitions of the features, twice
compare() {
  local data=$1 name=$2 share at partitions
  shift 2
  for share in 0 0.2; do
    at=$runs/tables/$name/new-clients-$share partitions=()
    for seed in 0 1 2; do
      pfl partition "$runs/$data" --scheme "$@" --clients 80 --new-clients "$share" --seed "$seed" -o "$at/p$seed" -q
      partitions+=("$at/p$seed")
    done
    pfl compare "${partitions[@]}" -o "$at" --methods "$methods" --model logistic --rounds 100 --lr 0.1 --answer-train -q
  done
}

for data in cifar10 cifar100; do
  pfl embed "$data" --root "$root" --encoder torchvision:mobilenet_v2 --weights "$weights" --size 96 -o "$runs/$data"
done
compare cifar10 cifar10 dirichlet --set alpha=0.3 --min-samples 20
compare cifar100 cifar100-dirichlet dirichlet --set alpha=0.3 --min-samples 20
compare cifar10 cifar10-v2 classes --set n=2 --min-samples 10
compare cifar100 cifar100-v2 classes --set n=10 --min-samples 10

"$(dirname "$(command -v pfl)")/python" "$home/examples/papers/knn-per/combine.py" "$runs"/tables/*
