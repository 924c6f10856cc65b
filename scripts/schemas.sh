#!/bin/sh
# SPDX-License-Identifier: MIT OR Apache-2.0
# Puts the schemas that a test holds our files against into a folder, the first time: SARIF's (OASIS; the crate serde-sarif carries
# it) and that of JUnit files (Jenkins' xUnit plugin; pytest's source carries it). Versions are locked.
# usage: schemas.sh FOLDER
set -eu
: "${CARGO:=cargo}"
folder=$1
if [ -f "$folder/junit.xsd" ] && [ -f "$folder/sarif.json" ]; then exit 0; fi
here=$(cd "$(dirname "$0")" && pwd)
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
$CARGO metadata --locked --format-version 1 --manifest-path "$here/schemas/Cargo.toml" >"$work/metadata"
printf 'pytest==8.3.3 --hash=sha256:%s\n' 70b98107bd648308a7952b06e6ca9a50bc660be218d53c257cc1fc94fda10181 >"$work/lock"
python3 -m pip download --quiet --no-deps --no-binary=:all: --require-hashes -r "$work/lock" -d "$work"
mkdir -p "$folder"
python3 - "$work" "$folder" <<'PYTHON'
import glob, json, os, shutil, sys, tarfile
work, folder = sys.argv[1:]
packages = json.load(open(f"{work}/metadata"))["packages"]
[manifest] = [p["manifest_path"] for p in packages if p["name"] == "serde-sarif"]
shutil.copy(os.path.join(os.path.dirname(manifest), "src", "schema.json"), f"{folder}/sarif.json")
with tarfile.open(glob.glob(f"{work}/pytest-*.tar.gz")[0]) as source:
    [name] = [n for n in source.getnames() if n.endswith("/junit-10.xsd")]
    with open(f"{folder}/junit.xsd", "wb") as out:
        out.write(source.extractfile(name).read())
PYTHON
