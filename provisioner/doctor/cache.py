"""The folders that compiled code goes through: the compile cache, /tmp, /dev/shm."""
# ruff: noqa: S108 - the folders are named, not used

from __future__ import annotations

import shlex
from typing import TYPE_CHECKING

from provisioner.doctor.model import Check, Outcome, bad, good, skip, unknown
from provisioner.verify.probe import room_needed

if TYPE_CHECKING:
    from provisioner.doctor.facts import Folder
    from provisioner.doctor.seen import Seen

_MB = 1_000_000
_SHM_WANTED = 1 << 30
_TMP_WANTED = 2_000 * _MB
_NETWORK = frozenset(
    {
        "9p", "afs", "ceph", "cifs", "fuse.glusterfs", "fuse.s3fs", "fuse.sshfs", "gpfs",
        "lustre", "nfs", "nfs4", "smb3", "smbfs",
    }
)  # fmt: skip
_INDUCTOR = ("torch/_inductor/runtime/cache_dir_utils.py", "compiled with each folder, measured")
_OWN_FOLDER = 'export TORCHINDUCTOR_CACHE_DIR="/var/tmp/$(id -u)-inductor"'


def _folder(seen: Seen) -> Folder | Outcome:
    if seen.env is None:
        return unknown("no interpreter was asked")
    if seen.release is not None and not seen.release.compile.supported:
        return skip(f"{seen.build} has no compile cache")
    return seen.env.cache or unknown("the folder of the cache")


def user(seen: Seen) -> Outcome:
    """Has this user a name, after which torch calls its cache?"""
    if seen.env is None or seen.env.user is None:
        return unknown("the user")
    who = seen.env.user
    if who.name is not None:
        return good(f"{who.name} ({who.uid})")
    own = bool(seen.variables.get("TORCHINDUCTOR_CACHE_DIR"))
    return bad(
        "warn" if own else "error",
        f"uid {who.uid} has no entry in the password file, and USER is not set",
        "Up to torch 2.12 the name of the cache folder is asked for, and the answer is a KeyError.",
        "Give it a name and a folder.",
        "export USER=app",
        _OWN_FOLDER,
        source=_INDUCTOR,
        claim="cache-in-home",
    )


def writable(seen: Seen) -> Outcome:
    """Can this user write where the cache goes?"""
    found = _folder(seen)
    if not isinstance(found, Outcome) and found.writable:
        return good(found.path if found.exists else f"{found.path} can be made in {found.judged}")
    if isinstance(found, Outcome):
        return found
    uid = seen.env.user.uid if seen.env and seen.env.user else None
    if found.owner == uid and found.exists and not (found.mode or 0) & 0o200:
        return bad(
            "error",
            f"{found.judged} is this user's, and not writable (mode {found.mode or 0:o})",
            "Every compile fails with: Permission denied.",
            "Make it writable again.",
            f"chmod u+rwx -- {shlex.quote(found.judged)}",
            source=_INDUCTOR,
            claim="cache-in-home",
            fix=(("chmod", "u+rwx", "--", found.judged),),
        )
    return bad(
        "error",
        f"{found.path}: {found.error or 'not writable'} (owner {found.owner})",
        "Every compile fails. Often another user, or root in a container, made the folder first.",
        "Take a folder of your own.",
        _OWN_FOLDER,
        source=_INDUCTOR,
        claim="cache-in-home",
    )


def missing(seen: Seen) -> Outcome:
    """Is the folder there that TORCHINDUCTOR_CACHE_DIR names?"""
    found = _folder(seen)
    if isinstance(found, Outcome):
        return found
    if not seen.variables.get("TORCHINDUCTOR_CACHE_DIR"):
        return good(f"the default, {found.path}, is made when it is needed")
    if found.exists:
        return good(found.path)
    return bad(
        "note",
        f"TORCHINDUCTOR_CACHE_DIR names {found.path}, which is not there",
        "It is made at the first compile, with whatever mask that process has; a mistyped path "
        "would be made as well.",
        "Make it now, for this user alone.",
        f"mkdir -p -m 700 -- {shlex.quote(found.path)}",
        source=_INDUCTOR,
        fix=(("mkdir", "-p", "-m", "700", "--", found.path),) if found.writable else (),
    )


def noexec(seen: Seen) -> Outcome:
    """May compiled code in the cache be executed?"""
    found = _folder(seen)
    if isinstance(found, Outcome):
        return found
    if not found.noexec:
        return good(f"{found.judged} is not mounted noexec")
    return bad(
        "error",
        f"{found.judged} is mounted noexec",
        "Kernels are built and cannot be loaded: failed to map segment from shared object.",
        "Take a folder on another file system.",
        _OWN_FOLDER,
        source=_INDUCTOR,
    )


def space(seen: Seen) -> Outcome:
    """Is there room for the cache?"""
    found = _folder(seen)
    if isinstance(found, Outcome):
        return found
    if found.free is None:
        return unknown(f"the free space of {found.judged}")
    need = room_needed(seen.torch or "2.8")
    if found.free >= need * _MB:
        return good(f"{found.free // _MB:,} MB free on {found.judged}, {need} MB are needed")
    return bad(
        "error",
        f"{found.free // _MB:,} MB free on {found.judged}, {need} MB are needed",
        "A full disk in the middle of a compile ends in a linker error, or leaves entries cut "
        "short, which crash whoever loads them.",
        "Make room, then look for damaged entries.",
        "provision cache check",
        source=_INDUCTOR,
        claim="clear-tmp",
    )


