#!/usr/bin/env bash
# Four hospitals that have never shared a sample find a common meaning of their tables, and compare methods of four
# papers, without a pilot: their tables differ in order, names and words of columns, and one has cholesterol in another
# unit. The real table stands beside that of the simulation --apart on the sites' own splits: the difference is 0.
#
#   bash examples/deploy/study.sh [DIR]     artifacts go to DIR (default runs/study), which must be new
set -euo pipefail

runs=${1:-runs/study}
. "$(dirname "${BASH_SOURCE[0]}")/common.sh"
methods=fedavg,ditto,fedattn,fedham,panm,knn-per # what the hospitals compare: the one place that names them
settings="--model mlp --rounds 5 --participation 0.75"

"$python" "$home/examples/deploy/hospital_tables.py" "$runs/tables" --differ
echo --fold-case > "$runs/tables/switzerland.options" # it writes F and M
echo mmol/l > "$runs/tables/long-beach.unit"

# The coordinator knows no table, but what the study is about: columns, their units, and names that hospitals may use.
cat > "$runs/table.toml" << 'END'
label = "num>0"
missing = "median"
standardize = "federation"
[columns.age]
unit = "years"
names = ["Age"]
[columns.sex]
kind = "words"
words = ["f", "m"]
[columns.cp]
[columns.trestbps]
unit = "mmHg"
names = ["trest bps"]
[columns.chol]
unit = "mg/dl"
names = ["cholesterol"]
[columns.fbs]
[columns.restecg]
[columns.thalach]
[columns.exang]
[columns.oldpeak]
[columns.num]
kind = "target"
names = ["NUM"]
END

# summarize HOSPITAL: the hospital imports its table, and sees all that the coordinator will get.
summarize() {
  pfl import "$runs/tables/$1.csv" --like "$runs/table.toml" $(options "$1") -o "$runs/$1/own" --force -q > /dev/null
  pfl site columns "$runs/$1/own" --client "$1" --sites "${hospitals// /,}" --units "chol=$(unit "$1")" -o "$runs/$1.json" -q > /dev/null
}
unit() { cat "$runs/tables/$1.unit" 2> /dev/null || echo mg/dl; }
agree() { pfl federation columns "$runs"/*.json --like "$runs/table.toml" -o "$runs/agreed.toml"; }

at_each summarize
if agree; then
  echo "mmol/l for mg/dl was not noticed" >&2
  exit 1
fi
"$python" "$home/examples/deploy/hospital_tables.py" "$runs/tables" --convert # Long Beach does what the error says
rm "$runs/tables/long-beach.unit"
summarize long-beach
agree > /dev/null

pfl federation create "$runs/agreed.toml" --methods $methods $settings --metric accuracy,auroc -o "$runs/fed" -q > /dev/null
echo "among real sites:"
play "$runs/fed" "$runs/real"

# What nobody can do among real sites: the same with all tables in one place.
"$python" "$home/examples/deploy/hospital_tables.py" "$runs/tables" --pool
pfl import "$runs/tables/pooled.csv" --like "$runs/agreed.toml" --client hospital -o "$runs/data" -q > /dev/null
pfl partition "$runs/data" -o "$runs/partition" -q > /dev/null
echo "in the simulation:"
pfl compare "$runs/partition" --methods $methods $settings --no-references --metric accuracy,auroc --apart -o "$runs/simulation"
"$python" "$home/examples/deploy/compare_with_simulation.py" "$runs"
