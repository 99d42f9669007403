#!/usr/bin/env bash
# FedHAM, Figure 6: does a station gain as others join, some like it, some not?
#
#   bash examples/papers/fedham/stations.sh --root FOLDER
#
# Tiantan in the centre of Beijing, then with others of the centre, then of the suburbs, then of the country.
set -euo pipefail
. "$(dirname "$0")/../setup.sh"

runs=$(runs)
setting how stations training
setting upper stations upper
echo "stations,method,accuracy at Tiantan (mean over seeds)"
joined=Tiantan
for others in "" ,Dongsi,Wanshouxigong,Guanyuan ,Aotizhongxin,Gucheng,Shunyi ,Changping,Huairou; do
  joined+=$others
  stations=$(($(tr , '\n' <<< "$joined" | wc -l)))
  at=$runs/stations-$stations
  partitions=()
  for seed in "${seeds[@]}"; do
    partitions+=("$at/partition-$seed")
    setting who stations partition "set.stations=$joined"
    pfl partition air-quality "${who[@]}" "${root[@]+"${root[@]}"}" --seed "$seed" -o "$at/partition-$seed" -q
  done
  pfl compare "${partitions[@]}" -o "$at" "${how[@]}" "${weights[@]+"${weights[@]}"}" \
    --methods fedavg,local,fedper,fedavg-plus@ftl,fedamp,fedavg-plus,knn-per,fedham --set "fedavg-plus@ftl.upper=$upper" -q
  awk -F, -v n="$stations" '
    NR == 1 { for (i = 1; i <= NF; i++) column[$i] = i; next }
    $column["name"] == "Tiantan" { sum[$1] += $column["accuracy"]; count[$1]++ }
    END { for (method in sum) print n "," method "," sum[method] / count[method] }' "$at/comparison/clients.csv" | sort
done