def network(seen: Seen) -> Outcome:
    """Is the cache on a local file system?"""
    found = _folder(seen)
    if isinstance(found, Outcome):
        return found
    if found.mount is None:
        return unknown(f"the file system of {found.judged}")
    if found.mount.type not in _NETWORK:
        return good(f"{found.judged} is on {found.mount.type}")
    return bad(
        "warn",
        f"{found.judged} is on {found.mount.type} ({found.mount.point})",
        "Locks are slow or missing there, every start reads hundreds of small files, and machines "
        "with other processors would share machine code.",
        "Keep the cache on a local disk.",
        _OWN_FOLDER,
        source=("https://github.com/pytorch/pytorch/issues/121122",),
    )


def shared(seen: Seen) -> Outcome:
    """Is the cache this user's alone?"""
    found = _folder(seen)
    if isinstance(found, Outcome):
        return found
    if not found.exists:
        return good(f"{found.path} is not there yet")
    uid = seen.env.user.uid if seen.env and seen.env.user else None
    if found.owner is None or found.mode is None:
        return unknown(f"who owns {found.path}")
    if found.owner != uid and found.writable:
        return bad(
            "error",
            f"{found.path} belongs to user {found.owner}",
            "Entries are unpickled and loaded: whoever may write there runs code as you, and "
            "compiled code of another machine or user fails in its own ways.",
            "Take a folder of your own.",
            _OWN_FOLDER,
            source=_INDUCTOR,
        )
    if found.mode & 0o022:
        return bad(
            "warn",
            f"{found.path} has mode {found.mode:o}: others may write there",
            "Entries are unpickled and loaded: whoever may write there runs code as you.",
            "Close it to others.",
            f"chmod go-w -- {shlex.quote(found.path)}",
            source=_INDUCTOR,
            fix=(("chmod", "go-w", "--", found.path),) if found.owner == uid else (),
        )
    if _workers(seen) > 1:
        return bad(
            "note",
            f"{_workers(seen)} workers share {found.path}",
            "That works: entries are locked. They compile the same graphs one after another, and "
            "wait up to ten minutes for each other.",
            "Nothing, unless the first step takes too long: then one folder for each rank.",
            'export TORCHINDUCTOR_CACHE_DIR="/var/tmp/$(id -u)-inductor-$LOCAL_RANK"',
            source=("4 processes on one fresh cache, torch 2.0.1, 2.11.0, 2.13.0, measured",),
            claim="dataloader-deadlock",
        )
    return good(f"{found.path}, mode {found.mode:o}")


def _workers(seen: Seen) -> int:
    told = seen.variables.get("LOCAL_WORLD_SIZE", "")
    return int(told) if told.isdigit() else 1


def shm(seen: Seen) -> Outcome:
    """Is /dev/shm large enough for DataLoader workers and NCCL?"""
    found = seen.env.shm if seen.env else None
    if found is None:
        return unknown("the size of /dev/shm")
    if found.present and found.total >= _SHM_WANTED:
        return good(f"/dev/shm has {found.total // _MB:,} MB")
    size = f"/dev/shm has {found.total // _MB:,} MB" if found.present else "there is no /dev/shm"
    return bad(
        "warn",
        size,
        "DataLoader workers hand tensors over through it, NCCL too: Bus error, or unable to open "
        "shared memory object. Docker gives a container 64 MB.",
        "Give the container more, or that of the host.",
        "docker run --rm --gpus all --shm-size 8g IMAGE"
        if seen.inside
        else "sudo mount -o remount,size=8G /dev/shm",
        source=("https://docs.docker.com/reference/cli/docker/container/run/",),
    )


def tmp(seen: Seen) -> Outcome:
    """Can temporary files be written, and executed from?"""
    found = seen.env.tmp if seen.env else None
    if found is None:
        return unknown("the folder of temporary files")
    other = 'mkdir -p -m 700 "$HOME/tmp" && export TMPDIR="$HOME/tmp"'
    if not found.writable:
        return bad(
            "error",
            f"{found.path}: {found.error or 'not writable'}",
            "Compilers, pip and the precompiled headers of Inductor write there.",
            "Name another folder.",
            other,
            source=_INDUCTOR,
        )
    if found.free is not None and found.free < _TMP_WANTED:
        return bad(
            "warn",
            f"{found.free // _MB:,} MB free in {found.path}",
            "A wheel of torch with its CUDA takes gigabytes while it is unpacked, a cache of "
            "precompiled headers 160 MB.",
            "Make room, or name another folder.",
            other,
            source=_INDUCTOR,
        )
    if found.noexec:
        return bad(
            "warn",
            f"{found.path} is mounted noexec",
            "The compile cache lies there unless it is named, and its code is then not loaded.",
            "Name a folder of another file system.",
            other,
            source=_INDUCTOR,
        )
    return good(f"{found.path}, {(found.free or 0) // _MB:,} MB free")


CHECKS = (
    Check("cache.user", "the user has a name", user),
    Check("cache.writable", "the compile cache can be written", writable),
    Check("cache.missing", "the named cache folder is there", missing),
    Check("cache.noexec", "compiled code may be executed", noexec),
    Check("cache.space", "there is room for the cache", space),
    Check("cache.network", "the cache is on a local disk", network),
    Check("cache.shared", "the cache is this user's alone", shared),
    Check("cache.shm", "/dev/shm is large enough", shm),
    Check("cache.tmp", "temporary files have room", tmp),
)
