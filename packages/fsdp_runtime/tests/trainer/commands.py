"""Small runs of the command, for the tests of whole runs."""

import inspect
import json
import os
import shutil
import signal
import sys
import textwrap
import time

from sshsdp_fsdp_runtime.trainer import main
from sshsdp_fsdp_runtime.trainer.metrics import read_metrics

SMALL = """\
data = ["{data}"]
runs = "{runs}"
batch = 4
microbatch = 2
context = 32
steps = 6
[model]
size = "nano"
[optimizer]
warmup_steps = 2
lr = 0.01
[report]
log_every = 1
evaluate_every = 3
checkpoint_every = 2
validation_windows = 5
sample_tokens = 4
"""


def small_run(folder):
    """Options of a run that takes about a second, with its data and configuration in `folder`."""
    data, file = folder / "text.py", folder / "small.toml"
    data.write_text(inspect.getsource(json) + inspect.getsource(textwrap))
    file.write_text(SMALL.format(data=data, runs=folder / "runs"))
    return ["train", "--config", str(file)]


def steps_of(run):
    """Loss, gradient norm and learning rate by step."""
    return {
        row["step"]: (row["loss"], row["grad_norm"], row["lr"])
        for row in read_metrics(run / "metrics.jsonl")
        if row["kind"] == "step"
    }


def validation_losses(run):
    """In the order of steps."""
    rows = read_metrics(run / "metrics.jsonl")
    return [row["val_loss"] for row in rows if row["kind"] == "validation"]


def resumed(whole, ranks):
    """A copy of a run of six steps that lost its last checkpoint and goes on, on `ranks` ranks."""
    copy = whole.with_name(f"resumed{ranks}")
    shutil.copytree(whole, copy)
    shutil.rmtree(copy / "checkpoints/step-00000006")
    assert main(["train", "--resume", str(copy), "--ranks", str(ranks)]) == 0
    return copy


class Command:
    """The command in a process of its own, forked: importing torch again would take seconds."""

    def __init__(self, folder, *arguments, **environment):
        self.outputs = folder / f"{id(self)}.out", folder / f"{id(self)}.err"
        self.returncode = None
        self.pid = os.fork()
        if self.pid == 0:
            self._run(arguments, environment)

    def _run(self, arguments, environment):
        status = 99
        try:
            for number, path in enumerate(self.outputs, start=1):
                os.dup2(os.open(path, os.O_CREAT | os.O_WRONLY), number)
            sys.stdout, sys.stderr = os.fdopen(1, "w"), os.fdopen(2, "w")
            os.environ.update(environment)
            status = main(list(map(str, arguments)))
        finally:
            sys.stdout.flush()
            sys.stderr.flush()
            os._exit(status)

    def poll(self):
        """Exit status, or None while it runs."""
        if self.returncode is None:
            pid, status = os.waitpid(self.pid, os.WNOHANG)
            self.returncode = os.waitstatus_to_exitcode(status) if pid else None
        return self.returncode

    def read(self):
        """Standard output and standard error so far."""
        return tuple(path.read_text() if path.exists() else "" for path in self.outputs)

    def send_signal(self, signum):
        os.kill(self.pid, signum)

    def communicate(self, timeout=60.0):
        """Both outputs, when it has ended; it is killed when it takes too long."""
        deadline = time.monotonic() + timeout
        while self.poll() is None:
            if time.monotonic() > deadline:
                self.send_signal(signal.SIGKILL)
                raise AssertionError(self.read())
            time.sleep(0.01)
        return self.read()

    def ranks(self):
        """Process ids of its ranks, in rank order."""
        with open(f"/proc/{self.pid}/task/{self.pid}/children") as file:
            return [int(pid) for pid in file.read().split()]
