"""A real Slurm cluster on this machine, for tests and for trying things: munge, MariaDB, slurmdbd, slurmctld, slurmd.

    make cluster         starts it; then sinfo, sbatch, sacct and `snakemake --profile gh200` work in any shell
    make cluster-down    ends what `make cluster` started, and nothing else

Needs root and Debian's packages (PACKAGES). Everything lies in one folder, except links in /etc/slurm, because the
Slurm plugin of Snakemake takes SLURM_CONF away from its jobs.
"""

import os
import shutil
import socket
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

from cluster.processes import all_pids, below, command_of, end, kill_all, name_of
from cluster.slurm_files import ACCOUNT, CLUSTER, DATABASE_PORT, GPUS, NODES, write_configs

FOLDER = Path("/tmp/levo-cluster")
ETC = Path("/etc/slurm")
PACKAGES = "slurmctld slurmd slurmdbd slurm-client slurm-wlm-basic-plugins munge mariadb-server"
DAEMONS = ("munged", "mariadbd", "slurmdbd", "slurmctld", "slurmd")
START_S = 60.0


class LabError(Exception):
    """The lab cannot be had here; the text says why."""


def why_not() -> str | None:
    """Why no lab can be started here; None when it can."""
    missing = [name for name in (*DAEMONS, "sbatch", "sacct") if shutil.which(name, path=_path()) is None]
    if missing:
        return f"no {', '.join(missing)} here: apt-get install --no-install-recommends {PACKAGES}"
    if os.geteuid() != 0:
        return "the test cluster needs root"
    foreign = [path for path in ETC.glob("*.conf") if path.name in _linked() and not _is_ours(path)]
    if foreign:
        return f"this machine has a Slurm of its own: {foreign[0]}"
    return None


def _linked() -> tuple[str, ...]:
    return ("slurm.conf", "gres.conf", "cgroup.conf", "slurmdbd.conf")


def _is_ours(path: Path) -> bool:
    return path.is_symlink() and Path(os.readlink(path)).is_relative_to(FOLDER)


def _path() -> str:
    return f"{os.environ.get('PATH', os.defpath)}:/usr/sbin:/sbin"


