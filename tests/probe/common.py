# SPDX-License-Identifier: MIT OR Apache-2.0
"""What the tests of kernel probes share: compiling, and recording in the guest."""
import json
import os
import subprocess
import sys
import tempfile

HERE = os.path.dirname(os.path.abspath(__file__))
ROOT = os.path.dirname(os.path.dirname(HERE))
KPRISM = os.environ.get("KPRISM", os.path.join(ROOT, "target/release/kprism"))


def vmlinux():
    path = subprocess.run(["sh", os.path.join(ROOT, "scripts/vmlinux.sh")], stdout=subprocess.PIPE, check=True)
    return path.stdout.decode().strip()


def compiled(image, specs, collect):
    """The plans of these probes, and what was said; or none, and the error."""
    with tempfile.NamedTemporaryFile() as file:
        command = [KPRISM, "compile", *specs, "-k", image, "-o", file.name]
        for expression in collect:
            command.append("--collect=" + expression)
        done = subprocess.run(command, capture_output=True, text=True)
        if done.returncode != 0:
            return None, done.stderr
        form.update(json.load(open(file.name)))
        return form["plans"], done.stderr


# All but the plans of what was compiled last is the same for all.
form = {}


def write(plans, path):
    json.dump({**form, "plans": plans}, open(path, "w"))


def records(run):
    done = subprocess.run([KPRISM, "script", "probe", "-i", run, "--json"], stdout=subprocess.PIPE, text=True)
    return [json.loads(line) for line in done.stdout.splitlines()]


def counts(run):
    return json.load(open(os.path.join(run, "streams/probe/probes.json")))


def ended(good, text):
    print(text)
    sys.exit(0 if good else 1)
