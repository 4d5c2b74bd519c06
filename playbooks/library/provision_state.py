#!/usr/bin/python
"""Ansible module: the lock and the state that a rollout keeps on a host."""

import errno
import json
import os
import tempfile
import time

from ansible.module_utils.basic import AnsibleModule

DOCUMENTATION = r"""
---
module: provision_state
short_description: Lock and state of a rollout on a host
description:
  - Takes and gives back the host's lock, so that no two rollouts change it at the same time.
  - Keeps C(provision_rollout.fact), which tells what a rollout did to the host, each time whole or unchanged.
options:
  action:
    description: What is to be done.
    type: str
    required: true
    choices: [take, note_drain, undrained, begin, done, failed, release]
  rollout:
    description: The short name of the plan.
    type: str
    required: true
  host:
    description: The name of the host in the inventory.
    type: str
    required: true
  controller:
    description: What tells this controller from others.
    type: str
    default: ""
  supersedes:
    description: Rollouts whose lock may be taken over.
    type: list
    elements: str
    default: []
  digest:
    description: The digest of the wanted state.
    type: str
    default: ""
  cell:
    description: The wanted cell.
    type: str
    default: ""
  branch:
    description: The wanted driver branch; 0 for none.
    type: int
    default: 0
  drained_before:
    description: Whether the host was drained before this rollout.
    type: bool
    default: false
  reason:
    description: Why the host failed.
    type: str
    default: ""
  take_over:
    description: Whether the lock of the same rollout is taken from another controller.
    type: bool
    default: false
  facts_dir:
    description: The folder of provision_rollout.fact.
    type: path
    default: /etc/ansible/facts.d
  lock_dir:
    description: The folder of the lock.
    type: path
    default: /var/lib/provision-rollout
author: provision
"""
EXAMPLES = r"""
- name: Take the host
  provision_state:
    action: take
    rollout: 0123456789ab
    host: "{{ inventory_hostname }}"
"""
RETURN = r"""
already:
  description: Whether an earlier run brought the host to the wanted state.
  returned: take
  type: bool
state:
  description: What the state was before.
  returned: always
  type: dict
"""

SCHEMA = "provision.host-state/1"
KEPT = ("cell", "branch", "digest")
ACTIONS = ["take", "note_drain", "undrained", "begin", "done", "failed", "release"]


def read(path):
    """The JSON object of a file; {} where there is none, None where it is damaged."""
    try:
        with open(path) as stream:
            found = json.load(stream)
    except IOError as error:
        if error.errno == errno.ENOENT:
            return {}
        raise
    except ValueError:
        return None
    return found if isinstance(found, dict) else None


def write(path, value, mode):
    """Write JSON under its name in one step, synced."""
    folder = os.path.dirname(path)
    if not os.path.isdir(folder):
        os.makedirs(folder, 0o755)
    descriptor, name = tempfile.mkstemp(prefix=".provision.", dir=folder)
    try:
        with os.fdopen(descriptor, "w") as stream:
            json.dump(value, stream, sort_keys=True)
            stream.write("\n")
            stream.flush()
            os.fsync(stream.fileno())
        os.chmod(name, mode)
        os.rename(name, path)
    except BaseException:
        os.unlink(name)
        raise


def take_lock(path, mine, supersedes, take_over):
    """None when the lock is ours now, else who holds it."""
    folder = os.path.dirname(path)
    if not os.path.isdir(folder):
        os.makedirs(folder, 0o755)
    descriptor, name = tempfile.mkstemp(prefix=".lock.", dir=folder)
    try:
        with os.fdopen(descriptor, "w") as stream:
            json.dump(mine, stream, sort_keys=True)
            stream.flush()
            os.fsync(stream.fileno())
        try:
            os.link(name, path)
            return None
        except OSError as error:
            if error.errno != errno.EEXIST:
                raise
        held = read(path)
        if held is None:
            return "an unreadable lock, {}".format(path)
        ours = held.get("rollout") == mine["rollout"]
        if ours and held.get("host") != mine["host"]:
            return "this same rollout, under the name {}".format(held.get("host"))
        if ours and held.get("controller") != mine["controller"] and not take_over:
            return "this same rollout, run by controller {}".format(held.get("controller"))
        if not ours and held.get("rollout") not in supersedes:
            return "rollout {}, run by controller {}, since {}".format(
                held.get("rollout"), held.get("controller"), held.get("since")
            )
        os.rename(name, path)
        return None
    finally:
        if os.path.exists(name):
            os.unlink(name)


