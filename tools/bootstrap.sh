#!/bin/sh
# Make .venv and install this project with its hash-locked dependencies; no root needed.
# usage: tools/bootstrap.sh [run|dev]     (default: run; dev adds what the tests and linters need)
# pip's own settings (index mirror, CA certificates, proxy) stay in force. PYTHON=... picks the
# interpreter. Runs again in no time when nothing has changed.
set -eu

set_name=${1:-run}
case $set_name in
  run | dev) ;;
  *)
    echo "usage: tools/bootstrap.sh [run|dev]" >&2
    exit 2
    ;;
esac
cd "$(dirname "$0")/.."
project=$(pwd -P)
venv=.venv
stamp=$venv/provision-bootstrap
log=$venv/bootstrap.log

say() { printf 'bootstrap: %s\n' "$*" >&2; }
die() {
  say "$1"
  exit 1
}

# What an installed set depends on: its lock, the project's metadata, the place (scripts in a
# virtual environment carry absolute paths).
fingerprint() {
  { echo "$project"; cat "requirements/$1.txt" pyproject.toml; } | cksum
}

up_to_date() {
  [ -x "$venv/bin/python" ] && [ -f "$stamp" ] || return 1
  # The development set holds the whole run set.
  for candidate in "$set_name" dev; do
    if [ "$(cat "$stamp")" = "$candidate $(fingerprint "$candidate")" ]; then return 0; fi
  done
  return 1
}

if up_to_date; then exit 0; fi

# 0: fits; 1: does not run (a pyenv shim without its version, say); 2: wrong version; 3: no venv
fits() {
  "$1" -c 'import sys
if not (3, 10) <= sys.version_info[:2] <= (3, 13): sys.exit(2)
try:
    import ensurepip, venv
except ImportError:
    sys.exit(3)' >/dev/null 2>&1
}

find_python() {
  seen=
  for name in ${PYTHON:-python3.13 python3.12 python3.11 python3.10 python3 python}; do
    command -v "$name" >/dev/null 2>&1 || continue
    status=0
    fits "$name" || status=$?
    [ $status -ne 0 ] || return 0
    version=$("$name" -c 'import platform; print(platform.python_version())' 2>/dev/null) || continue
    note="$name ($version)"
    [ $status -ne 3 ] || note="$name ($version, lacks venv/ensurepip: install python${version%.*}-venv)"
    seen="${seen:+$seen, }$note"
  done
  die "no usable Python 3.10 to 3.13 with venv. Found: ${seen:-none}. Install one (Debian and Ubuntu: apt-get install python3 python3-venv) or name one: PYTHON=/path/to/python3.12"
}

# A virtual environment that was moved or whose interpreter went away cannot be mended.
if [ -e "$venv" ]; then
  if ! fits "$venv/bin/python" || ! grep -qsF "VIRTUAL_ENV=" "$venv/bin/activate" ||
    ! grep -qF "$project/$venv" "$venv/bin/activate"; then
    say "$venv belongs to another place or Python: making it anew"
    rm -rf "$venv"
  fi
fi
if [ ! -e "$venv" ]; then
  name=
  find_python
  say "making $venv with $("$name" -c 'import platform, sys; print(sys.executable, platform.python_version())')"
  "$name" -m venv "$venv" || {
    rm -rf "$venv"
    die "$name could not make a virtual environment (its message is above)"
  }
fi

rm -f "$stamp"
say "installing the $set_name set, $(grep -c '==' "requirements/$set_name.txt") pinned packages; this can take a minute or two"
# -I: neither PYTHONPATH nor the user's site-packages may stand in for a locked package.
# --no-user: a user-wide `user = true` setting has no place in a virtual environment.
pip() {
  "$venv/bin/python" -I -m pip --disable-pip-version-check "$@" >>"$log" 2>&1 || {
    grep -E '^ *(ERROR|error)' "$log" | tail -n 8 >&2 || :
    die "pip failed; the whole log is $log. A mirror or a CA bundle is set by pip's own settings (pip config set global.index-url URL, global.cert FILE)"
  }
}
: >"$log"
pip install --no-user --require-hashes --requirement "requirements/$set_name.txt"
# The build backend is in the lock too, so nothing unpinned is fetched to build the project.
pip install --no-user --no-deps --no-build-isolation --editable .
echo "$set_name $(fingerprint "$set_name")" >"$stamp"
say "done: $venv/bin/provision"
