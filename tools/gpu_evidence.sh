#!/usr/bin/env bash
# Judge this machine's GPU with the probe, once as it is and then with each real thing taken away.
# usage: tools/gpu_evidence.sh FOLDER   (needs python3 with a CUDA torch; writes FOLDER/*.json)
set -u
out=${1:?folder for the reports}
probe=$(dirname "$0")/../provisioner/verify/probe.py
mkdir -p "$out"
python=$(command -v python3)
"$python" - "$out/expect.json" <<'PY'
import json, sys, torch
version = torch.__version__
json.dump({"name": "this-machine", "torch": version.split("+")[0], "local_version": version,
           "cuda": torch.version.cuda, "python": "%d.%d" % sys.version_info[:2], "compile": True,
           "device": "cuda", "torchvision": None, "torchaudio": None}, open(sys.argv[1], "w"))
PY
judge() { # NAME ENVIRONMENT... -- PROBE-OPTIONS...
  local name=$1; shift
  local variables=()
  while [ "$1" != -- ]; do variables+=("$1"); shift; done
  shift
  local begun=$SECONDS
  env "${variables[@]}" "$python" "$probe" --expect "$out/expect.json" --report "$out/$name.json" "$@" \
    >"$out/$name.txt" 2>&1
  echo "$name: exit $? in $((SECONDS - begun)) s"
}
# An assembler that says its version and then fails: Triton passes over one that does not.
cat >"$out/ptxas" <<'SH'
#!/bin/sh
case "$*" in *--version*) echo "Cuda compilation tools, release 12.9, V12.9.86"; exit 0;; esac
echo "ptxas fatal: a stand-in" >&2; exit 1
SH
chmod +x "$out/ptxas"
judge verified A=1 -- --device auto --speed
judge verified-on-cpu A=1 -- --device cpu
judge dynamo-disabled TORCHDYNAMO_DISABLE=1 -- --device cuda
judge no-compiler PATH=/nonexistent -- --device cuda
judge no-gpu CUDA_VISIBLE_DEVICES= -- --device auto
judge unusable-ptxas TRITON_PTXAS_PATH=/bin/false -- --device cuda
judge broken-ptxas TRITON_PTXAS_PATH="$out/ptxas" TRITON_PTXAS_BLACKWELL_PATH="$out/ptxas" -- --device cuda
judge full-tmp TMPDIR=/proc -- --device cuda
judge broken-compiler CC=/bin/false CXX=/bin/false -- --device cuda
