"""The configuration files of the test cluster: four nodes with four fake GPUs each, and one node without, on loopback.

Written for Slurm 22.05 (Debian 12) and newer. Every port, socket and folder is the lab's own.
"""

from pathlib import Path

CLUSTER, ACCOUNT = "gh200lab", "lab"
GPU_NODES = ("nid001", "nid002", "nid003", "nid004")
NODES = (*GPU_NODES, "cpu001")
GPUS = 4
NODE_PORTS = {node: 17001 + number for number, node in enumerate(NODES)}
CONTROLLER_PORT, ACCOUNTING_PORT, DATABASE_PORT = 16817, 16819, 13306

# Jobs of `normal` are preempted by REQUEUE, of `scavenge` by CANCEL, after GraceTime seconds from their SIGTERM.
SLURM = """
ClusterName={cluster}
SlurmctldHost={host}(127.0.0.1)
SlurmctldPort={controller_port}
SlurmUser=root
SlurmdUser=root
AuthType=auth/munge
AuthInfo=socket={lab}/run/munge.socket.2,cred_expire=10
CryptoType=crypto/munge
StateSaveLocation={lab}/state
SlurmdSpoolDir={lab}/spool/%n
SlurmctldPidFile={lab}/run/slurmctld.pid
SlurmdPidFile={lab}/run/slurmd-%n.pid
SlurmctldLogFile={lab}/log/slurmctld.log
SlurmdLogFile={lab}/log/slurmd-%n.log
ProctrackType=proctrack/linuxproc
TaskPlugin=task/none
SelectType=select/cons_tres
SelectTypeParameters=CR_Core_Memory
SlurmdParameters=config_overrides
SchedulerType=sched/backfill
SchedulerParameters=batch_sched_delay=0,sched_interval=5,bf_interval=5,requeue_delay=1
PriorityType=priority/basic
PreemptType=preempt/partition_prio
PreemptMode=REQUEUE
JobRequeue=1
ReturnToService=2
SlurmctldTimeout=30
SlurmdTimeout=15
MessageTimeout=10
InactiveLimit=0
KillWait=5
MinJobAge=300
MaxJobCount=50000
MpiDefault=none
AccountingStorageType=accounting_storage/slurmdbd
AccountingStorageHost=127.0.0.1
AccountingStoragePort={accounting_port}
AccountingStoragePass={lab}/run/munge.socket.2
AccountingStorageTRES=gres/gpu
AccountingStoreFlags=job_comment
AccountingStorageEnforce=associations
JobAcctGatherType=jobacct_gather/linux
JobAcctGatherFrequency=task=5
GresTypes=gpu
{nodes}
PartitionName=normal Nodes={gpu_nodes} Default=YES MaxTime=24:00:00 PriorityTier=1 PreemptMode=REQUEUE GraceTime=20
PartitionName=scavenge Nodes={gpu_nodes} MaxTime=24:00:00 PriorityTier=1 PreemptMode=CANCEL GraceTime=0
PartitionName=urgent Nodes={gpu_nodes} MaxTime=24:00:00 PriorityTier=10 PreemptMode=OFF
PartitionName=cpu Nodes=cpu001 MaxTime=24:00:00 DefMemPerCPU=512 PriorityTier=1 PreemptMode=OFF
"""
NODE = (
    "NodeName={node} NodeHostname={host} NodeAddr=127.0.0.1 Port={port} Sockets=4 CoresPerSocket=72 ThreadsPerCore=1 "
    "RealMemory=800000 State=UNKNOWN"
)
GRES = """
AutoDetect=off
NodeName={gpu_nodes} Name=gpu Type=gh200 File={lab}/dev/gpu[0-3]
"""
CGROUP = """
CgroupPlugin=cgroup/v1
CgroupAutomount=no
"""
ACCOUNTING = """
AuthType=auth/munge
AuthInfo=socket={lab}/run/munge.socket.2
DbdHost=localhost
DbdAddr=127.0.0.1
DbdPort={accounting_port}
SlurmUser=root
PidFile={lab}/run/slurmdbd.pid
LogFile={lab}/log/slurmdbd.log
StorageType=accounting_storage/mysql
StorageHost=127.0.0.1
StoragePort={database_port}
StorageUser=slurm
StoragePass=slurm
StorageLoc=slurm_acct_db
"""
MODES = {"slurm.conf": 0o644, "gres.conf": 0o644, "cgroup.conf": 0o644, "slurmdbd.conf": 0o600}


def write_configs(lab: Path, host: str) -> list[Path]:
    """Write the four files to LAB/etc; gives back their paths."""
    gpu = f" Gres=gpu:gh200:{GPUS} Feature=gh200"
    lines = [
        NODE.format(node=node, host=host, port=NODE_PORTS[node]) + (gpu if node in GPU_NODES else "") for node in NODES
    ]
    values = {
        "lab": lab,
        "host": host,
        "cluster": CLUSTER,
        "nodes": "\n".join(lines),
        "gpu_nodes": ",".join(GPU_NODES),
        "controller_port": CONTROLLER_PORT,
        "accounting_port": ACCOUNTING_PORT,
        "database_port": DATABASE_PORT,
    }
    texts = {"slurm.conf": SLURM, "gres.conf": GRES, "cgroup.conf": CGROUP, "slurmdbd.conf": ACCOUNTING}
    paths = []
    for name, text in texts.items():
        path = lab / "etc" / name
        path.write_text(text.format(**values).lstrip())
        path.chmod(MODES[name])
        paths.append(path)
    return paths
