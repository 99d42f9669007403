#!/usr/bin/env bash
# Which parts of knn-peers help: the class means of others, matching clients, or class frequencies?
#
#   bash examples/knn-peers-parts.sh ROOT [DIR]      ROOT is the folder with EMNIST and MNIST; artifacts go to DIR
#                                                    (default runs/knn-peers-parts)
#
# Two federations of few-samples.sh, in which all clients train: emnist-5 has label skew (Dirichlet 0.3, five training samples a
# client), relabelled-15 concept shift (four groups of clients, each with other names for the ten classes, 15 samples).
# FedAvg is trained until twice as many rounds would gain less than half a point. All options are the defaults, but for:
#
#   knn-peers@all     attention 0: all clients with a common class are trusted alike, so that nobody is matched
#   knn-peers@plain   kappa 1e9: votes are not multiplied by a client's class frequencies
#   knn-per-extended@cosine   neither: kNN-Per on a client's own samples, with the distance and the sigma of knn-peers
#
# python examples/table.py DIR/emnist-5 accuracy,bottom_decile,gain prints a table; gains are over knn-peers.
set -euo pipefail

home=$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)
command -v pfl > /dev/null || PATH="$home/.venv/bin:$PATH"
command -v pfl > /dev/null || { echo "pfl is not installed: bash examples/quickstart.sh" >&2; exit 3; }
root=${1:?ROOT: the folder with the datasets} runs=${2:-runs/knn-peers-parts}

methods=fedavg,prior,knn-per-extended@cosine,knn-peers,knn-peers@all,knn-peers@plain
options=(--set knn-peers@all.attention=0 --set knn-peers@plain.kappa=1e9)
options+=(--set knn-per-extended@cosine.distance=cosine --set knn-per-extended@cosine.sigma=0.05 --set knn-per-extended@cosine.cross_validate=0)
how=(--model mlp --patience flat --eval-every 10 --epochs 2 --batch-size 10 --lr 0.2)
pfl partition emnist --root "$root" --part 1/3 --scheme dirichlet --set alpha=0.3 --clients 100 --min-samples 30 \
  --fractions 0.05,0.02,0.93 -o "$runs/emnist-5/partition" -q
pfl partition mnist --root "$root" --part 1/4 --scheme clusters --set groups=4 --set kind=labels --clients 130 \
  --fractions 0.15,0.05,0.8 -o "$runs/relabelled-15/partition" -q
for data in emnist-5:1200 relabelled-15:400; do
  at=$runs/${data%:*}
  pfl compare "$at/partition" -o "$at" --methods "$methods" "${options[@]}" "${how[@]}" --rounds "${data#*:}" --seeds 0,1,2 \
    --no-references --baseline knn-peers -q
done
