#!/usr/bin/env bash
# The four hospitals of four_hospitals.sh again, with NVFlare between them in place of a shared folder.
#
#   bash examples/deploy/nvflare.sh [DIR]     DIR is the folder of four_hospitals.sh (default runs/four-hospitals)
#
# NVFlare gets an environment of its own, in DIR/nvflare/environment, or that of $NVFLARE_ENVIRONMENT.
set -euo pipefail

home=$(cd "$(dirname "${BASH_SOURCE[0]}")/../.." && pwd)
command -v pfl > /dev/null || PATH="$home/.venv/bin:$PATH"
runs=$(cd "${1:-runs/four-hospitals}" && pwd)
at=$runs/nvflare
hospitals="cleveland hungary switzerland long-beach"
environment=${NVFLARE_ENVIRONMENT:-$at/environment}
[ -x "$environment/bin/nvflare" ] || { python3 -m venv "$environment" && "$environment/bin/pip" install -q nvflare==2.9.0; }
export OMP_NUM_THREADS=1

for hospital in $hospitals; do
  pfl site check "$runs/$hospital/site/partition" "$runs/fed" -o "$at/sites/$hospital" -q > /dev/null
done

# The coordinator: the server of pfl, and that of NVFlare. At each hospital: pfl, which holds the site open; a client
# reaches one folder alone. The relay imports one module of pfl, without dependencies.
pfl federation run "$runs/fed" --at "$at/exchange" -o "$at/server" --threads 1 > /dev/null &
started=($!)
trap 'kill "${started[@]}" 2> /dev/null || true' EXIT
for hospital in $hospitals; do
  pfl site serve "$at/sites/$hospital" --at "$at/exchanges/$hospital" --threads 1 -q > /dev/null 2> "$at/$hospital.log" &
  started+=($!)
done
export PFL_EXCHANGE=$at/exchange PFL_SITE_EXCHANGE=$at/exchanges/{site} NVFLARE_POC_WORKSPACE=$at/poc PYTHONPATH=$home
(cd "$home/examples/deploy/nvflare" && "$environment/bin/python" job.py $hospitals) > "$at/nvflare.log" 2>&1
wait "${started[@]}"

for hospital in $hospitals; do
  for file in predictions.h5 state.safetensors; do
    cmp "$runs/$hospital/site/predictions/$file" "$at/sites/$hospital/predictions/$file"
  done
done
echo "the models and predictions of all hospitals have the bytes of the exchange by a folder"
