#!/usr/bin/env bash
# Which methods personalize best if the backbone is a frozen encoder, as in kNN-Per's experiments?
#
#   bash examples/frozen-encoder.sh WEIGHTS ROOT [DIR]     artifacts go to DIR (default runs/frozen)
#
# WEIGHTS is a state dict of torchvision's mobilenet_v2, ROOT the folder with CIFAR-10 and CIFAR-100. Features of images
# of 96 pixels are computed once; all methods then train linear heads on them. Three partitions among 80 clients,
# Dirichlet with alpha 0.3.
set -euo pipefail

home=$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)
command -v pfl > /dev/null || PATH="$home/.venv/bin:$PATH"
command -v pfl > /dev/null || { echo "pfl is not installed: bash examples/quickstart.sh" >&2; exit 3; }
weights=${1:?WEIGHTS: a state dict of mobilenet_v2} root=${2:?ROOT: the folder with the datasets} runs=${3:-runs/frozen}

methods=fedavg,local,fedavg-plus,ditto,apfl,clustered-fl,fedprox,pfedme,knn-per,knn-per-plus,gaussian-head,prior
for data in cifar10 cifar100; do
  pfl embed "$data" --root "$root" --encoder torchvision:mobilenet_v2 --weights "$weights" --size 96 -o "$runs/$data/data"
  partitions=()
  for seed in 0 1 2; do
    pfl partition "$runs/$data/data" --scheme dirichlet --set alpha=0.3 --clients 80 --min-samples 20 --seed "$seed" \
      -o "$runs/$data/p$seed" -q
    partitions+=("$runs/$data/p$seed")
  done
  pfl compare "${partitions[@]}" -o "$runs/$data" --methods "$methods" --model logistic --rounds 100 --lr 0.1 -q
done
