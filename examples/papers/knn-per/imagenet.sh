#!/usr/bin/env bash
# kNN-Per, Tables 2 and 3, with ImageNet's weights in MobileNet-v2: a frozen network, and one that clients train.
#
#   bash examples/papers/knn-per/imagenet.sh frozen WEIGHTS ROOT [DIR]       CIFAR-10, CIFAR-100 and their v2
#   bash examples/papers/knn-per/imagenet.sh fine-tuned WEIGHTS ROOT [DIR]   4,000 images of CIFAR-10
#
# WEIGHTS is a state dict of torchvision's mobilenet_v2, ROOT the folder with CIFAR-10 and CIFAR-100; artifacts go to DIR
# (default runs/imagenet). Images have 96 pixels. A fifth of the clients join after training (Table 3). Partitions are
# added one by one, so an interrupted recipe has a table of those that are complete.
set -euo pipefail

home=$(cd "$(dirname "${BASH_SOURCE[0]}")/../../.." && pwd)
command -v pfl > /dev/null || PATH="$home/.venv/bin:$PATH"
command -v pfl > /dev/null || { echo "pfl is not installed: bash examples/quickstart.sh" >&2; exit 3; }
python=$(dirname "$(command -v pfl)")/python
usage="frozen or fine-tuned, WEIGHTS, ROOT"
part=${1:?$usage} weights=${2:?$usage} root=${3:?$usage} runs=${4:-runs/imagenet}
network=torchvision:mobilenet_v2

# compare DATA NAME METHODS PARTITION_OPTIONS -- OPTIONS: compare the methods on one, two and three partitions
compare() {
  local data=$1 at=$runs/$part/$2/new-clients-0.2 methods=$3 dealt=() partitions=() seed
  shift 3
  while [ "$1" != -- ]; do dealt+=("$1") && shift; done
  shift
  for seed in 0 1 2; do
    pfl partition "$data" "${dealt[@]}" --new-clients 0.2 --seed "$seed" -o "$at/p$seed" -q > /dev/null
    partitions+=("$at/p$seed")
    pfl compare "${partitions[@]}" -o "$at" --methods "$methods" --answer-train -q "$@" > /dev/null
  done
}

if [ "$part" = frozen ]; then
  methods=fedavg,local,fedavg-plus,clustered-fl,ditto,apfl,knn-per,knn-per-plus,pfedme,prior
  how=(--model logistic --rounds 100 --lr 0.1)
  for name in cifar10 cifar100; do
    pfl embed "$name" --root "$root" --encoder "$network" --weights "$weights" --size 96 -o "$runs/features/$name" -q > /dev/null
    compare "$runs/features/$name" "$name" "$methods" --scheme dirichlet --set alpha=0.3 --min-samples 20 --clients 80 -- "${how[@]}"
  done
  compare "$runs/features/cifar10" cifar10-v2 "$methods" --scheme classes --set n=2 --min-samples 10 --clients 80 -- "${how[@]}"
  compare "$runs/features/cifar100" cifar100-v2 "$methods" --scheme classes --set n=10 --min-samples 10 --clients 80 -- "${how[@]}"
elif [ "$part" = fine-tuned ]; then
  mkdir -p "$runs"
  [ -f "$runs/images.npz" ] || "$python" "$home/examples/larger_images.py" "$root" 4000 96 "$runs/images.npz"
  pfl import "$runs/images.npz" --client none -o "$runs/images" -q > /dev/null
  methods=fedavg,local,fedavg-plus,clustered-fl,ditto,fedrep,apfl,knn-per,knn-per-plus,prior,fedper
  # The learning rate is the one that examples/adapters.sh chooses for the whole network, on validation samples.
  compare "$runs/images" cifar10 "$methods" --scheme dirichlet --set alpha=0.3 --min-samples 20 --clients 40 -- \
    --model "$network" --normalize imagenet --weights "$weights" --rounds 20 --lr 0.03 --set ditto.lam=1
else
  echo "$usage" >&2
  exit 2
fi
"$python" "$home/examples/papers/knn-per/combine.py" "$runs/$part"/*
