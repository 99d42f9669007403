#!/usr/bin/env bash
# FedHAM, Figure 6: does a station gain as others join, some like it, some not?
#
#   bash examples/papers/fedham/stations.sh --root FOLDER
#
# Tiantan in the centre of Beijing, then with others of the centre, then of the suburbs, then of the country.
set -euo pipefail
. "$(dirname "$0")/../setup.sh"

runs=$(runs)
seed=${seeds[0]}
stride=96 how=(--rounds 20 --batch-size 16)
[ "$size" = small ] || { stride=1 how=(--rounds 50 --epochs 2 --batch-size 32); }
echo "stations,method,accuracy at Tiantan"
joined=Tiantan
for others in "" ,Dongsi,Wanshouxigong,Guanyuan ,Aotizhongxin,Gucheng,Shunyi ,Changping,Huairou; do
  joined+=$others
  stations=$(tr , '\n' <<< "$joined" | wc -l)
  at=$runs/stations-$stations
  pfl partition air-quality "${root[@]}" --set "stride=$stride" --set "stations=$joined" --seed "$seed" \
    -o "$at/partition" -q
  pfl compare "$at/partition" -o "$at" --model gru --lr 0.3 --participation 1 "${how[@]}" \
    --methods fedavg,local,fedavg-plus,fedham -q
  # Clients are numbered by their stations' names.
  tiantan=$(awk -F, '$2 == "Tiantan" { print $1 }' "$at/partition/clients.csv")
  awk -F, -v n="$stations" -v c="$tiantan" 'NR > 1 && $3 == c { print n "," $1 "," $5 }' "$at/comparison/clients.csv"
done
