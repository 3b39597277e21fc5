"""Ranks that share nothing and reach each other through torch.distributed."""

from sshsdp_zerosm.process_group.network import Network
from sshsdp_zerosm.process_group.remote import NetworkRemote
from sshsdp_zerosm.process_group.transport import ProcessGroupTransport
from sshsdp_zerosm.process_group.waiter import NetworkWaiter

__all__ = ["Network", "NetworkRemote", "NetworkWaiter", "ProcessGroupTransport"]
