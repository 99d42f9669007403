#!/usr/bin/env bash
# Which methods personalize best with 5, 15 and 50 training samples per client?
#
#   bash examples/few-samples.sh DATA ROOT [DIR] [WEIGHTS]   DATA is writers, emnist, cifar10 or relabelled; artifacts go to DIR
#                                                            (default runs/few-samples)
#
# ROOT is the folder with mnist_by_writer.npz, EMNIST, MNIST or CIFAR-10. WEIGHTS, for cifar10, is a state dict of torchvision's
# mobilenet_v2; its features of images of 96 pixels are the inputs of a linear head. A fifth of the clients joins after training.
# A client has about 100 samples; those that are not needed for training and validation are test samples. All methods start from
# the same FedAvg, whose settings are fixed, and each chooses its options by six trials on validation samples; there are three
# seeds. relabelled are MNIST's digits among four groups of clients, each of which has other names for the ten classes.
# python examples/few_samples.py DIR prints the tables.
set -euo pipefail

home=$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)
command -v pfl > /dev/null || PATH="$home/.venv/bin:$PATH"
command -v pfl > /dev/null || { echo "pfl is not installed: bash examples/quickstart.sh" >&2; exit 3; }
data=${1:?DATA: writers, emnist, cifar10 or relabelled} root=${2:?ROOT: the folder with the datasets} runs=${3:-runs/few-samples}

methods=fedavg,fedavg-plus,knn-per,knn-per-extended@auto,gaussian-head,prior,knn-peers
options=(--set knn-per.cross_validate=0 --set knn-per-extended@auto.cross_validate=0)
options+=(--set knn-per-extended@auto.representation=auto --set knn-per-extended@auto.distance=auto --set knn-per-extended@auto.sigma=auto)
how=(--model mlp --rounds 100 --epochs 2 --batch-size 10 --lr 0.05)
case $data in
  writers)
    pfl import "$root/mnist_by_writer.npz" --client writer --label y --features x -o "$runs/data-writers" -q
    who=("$runs/data-writers") ;;
  emnist) who=(emnist --root "$root" --part 1/3 --scheme dirichlet --set alpha=0.3 --clients 100 --min-samples 30) ;;
  cifar10)
    pfl embed cifar10 --root "$root" --encoder torchvision:mobilenet_v2 --weights "${4:?WEIGHTS}" --size 96 -o "$runs/data-cifar10" -q
    who=("$runs/data-cifar10" --scheme dirichlet --set alpha=0.3 --clients 120 --min-samples 30)
    how=(--model logistic --rounds 100 --lr 0.1) ;;
  relabelled) who=(mnist --root "$root" --part 1/4 --scheme clusters --set groups=4 --set kind=labels --clients 130) ;;
  *) echo "unknown data $data" >&2; exit 2 ;;
esac
for split in 5:0.05,0.02,0.93 15:0.15,0.05,0.8 50:0.5,0.17,0.33; do
  at=$runs/$data-${split%%:*}
  pfl partition "${who[@]}" --fractions "${split#*:}" --new-clients 0.2 -o "$at/partition" -q
  pfl compare "$at/partition" -o "$at" --methods "$methods" "${options[@]}" "${how[@]}" --tune 6 --seeds 0,1,2 --no-references -q
done
