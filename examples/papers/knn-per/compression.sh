#!/usr/bin/env bash
# kNN-Per, Figure 11: accuracy against bytes a client, with stores compressed by FAISS or to prototypes.
#
#   bash examples/papers/knn-per/compression.sh fashion-mnist --root FOLDER
#
# ProtoNN, which the paper takes, learns prototypes and a projection. PCA, product and scalar quantisation, graphs,
# inverted lists and k-means prototypes of each class are what is well kept.
set -euo pipefail
. "$(dirname "$0")/../setup.sh"
. "$(dirname "$0")/datasets.sh"

runs=$(runs "$experiment")
embed

echo "store,bytes a client,accuracy,bottom decile"
one() {
  local name=$1 at
  shift
  at=$runs/${name//[^A-Za-z0-9.]/-}
  pfl build-datastore "$runs/embeddings" "$@" -o "$at/datastore" -q
  pfl personalize knn-per "$at/datastore" -o "$at/knn-per" -q
  pfl evaluate "$at/knn-per" -o "$at/evaluation" -q
  "$python" - "$name" "$at" << 'PYTHON'
import json, sys

name, at = sys.argv[1:]
summary = json.load(open(f"{at}/datastore/manifest.json"))["summary"]
(method,) = [one for one in json.load(open(f"{at}/evaluation/metrics.json"))["methods"] if one["label"] == "knn-per"]
found = [method["metrics"][metric]["value"] for metric in ("accuracy", "bottom_decile")]
print(f'"{name}"', round(summary["bytes_client"]["mean"]), *(f"{value:.4f}" for value in found), sep=",")
PYTHON
}
for index in Flat SQfp16 SQ8 PCA64,Flat PCA32,Flat PCA64,PQ32x4 PCA64,PQ16x4 HNSW32 IVF8,Flat; do
  one "$index" --index "$index"
done
for share in 0.1 0.2 0.333 0.5; do
  one "prototypes $share" --prototypes "$share"
  one "capacity $share" --capacity "$share"
done
