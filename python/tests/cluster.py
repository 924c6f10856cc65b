# SPDX-License-Identifier: MIT OR Apache-2.0
"""A standalone Spark cluster on the loopback: a master and workers, each a process group of its own, so that a worker and what it runs can
be killed at once."""

import os
import re
import signal
import subprocess
import time
from pathlib import Path

import pyspark

HOME = Path(pyspark.__file__).parent


class Cluster:
    def __init__(self, place, workers, environment):
        self.place = Path(place)
        self.environment = {**environment, "SPARK_HOME": str(HOME), "SPARK_LOCAL_IP": "127.0.0.1", "SPARK_DAEMON_MEMORY": "256m"}
        self.processes = []
        master = self._start("master", "deploy.master.Master", "--host", "127.0.0.1", "--port", "0", "--webui-port", "0")
        self.master = self._said(master, r"Starting Spark master at (spark://\S+)")
        self.workers = []
        for number in range(workers):
            arguments = ["--host", "127.0.0.1", "--port", "0", "--webui-port", "0", "--cores", "1", "--memory", "700m"]
            folder = str(self.place / f"worker{number}")
            self.workers.append(self._start(f"worker{number}", "deploy.worker.Worker", *arguments, "--work-dir", folder, self.master))
        for worker in self.workers:
            self._said(worker, "Successfully registered with master")

    def _start(self, name, kind, *arguments):
        log = self.place / f"{name}.log"
        with open(log, "wb") as out:
            process = subprocess.Popen(
                [HOME / "bin/spark-class", f"org.apache.spark.{kind}", *arguments],
                stdin=subprocess.DEVNULL, stdout=out, stderr=subprocess.STDOUT, env=self.environment, start_new_session=True,
            )
        process.log = log
        self.processes.append(process)
        return process

    def _said(self, process, pattern):
        for _ in range(1200):
            found = re.search(pattern, process.log.read_text(errors="replace"))
            if found:
                return found[found.re.groups]
            assert process.poll() is None, f"it ended: {process.log.read_text()}"
            time.sleep(0.05)
        raise AssertionError(f"{process.log} does not say {pattern!r}:\n{process.log.read_text()}")

    def kill(self, worker):
        """Kills a worker and its executors. Executors are in its session."""
        os.killpg(worker.pid, signal.SIGKILL)
        worker.wait()

    def __enter__(self):
        return self

    def __exit__(self, *_):
        for process in reversed(self.processes):
            if process.poll() is None:
                self.kill(process)
