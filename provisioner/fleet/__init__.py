"""Fleets: facts of many hosts, a plan, its rollout through Ansible, the ledger, the status."""
