#!/usr/bin/env bash
# The four hospitals of four_hospitals.sh again, with Flower between them in place of a shared folder: TLS, and a key
# for each site.
#
#   bash examples/deploy/flower.sh [DIR]      DIR is the folder of four_hospitals.sh (default runs/four-hospitals)
#
# Flower gets an environment of its own, in DIR/flower/environment, or that of $FLOWER_ENVIRONMENT. From pfl, the relay
# imports one module without dependencies; where there is no checkout, pip install --no-deps makes it known.
set -euo pipefail

home=$(cd "$(dirname "${BASH_SOURCE[0]}")/../.." && pwd)
command -v pfl > /dev/null || PATH="$home/.venv/bin:$PATH"
runs=$(cd "${1:-runs/four-hospitals}" && pwd)
at=$runs/flower
pfl=$(command -v pfl)
hospitals="cleveland hungary switzerland long-beach"
environment=${FLOWER_ENVIRONMENT:-$at/environment}
[ -x "$environment/bin/flwr" ] || { python3 -m venv "$environment" && "$environment/bin/pip" install -q flwr==1.42.0; }
export OMP_NUM_THREADS=1 FLWR_HOME=$at/home FLWR_TELEMETRY_ENABLED=0 FLWR_DISABLE_UPDATE_CHECK=1 PYTHONPATH=$home
PATH=$environment/bin:$PATH

for hospital in $hospitals; do
  "$pfl" site check "$runs/$hospital/site/partition" "$runs/fed" -o "$at/sites/$hospital" -q > /dev/null
done

# Certificates of the server, by an authority of our own, and a key for each site, which stays there. The public keys in
# the folder sites are the table by which a node gets the messages of a site.
mkdir -p "$at/keys/sites" "$FLWR_HOME"
cd "$at/keys"
openssl req -x509 -newkey rsa:2048 -nodes -days 30 -subj "/CN=pilot CA" -keyout ca.key -out ca.crt 2> /dev/null
openssl req -newkey rsa:2048 -nodes -subj "/CN=superlink" -keyout server.key -out server.csr 2> /dev/null
printf 'subjectAltName=DNS:localhost,IP:127.0.0.1\n' > names.ext # without it, every site refuses the certificate
openssl x509 -req -in server.csr -CA ca.crt -CAkey ca.key -CAcreateserial -days 30 -extfile names.ext -out server.crt 2> /dev/null
for hospital in $hospitals; do ssh-keygen -q -t ecdsa -b 384 -N "" -f "$hospital"; mv "$hospital.pub" sites; done
printf '[superlink]\ndefault = "pilot"\n\n[superlink.pilot]\naddress = "127.0.0.1:18000"\nroot-certificates = "%s"\n' \
  "$at/keys/ca.crt" > "$FLWR_HOME/config.toml"

# The coordinator: the server of pfl, and Flower's SuperLink.
"$pfl" federation run "$runs/fed" --at "$at/exchange" -o "$at/server" --threads 1 > /dev/null &
started=($!)
trap 'kill "${started[@]}" 2> /dev/null || true' EXIT
flower-superlink --host 127.0.0.1 --port 18000 --ssl-ca-certfile ca.crt --ssl-certfile server.crt --ssl-keyfile server.key \
  --enable-supernode-auth --disable-runtime-dependency-installation --database "$at/state.db" > "$at/superlink.log" 2>&1 &
started+=($!)
for _ in $(seq 120); do (exec 3<> /dev/tcp/127.0.0.1/18000) 2> /dev/null && break || sleep 0.5; done

# At each hospital: pfl, which holds the site open, and a SuperNode, which dials out and reaches one folder alone.
port=19094
for hospital in $hospitals; do
  "$pfl" site serve "$at/sites/$hospital" --at "$at/exchanges/$hospital" --threads 1 -q > /dev/null 2> "$at/$hospital.pfl.log" &
  started+=($!)
  flwr supernode register "sites/$hospital.pub" pilot > /dev/null
  flower-supernode --superlink 127.0.0.1:18000 --root-certificates ca.crt --auth-supernode-private-key "$hospital" \
    --port $port --node-config "exchange=\"$at/exchanges/$hospital\"" > "$at/$hospital.log" 2>&1 &
  started+=($!)
  port=$((port + 1)) # each node of one machine needs another
done

flwr run "$home/examples/deploy/flower" pilot --stream -c "exchange=\"$at/exchange\" keys=\"$at/keys/sites\" sites=4" > "$at/run.log" 2>&1 &
relay=$!
started+=($relay)
while kill -0 $relay 2> /dev/null; do sleep 1; done # it ends when every site has the last message, or if one fails
for _ in $(seq 60); do
  [ "$(ls -d "$at"/sites/*/predictions "$at/server/attendance.csv" 2> /dev/null | wc -l)" = 5 ] && break || sleep 1
done
for hospital in $hospitals; do
  for file in predictions.h5 state.safetensors; do
    cmp "$runs/$hospital/site/predictions/$file" "$at/sites/$hospital/predictions/$file"
  done
done
echo "the models and predictions of all hospitals have the bytes of the exchange by a folder"