def release(path, rollout):
    """Give the lock back where it is ours."""
    held = read(path)
    if held and held.get("rollout") == rollout:
        os.unlink(path)


def same_cell(facts_dir, cell):
    """Whether gpu_host.yml, run by hand since, left the host with the cell: provision.fact."""
    other = read(os.path.join(facts_dir, "provision.fact"))
    if other == {}:
        return True
    return bool(other) and other.get("state") == "done" and other.get("cell") == cell


def by_hand(facts_dir):
    """What gpu_host.yml left on a host that no rollout has touched yet."""
    other = read(os.path.join(facts_dir, "provision.fact"))
    if not other or other.get("state") != "done":
        return {}
    return dict((key, other.get(key)) for key in ("cell", "branch"))


def next_state(action, old, options, now):
    """The state that an action leaves behind."""
    new = dict(old, schema=SCHEMA, rollout=options["rollout"], host=options["host"], time=now)
    unfinished = old.get("state") in ("in_progress", "failed")
    if action == "note_drain":
        # What is there was noted before a drain of ours, which must not be taken for another's.
        new.setdefault("drained_before", options["drained_before"])
        new["state"] = old.get("state") or "none"
    elif action == "undrained":
        new.pop("drained_before", None)
    elif action == "begin":
        if not unfinished:
            new["previous"] = dict((key, old.get(key)) for key in KEPT)
        new["state"] = "in_progress"
        new.pop("reason", None)
    elif action == "done":
        new.update(cell=options["cell"], branch=options["branch"], digest=options["digest"])
        new["state"] = "done"
        for key in ("reason", "drained_before"):
            new.pop(key, None)
    elif action == "failed":
        new.update(state="failed", reason=options["reason"][:500])
    return new


def main():
    text, names = {"type": "str", "default": ""}, {"type": "list", "elements": "str", "default": []}
    module = AnsibleModule(
        argument_spec={
            "action": {
                "type": "str",
                "required": True,
                "choices": ACTIONS,
            },
            "rollout": {"type": "str", "required": True},
            "host": {"type": "str", "required": True},
            "controller": text,
            "supersedes": names,
            "digest": text,
            "cell": text,
            "branch": {"type": "int", "default": 0},
            "drained_before": {"type": "bool", "default": False},
            "reason": text,
            "take_over": {"type": "bool", "default": False},
            "facts_dir": {"type": "path", "default": "/etc/ansible/facts.d"},
            "lock_dir": {"type": "path", "default": "/var/lib/provision-rollout"},
        },
        supports_check_mode=True,
    )
    options = module.params
    fact = os.path.join(options["facts_dir"], "provision_rollout.fact")
    lock = os.path.join(options["lock_dir"], "rollout.lock")
    try:
        old = read(fact)
        if old is None:
            old = {}  # damaged: nothing is known of the host, so everything is done
        if not old:
            old = by_hand(options["facts_dir"])
        if module.check_mode:
            module.exit_json(changed=options["action"] != "take", already=False, state=old)
        now = time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime())
        if options["action"] == "take":
            mine = {key: options[key] for key in ("rollout", "controller", "host")}
            mine["since"] = now
            holder = take_lock(lock, mine, options["supersedes"], options["take_over"])
            if holder is not None:
                module.fail_json(msg="The host is held by " + holder + ".", held=True)
            already = old.get("state") == "done" and old.get("digest") == options["digest"]
            already = already and same_cell(options["facts_dir"], options["cell"])
            if already:
                release(lock, options["rollout"])
            module.exit_json(changed=False, already=already, state=old)
        if options["action"] == "release":
            release(lock, options["rollout"])
            module.exit_json(changed=False, state=old)
        held = read(lock) or {}
        if held.get("rollout") != options["rollout"]:
            module.fail_json(msg="The host's lock was lost: {} holds it.".format(held or "nobody"))
        new = next_state(options["action"], old, options, now)
        write(fact, new, 0o644)
        module.exit_json(changed=False, state=old)
    except (IOError, OSError) as error:
        module.fail_json(msg="{}: {}".format(error.filename or fact, error.strerror or error))


if __name__ == "__main__":
    main()
