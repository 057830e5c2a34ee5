"""Where it runs: does this Slurm cluster have what a profile asks for? Asked before the first submission,
and by the doctor.

Knows Slurm's words and Snakemake's profiles. Knows nothing of songs.
"""

import getpass
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from levo.errors import ConfigError
from levo.node import slurm
from levo.node.profile import minutes

ANSWER_S = 60.0


@dataclass(frozen=True)
class Order:
    """What the jobs of one rule ask for, by the names that Snakemake has for it (slurm_partition, gres, ...)."""

    rule: str
    asked: Mapping[str, Any]


@dataclass(frozen=True)
class _Nodes:
    """Equal nodes of one partition. gpus: of one node. limit_min: longest job, None for no limit."""

    cores: int
    mem_mb: int
    gres: str
    features: frozenset[str]
    limit_min: float | None
    preempt_mode: str


def check_site(orders: Iterable[Order], profiles: Iterable[Path], gpus_per_node: int | None) -> list[str]:
    """Compare orders with the cluster; gives back warnings. Raises ConfigError with the line of the profile to mend.

    gpus_per_node: what the bill counts (setting cost.gpus_per_node); a rule with a gres must ask for as many.
    None: any number.
    """
    profiles = list(profiles)
    partitions, accounts = _partitions(), _accounts()
    warnings = {} if accounts else {"sacctmgr names no account of yours: account and QOS are not checked": None}
    for order in orders:
        check = _Check(order, profiles)
        check.account(accounts)
        if gpus_per_node is not None:
            check.gpus(gpus_per_node)
        nodes = check.nodes(partitions)
        if any(each.preempt_mode == "CANCEL" for each in nodes):
            partition = order.asked["slurm_partition"]
            warnings[
                f"partition {partition} preempts by CANCEL: a preempted job is a lost try (of `retries`), not a requeue"
            ] = None
    return list(warnings)


class _Check:
    """One order against the cluster."""

    def __init__(self, order: Order, profiles: list[Path]) -> None:
        self.order, self.profiles = order, profiles

    def account(self, accounts: Mapping[str, set[str]]) -> None:
        """accounts: by name, the QOS that may be used with it."""
        account, qos = self.order.asked.get("slurm_account"), self.order.asked.get("qos")
        if account is not None and accounts and str(account).lower() not in accounts:
            raise self._error("slurm_account", f"you have no account {account!r}", "yours", accounts)
        allowed = accounts.get(str(account).lower()) or set().union(*accounts.values())
        if qos is not None and allowed and str(qos) not in allowed:
            raise self._error("qos", f"no QOS {qos!r} for account {account!r}", "there are", allowed)

    def gpus(self, gpus_per_node: int) -> None:
        """A job gets the GPUs of a whole node, which are those that the bill counts."""
        gres = self.order.asked.get("gres")
        if gres and _count(str(gres)) != gpus_per_node:
            raise self._error(
                "gres",
                f"the profile asks for {_count(str(gres))} GPUs a node, setting cost.gpus_per_node is {gpus_per_node}",
                "mend this line, or the setting in your settings file (--configfile)",
            )

    def nodes(self, partitions: Mapping[str, list[_Nodes]]) -> list[_Nodes]:
        """The nodes on which such a job can start."""
        names = str(self.order.asked.get("slurm_partition", "")).split(",")
        unknown = [name for name in names if name and name not in partitions]
        if unknown:
            raise self._error(
                "slurm_partition", f"no partition {unknown[0]!r} on this cluster", "there are", partitions
            )
        found = [each for name in (names if names != [""] else partitions) for each in partitions[name]]
        for key, has_it, offer in (
            ("constraint", _has_feature, lambda each: " ".join(sorted(each.features)) or "none"),
            ("gres", _has_gres, lambda each: each.gres),
            ("cpus_per_task", lambda each, value: each.cores >= _number(value), lambda each: each.cores),
            ("mem_mb", lambda each, value: each.mem_mb >= _number(value), lambda each: each.mem_mb),
            ("runtime", _has_time, _limit),
        ):
            value = self.order.asked.get(key)
            if value is None:
                continue
            fitting = [each for each in found if has_it(each, value)]
            if not fitting:
                what = f"no node of partition {','.join(names) or 'default'} has {key} {value!r}"
                raise self._error(key, what, "there are", {str(offer(each)) for each in found})
            found = fitting
        return found

    def _error(self, key: str, what: str, fix: str, choice: Iterable[str] = ()) -> ConfigError:
        words = ", ".join(sorted(choice))
        where = _where(self.profiles, key, self.order.asked[key])
        return ConfigError(f"rule {self.order.rule}: {what}", where=where, fix=f"{fix}: {words}" if words else fix)


