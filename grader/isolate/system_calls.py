"""The system calls that nothing in a jail may make, as a program for the kernel (seccomp).

The kernel answers a refused call as an older one without that call would (ENOSYS), and a refused
socket as if it did not know the family (EAFNOSUPPORT): libraries have another way then. Calls newer
than this list are refused, too. libseccomp makes the program, since it knows the numbers of each
machine. Debian, Ubuntu and Fedora always have it, for apt and systemd need it.
"""

from __future__ import annotations

import ctypes
import errno
import functools
import os
import socket
import struct

_ALLOW, _ERRNO = 0x7FFF0000, 0x00050000  # seccomp.h: what the kernel does, with the error below
_NOT_EQUAL, _EQUAL, _MASKED_EQUAL = 1, 4, 7
_NAMESPACES = (0x00020000, 0x02000000, 0x04000000, 0x08000000, 0x10000000, 0x20000000, 0x40000000)
_ONLY_ASKED = 0xFFFFFFFF  # argument with which personality changes nothing
_SET_DUMPABLE = 4  # of prctl: it would hide from the judge what a process has open
NEWEST = 456  # futex_requeue, Linux 6.7; from 424 on all machines have the same numbers
# linux/filter.h: load the number; where it is above NEWEST, answer ENOSYS.
_LOAD, _IF_ABOVE, _RETURN = 0x20, 0x25, 0x06

# clone3 is refused since no filter sees its flags, in memory: glibc makes threads by clone then.
REFUSED = {
    "keys": ("add_key", "keyctl", "request_key"),
    "io_uring": ("io_uring_setup", "io_uring_enter", "io_uring_register"),
    "page faults": ("userfaultfd",),
    "other processes": (
        *("ptrace", "process_vm_readv", "process_vm_writev", "process_madvise"),
        *("process_mrelease", "pidfd_getfd", "kcmp"),
    ),
    # Memory that belongs to no process: the judge would not see it.
    "System V and POSIX queues": (
        *("shmget", "shmat", "shmctl", "shmdt", "semget", "semop", "semtimedop", "semctl"),
        *("msgget", "msgsnd", "msgrcv", "msgctl", "mq_open", "memfd_secret"),
    ),
    # The judge would not see a file that is sent and not received. A worker receives, sends none.
    "descriptors that are sent": ("sendmsg", "sendmmsg"),
    "namespaces": ("unshare", "setns", "clone3"),
    "file systems": (
        *("mount", "umount2", "pivot_root", "chroot", "fsopen", "fsconfig", "fsmount", "fspick"),
        *("move_mount", "open_tree", "mount_setattr", "open_by_handle_at", "fanotify_init"),
        *("quotactl", "quotactl_fd", "swapon", "swapoff", "nfsservctl", "uselib"),
    ),
    "the kernel": (
        *("bpf", "perf_event_open", "kexec_load", "kexec_file_load", "init_module"),
        *("finit_module", "delete_module", "lookup_dcookie", "syslog", "acct", "reboot"),
        *("iopl", "ioperm", "modify_ldt", "vhangup", "sethostname", "setdomainname"),
        *("settimeofday", "clock_settime", "adjtimex", "clock_adjtime"),
    ),
}


class SystemCallFault(Exception):
    """No program can be made on this machine; says what to do."""


class _Comparison(ctypes.Structure):
    _fields_ = (
        ("argument", ctypes.c_uint),
        ("how", ctypes.c_int),
        ("first", ctypes.c_uint64),
        ("second", ctypes.c_uint64),
    )


def numbers() -> dict[str, int]:
    """Return the number on this machine of each call that is refused with any arguments.

    Raises:
        SystemCallFault: there is no libseccomp.
    """
    resolve = _library().seccomp_syscall_resolve_name
    found = {name: resolve(name.encode()) for names in REFUSED.values() for name in names}
    return {name: number for name, number in found.items() if number >= 0}  # else: not here


@functools.cache
def program() -> bytes:
    """Return the program, as bubblewrap takes it: the instructions of struct sock_filter.

    Raises:
        SystemCallFault: there is no libseccomp, or it refuses a rule.
    """
    library = _library()
    unknown = _ERRNO | errno.ENOSYS
    context = library.seccomp_init(_ALLOW)
    try:
        for number in numbers().values():
            _add(library, context, unknown, number)
        for flag in _NAMESPACES:
            _add(library, context, unknown, b"clone", _Comparison(0, _MASKED_EQUAL, flag, flag))
        asked = _Comparison(0, _NOT_EQUAL, _ONLY_ASKED)
        _add(library, context, unknown, b"personality", asked)
        hidden = _Comparison(0, _EQUAL, _SET_DUMPABLE)
        _add(library, context, unknown, b"prctl", hidden)
        for name in (b"socket", b"socketpair"):
            other = _Comparison(0, _NOT_EQUAL, socket.AF_UNIX)
            _add(library, context, _ERRNO | errno.EAFNOSUPPORT, name, other)
        fd = os.memfd_create("filter")
        try:
            _expect(library.seccomp_export_bpf(context, fd))
            rules = os.pread(fd, os.fstat(fd).st_size, 0)
        finally:
            os.close(fd)
    finally:
        library.seccomp_release(context)
    newer = ((_LOAD, 0, 0, 0), (_IF_ABOVE, 0, 1, NEWEST), (_RETURN, 0, 0, unknown))
    return b"".join(struct.pack("=HBBI", *instruction) for instruction in newer) + rules


def _add(
    library: ctypes.CDLL, context: int, action: int, call: int | bytes, *rules: _Comparison
) -> None:
    number = call if isinstance(call, int) else library.seccomp_syscall_resolve_name(call)
    comparisons = (_Comparison * len(rules))(*rules)
    _expect(library.seccomp_rule_add_array(context, action, number, len(rules), comparisons))


def _expect(status: int) -> None:
    if status:
        raise SystemCallFault(f"libseccomp makes no filter: {os.strerror(abs(status))}")


@functools.cache
def _library() -> ctypes.CDLL:
    try:
        library = ctypes.CDLL("libseccomp.so.2")
    except OSError:
        raise SystemCallFault(
            "libseccomp is not installed: install the package libseccomp2 (Fedora: libseccomp)"
        ) from None
    pointer, number = ctypes.c_void_p, ctypes.c_uint32
    library.seccomp_init.argtypes, library.seccomp_init.restype = [number], pointer
    library.seccomp_release.argtypes, library.seccomp_release.restype = [pointer], None
    library.seccomp_export_bpf.argtypes = [pointer, ctypes.c_int]
    library.seccomp_syscall_resolve_name.argtypes = [ctypes.c_char_p]
    arguments = [pointer, number, ctypes.c_int, ctypes.c_uint, ctypes.POINTER(_Comparison)]
    library.seccomp_rule_add_array.argtypes = arguments
    return library
