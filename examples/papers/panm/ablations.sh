#!/usr/bin/env bash
# PANM: what each of its parts is worth, and accuracy against what is sent.
#
#   bash examples/papers/panm/ablations.sh DATASET KIND GROUPS [CLIENTS] --root FOLDER
#
# Neighbour initialisation alone (cni) and neighbour matching from the second round on (hnm); the cosine of the last
# updates alone (alpha 1), of the way from the beginning alone (alpha 0) and mixtures; k neighbours, l peers asked, tau
# rounds between two matchings. Then, for each, the accuracy that clients reach with so many MB sent.
set -euo pipefail
. "$(dirname "$0")/../setup.sh"
. "$(dirname "$0")/groups.sh"

runs=$(runs "$dataset-$kind-$groups${clients:+-$clients}")
partition
rounds=$(sed -E 's/.*--rounds ([0-9]+).*/\1/' <<< "${how[*]}")
methods=local,fedavg,gossip,oracle,panm,panm@grad,panm@cni,panm@hnm
options=(--set panm@grad.metric=grad --set "panm@cni.t1=$rounds" --set panm@hnm.t1=1)
for key in alpha k l tau; do
  setting values ablations "$key"
  for value in "${values[@]}"; do
    methods+=,panm@$key-${value/./_}
    options+=(--set "panm@$key-${value/./_}.$key=$value")
    [ "$key" != alpha ] || options+=(--set "panm@$key-${value/./_}.metric=grad")
  done
done
pfl compare "${partitions[@]}" -o "$runs" "${how[@]}" "${weights[@]+"${weights[@]}"}" --methods "$methods" "${options[@]}"
"$python" "$home/examples/papers/panm/traffic.py" "$runs"