def _where(profiles: list[Path], key: str, value: object) -> str:
    """The profile's lines that set this key to this value."""
    line_of = re.compile(rf"[-\s\"']*{key}\s*[:=]\s*[\"']*(.*?)[\"']*\s*(?:#.*)?")

    def sets_it(line: str) -> bool:
        found = line_of.fullmatch(line)
        if found is None:
            return False
        return found[1] == str(value) or (key == "runtime" and minutes(found[1]) == minutes(value))

    for path in profiles:
        lines = path.read_text(encoding="utf-8").splitlines()
        numbers = [str(number) for number, line in enumerate(lines, 1) if sets_it(line)]
        if numbers:
            return f"{path}, line {' and '.join(numbers)}: {key}"
    return f"{key}, given on the command line or in a rule"


def _number(value: object) -> int:
    """0 for an expression, which only Snakemake can work out."""
    return int(str(value)) if str(value).isdigit() else 0


def _has_feature(nodes: _Nodes, constraint: object) -> bool:
    words = re.findall(r"[\w.-]+", str(constraint))
    return not re.fullmatch(r"[\w.&-]+", str(constraint)) or set(words) <= nodes.features  # more than `a&b`: Slurm's


def _has_time(nodes: _Nodes, runtime: object) -> bool:
    asked = minutes(runtime)
    return asked is None or nodes.limit_min is None or nodes.limit_min >= asked


def _has_gres(nodes: _Nodes, gres: object) -> bool:
    wanted = str(gres).split(":")
    for entry in re.sub(r"\([^)]*\)", "", nodes.gres).split(","):
        parts = entry.split(":")
        if parts[0] == wanted[0] and wanted[1:-1] in ([], parts[1:-1]) and _count(entry) >= _count(str(gres)):
            return True
    return False


def _count(gres: str) -> int:
    """gpu -> 1, gpu:4 -> 4, gpu:a100:4 -> 4."""
    last = gres.rsplit(":", 1)[-1]
    return int(last) if last.isdigit() else 1


def _limit(nodes: _Nodes) -> str:
    return f"at most {nodes.limit_min:.0f} minutes"


def _partitions() -> dict[str, list[_Nodes]]:
    """Every partition, its kinds of nodes. Raises ConfigError when sinfo is not here or says nothing."""
    found: dict[str, list[_Nodes]] = {}
    for line in _ask("sinfo", "--noheader", "--exact", "--format=%R|%c|%m|%G|%f|%l|%M").splitlines():
        name, cores, mem_mb, gres, features, limit, mode = (part.strip() for part in line.split("|"))
        nodes = _Nodes(
            cores=int(cores.rstrip("+")),
            mem_mb=int(mem_mb.rstrip("+")),
            gres=gres,
            features=frozenset(features.split(",")) - {"(null)"},
            limit_min=None if (seconds := slurm.duration_s(limit)) is None else seconds / 60,
            preempt_mode=mode.upper(),
        )
        found.setdefault(name, []).append(nodes)
    if not found:
        raise ConfigError("sinfo shows no partition", where="this machine", fix="run snakemake where sinfo works")
    return found


def _accounts() -> dict[str, set[str]]:
    """The user's accounts in small letters with their QOS; empty where Slurm keeps none."""
    command = ("sacctmgr", "--noheader", "--parsable2", "show", "assoc", f"user={getpass.getuser()}")
    found: dict[str, set[str]] = {}
    try:
        rows = _ask(*command, "format=Account,QOS").splitlines()
    except ConfigError:
        return {}
    for row in rows:
        account, _, qos = row.partition("|")
        found.setdefault(account.lower(), set()).update(filter(None, qos.split(",")))
    return found


def _ask(*command: str) -> str:
    try:
        return slurm.ask(*command, timeout_s=ANSWER_S)
    except slurm.NoAnswer as error:
        fix = "run snakemake on a login node of the cluster, or with --profile profiles/local"
        raise ConfigError(str(error), where=" ".join(command), fix=fix) from None
