#!/usr/bin/env bash
# What do clients gain by training adapters, or the whole network, instead of a head on frozen features?
#
#   bash examples/adapters.sh WEIGHTS ROOT [DIR]     artifacts go to DIR (default runs/adapters)
#
# WEIGHTS is a state dict of torchvision's mobilenet_v2, ROOT the folder with CIFAR-10, of which 4,000 images are
# enlarged to 96 pixels. All three kinds of models start from WEIGHTS, and are trained on the same partitions: 40
# clients, Dirichlet with alpha 0.3. The learning rate of each kind is FedAvg's best on validation samples of the first
# partition.
set -euo pipefail

home=$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)
command -v pfl > /dev/null || PATH="$home/.venv/bin:$PATH"
command -v pfl > /dev/null || { echo "pfl is not installed: bash examples/quickstart.sh" >&2; exit 3; }
weights=${1:?WEIGHTS: a state dict of mobilenet_v2} root=${2:?ROOT: the folder with the datasets} runs=${3:-runs/adapters}

methods=fedavg,local,fedavg-plus,ditto,knn-per
network=torchvision:mobilenet_v2
mkdir -p "$runs"
[ -f "$runs/images.npz" ] || "$(dirname "$(command -v pfl)")/python" "$home/examples/larger_images.py" "$root" 4000 96 "$runs/images.npz"
pfl import "$runs/images.npz" --client none -o "$runs/images"
pfl embed "$runs/images" --encoder "$network" --weights "$weights" -o "$runs/features" --size 96

# The same seed deals images and features in the same way.
for kind in images features; do
  for seed in 0 1 2; do
    pfl partition "$runs/$kind" --scheme dirichlet --set alpha=0.3 --clients 40 --min-samples 20 --seed "$seed" \
      -o "$runs/$kind-$seed" -q
  done
done

# compare KIND SAMPLES METHODS RATES OPTIONS...: choose the learning rate of fedavg, and compare all methods with it
compare() {
  local kind=$1 samples=$2 methods=$3 rates=$4
  shift 4
  pfl tune fedavg "$runs/$samples-0" -o "$runs/$kind/tune" --search "lr=$rates" --rounds 20 -q "$@"
  local lr
  lr=$(sed -n 's/^lr = //p' "$runs/$kind/tune/tuning/best.toml" | head -1)
  pfl compare "$runs/$samples-0" "$runs/$samples-1" "$runs/$samples-2" -o "$runs/$kind" --methods "$methods" \
    --set ditto.lam=1 --rounds 20 --lr "$lr" "$@"
}

compare head features "$methods" 0.1,0.3,1 --model logistic
# FedPer and FedRep divide a network, which a linear head alone is not.
compare adapter images "$methods,fedper" 0.01,0.03,0.1 --model "$network" --normalize imagenet --weights "$weights" --adapter lora:4
compare whole images "$methods,fedper" 0.01,0.03,0.1 --model "$network" --normalize imagenet --weights "$weights"