class Lab:
    """The cluster in FOLDER. up() and down(); in between its nodes and its accounting can be broken and mended."""

    def __init__(self) -> None:
        self.folder = FOLDER
        self.host = socket.gethostname().partition(".")[0]

    def up(self) -> None:
        """Start everything; returns when all nodes are idle. Raises LabError, having ended what was started."""
        reason = why_not()
        if reason:
            raise LabError(reason)
        if any(self.pid(daemon) for daemon in DAEMONS):
            raise LabError(f"the lab in {self.folder} is up already: make cluster-down")
        shutil.rmtree(self.folder, ignore_errors=True)
        try:
            self._prepare()
            self._start_munge()
            self._start_database()
            self.start_accounting()
            self._register()
            self._run("slurmctld")
            for node in NODES:
                self.start_node(node)
            self.wait("all nodes are idle", lambda: list(self.node_states().values()) == ["idle"] * len(NODES))
        except (LabError, OSError):
            self.down()
            raise

    def down(self) -> None:
        """End what up() started, jobs first, and take the links away. Safe to call twice."""
        kill_all(below(self._steps(None)))
        for node in NODES:
            self._end(f"slurmd-{node}", "slurmd")
        for daemon in ("slurmctld", "slurmdbd", "mariadbd", "munged"):
            self._end(daemon, daemon)
        for name in _linked():
            if _is_ours(ETC / name):
                (ETC / name).unlink()

    # Nodes

    def start_node(self, node: str) -> None:
        """A node comes up, with its GPUs."""
        self._run("slurmd", "-N", node)

    def power_off(self, node: str) -> None:
        """A node is gone at once, with all that ran on it."""
        jobs = self.jobs_on(node)
        self.cut_off(node)
        kill_all(below(self._steps(jobs)))

    def cut_off(self, node: str) -> None:
        """Slurm loses a node, whose jobs live on unseen: zombies."""
        pid = self.pid(f"slurmd-{node}", "slurmd")
        if pid is None:
            raise LabError(f"{node} is down already")
        kill_all([pid])

    def jobs_on(self, node: str) -> list[str]:
        """Ids of the jobs that run on a node."""
        return self.ask("squeue", "-h", "-w", node, "-t", "R", "-o", "%A").split()

    def node_of(self, job: str) -> str:
        """The node of a running job; empty when it has none."""
        return self.ask("squeue", "-h", "-j", job, "-t", "R", "-o", "%N").strip()

    def node_states(self) -> dict[str, str]:
        """By node: idle, alloc, down ...; with * when it does not answer."""
        return dict(line.split() for line in self.ask("sinfo", "-hN", "-o", "%N %t").splitlines())

    def processes_of(self, job: str) -> list[int]:
        """Every process of a job, on whatever node."""
        return below(self._steps([job]))

    def _steps(self, jobs: list[str] | None) -> list[int]:
        """The slurmstepd of these jobs, or of all jobs of this lab."""
        found = []
        for pid in all_pids():
            command = command_of(pid)
            if command.startswith("slurmstepd: [") and (jobs is None or command[13:].split(".")[0] in jobs):
                found.append(pid)
        return found

    # Accounting

    def start_accounting(self) -> None:
        """slurmdbd comes up."""
        self._run("slurmdbd")
        self.wait("slurmdbd answers", lambda: self._succeeds("sacctmgr", "-n", "show", "cluster"))

    def stop_accounting(self) -> None:
        """slurmdbd is down: sacct fails, jobs go on."""
        self._end("slurmdbd", "slurmdbd")

    # Start and end

    def _prepare(self) -> None:
        for name in ("dev", "etc", "log", "run", "state", "mysql", *(f"spool/{node}" for node in NODES)):
            (self.folder / name).mkdir(parents=True, mode=0o755)
        shutil.chown(self.folder / "mysql", "mysql")
        for number in range(GPUS):
            device = self.folder / f"dev/gpu{number}"
            os.mknod(device, 0o20666, os.makedev(1, 3))
            device.chmod(0o666)
        ETC.mkdir(exist_ok=True)
        for path in write_configs(self.folder, self.host):
            link = ETC / path.name
            link.unlink(missing_ok=True)
            link.symlink_to(path)

    def _start_munge(self) -> None:
        run, log = self.folder / "run", self.folder / "log"
        key = self.folder / "etc/munge.key"
        key.write_bytes(os.urandom(128))
        key.chmod(0o400)
        self._run(
            "munged", f"--key-file={key}", f"--socket={run}/munge.socket.2", f"--pid-file={run}/munged.pid",
            f"--log-file={log}/munged.log", f"--seed-file={run}/munge.seed", "--force",
        )  # fmt: skip

    def _start_database(self) -> None:
        data = self.folder / "mysql"
        mysql = ["--no-defaults", "--user=mysql", f"--datadir={data}"]
        self._run("mariadb-install-db", *mysql, "--auth-root-authentication-method=socket", "--skip-test-db")
        socket_file, pid_file = data / "mysql.sock", data / "mariadbd.pid"
        self._run(
            "setsid", "--fork", "mariadbd", *mysql, "--bind-address=127.0.0.1", f"--port={DATABASE_PORT}",
            f"--socket={socket_file}", f"--pid-file={pid_file}", "--innodb-flush-log-at-trx-commit=0",
        )  # fmt: skip
        client = ["mariadb", "--no-defaults", f"--socket={socket_file}"]
        self.wait("MariaDB answers", lambda: self._succeeds(*client, "-e", "select 1"))
        (self.folder / "run/mariadbd.pid").write_text(pid_file.read_text())
        grant = "grant all on slurm_acct_db.* to slurm@{} identified by 'slurm';"
        users = " ".join(grant.format(host) for host in ("localhost", "'127.0.0.1'"))
        self._run(*client, "-e", f"create database slurm_acct_db; {users}")

    def _register(self) -> None:
        for order in (
            ["add", "cluster", CLUSTER],
            ["add", "account", ACCOUNT, "Description=lab", "Organization=lab"],
            ["add", "user", "root", f"Account={ACCOUNT}", f"DefaultAccount={ACCOUNT}", "AdminLevel=Admin"],
        ):
            self._run("sacctmgr", "-i", *order)

    def pid(self, file: str, name: str | None = None) -> int | None:
        """The living process of a pid file of this lab, if it still has its name."""
        try:
            pid = int((self.folder / f"run/{file}.pid").read_text())
        except (OSError, ValueError):
            return None
        return pid if name_of(pid) == (name or file) else None

    def _end(self, file: str, name: str) -> None:
        pid = self.pid(file, name)
        if pid is not None:
            end(pid, name)

    # Commands

    def ask(self, *command: str, timeout_s: float = 20) -> str:
        """What a command prints; empty when it fails or hangs, as Slurm's do while a daemon is away."""
        try:
            done = subprocess.run(command, capture_output=True, text=True, timeout=timeout_s)
        except subprocess.TimeoutExpired:
            return ""
        return done.stdout if done.returncode == 0 else ""

    def wait(self, what: str, is_so: Callable[[], bool], timeout_s: float = START_S, poll_s: float = 0.2) -> float:
        """Wait until it is so; gives back the seconds. Raises LabError after timeout_s."""
        began = time.monotonic()
        while not is_so():
            if time.monotonic() - began > timeout_s:
                raise LabError(f"after {timeout_s:g} s not yet: {what}\n{self._last_lines()}")
            time.sleep(poll_s)
        return time.monotonic() - began

    def _run(self, *command: str) -> None:
        """As wait() and not as ask(): it must succeed. Output goes to a file, which daemons may keep open."""
        log = self.folder / f"log/start-{Path(command[0]).name}.txt"
        with log.open("a") as sink:
            done = subprocess.run(
                command, stdin=subprocess.DEVNULL, stdout=sink, stderr=sink, timeout=START_S,
                env={**os.environ, "PATH": _path()},
            )  # fmt: skip
        if done.returncode:
            raise LabError(f"{' '.join(command)} failed with {done.returncode}:\n{log.read_text()[-2000:]}")

    def _succeeds(self, *command: str) -> bool:
        try:
            return subprocess.run(command, capture_output=True, timeout=10).returncode == 0
        except subprocess.TimeoutExpired:
            return False

    def _last_lines(self) -> str:
        logs = sorted(self.folder.glob("log/*.log"))
        return "\n".join(f"{path.name}: {line}" for path in logs for line in path.read_text().splitlines()[-5:])


def main() -> None:
    """`python -m cluster.lab up|down`, run in tests/."""
    if sys.argv[1:] == ["up"]:
        began = time.monotonic()
        try:
            Lab().up()
        except LabError as error:
            sys.exit(f"no cluster: {error}")
        print(f"{len(NODES)} nodes are idle after {time.monotonic() - began:.0f} s; logs in {FOLDER}/log")
    elif sys.argv[1:] == ["down"]:
        Lab().down()
        print("the cluster is down")
    else:
        sys.exit("usage: python -m cluster.lab up|down")


if __name__ == "__main__":
    main()
