"""Has a thread of another process make system calls, and prints what the kernel answers: one number a line.

    attempt.py TID NUMBER,ARG0,ARG1,... [NUMBER,...]

The thread has to wait in a system call. It is stopped, made to execute the instruction of that call again with other registers, and
goes on with its own as if nothing had been. x86_64 only. Needs root.
"""

import ctypes
import os
import sys
import time

ATTACH, DETACH, STEP, GET, SET = 16, 17, 9, 12, 13
NAMES = ("r15 r14 r13 r12 rbp rbx r11 r10 r9 r8 rax rcx rdx rsi rdi orig_rax rip cs eflags rsp ss fs_base gs_base ds es fs gs").split()
ARGUMENTS = ("rdi", "rsi", "rdx", "r10", "r8", "r9")
WALL = 0x40000000


class Registers(ctypes.Structure):
    _fields_ = [(name, ctypes.c_ulonglong) for name in NAMES]


libc = ctypes.CDLL(None, use_errno=True)
libc.ptrace.argtypes = [ctypes.c_long, ctypes.c_long, ctypes.c_void_p, ctypes.c_void_p]
libc.ptrace.restype = ctypes.c_long


def ptrace(request, tid, data=None):
    if libc.ptrace(request, tid, None, data) < 0:
        number = ctypes.get_errno()
        raise OSError(number, os.strerror(number))


def registers(tid):
    values = Registers()
    ptrace(GET, tid, ctypes.byref(values))
    return values


def call(tid, own, number, arguments):
    changed = Registers.from_buffer_copy(own)
    # Back to the instruction of two bytes that brought the thread into the kernel; -1 says that there is no call to begin again.
    changed.rip, changed.rax, changed.orig_rax = own.rip - 2, number, 2**64 - 1
    for name, value in zip(ARGUMENTS, arguments):
        setattr(changed, name, value)
    ptrace(SET, tid, ctypes.byref(changed))
    ptrace(STEP, tid)
    os.waitpid(tid, WALL)
    return ctypes.c_longlong(registers(tid).rax).value


def stop(tid):
    """Stops the thread within a system call."""
    while True:
        ptrace(ATTACH, tid)
        os.waitpid(tid, WALL)
        own = registers(tid)
        if own.orig_rax < 2**63:
            return own
        ptrace(DETACH, tid)
        time.sleep(0.01)


tid = int(sys.argv[1])
own = stop(tid)
try:
    for text in sys.argv[2:]:
        number, *arguments = (int(word) for word in text.split(","))
        print(call(tid, own, number, arguments))
finally:
    ptrace(SET, tid, ctypes.byref(own))
    ptrace(DETACH, tid)
