"""Tries to make files in the working directory that raise the rights of a user of the host who executes them, or
that are devices. Prints the names of the attempts that do not fail. Each attempt makes one file."""

import ctypes
import io
import mmap
import os
import platform
import stat
import struct
import subprocess
import tarfile

LIBC = ctypes.CDLL(None, use_errno=True)
X86 = platform.machine() == "x86_64"
# fchmod, fchmodat, openat and mknodat; the other numbers are the same on all architectures.
FCHMOD, FCHMODAT, OPENAT, MKNODAT = (91, 268, 257, 259) if X86 else (52, 53, 56, 33)
FCHMODAT2, OPENAT2 = 452, 437
AT_FDCWD, CREATE, TMPFILE = -100, os.O_CREAT | os.O_RDWR, os.O_TMPFILE | os.O_RDWR
NAME = "file"


def call(number, *arguments):
    result = LIBC.syscall(number, *arguments)
    if result < 0:
        raise OSError(ctypes.get_errno(), "")
    return result


def empty():
    open(NAME, "x").close()
    return NAME.encode()


def i386_chmod():
    """chmod through the table of system calls for 32-bit programs."""
    code = mmap.mmap(-1, 4096, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS | 0x40, prot=7)  # below 4 GiB
    at = ctypes.addressof(ctypes.c_char.from_buffer(code))
    # push rbx; mov ebx, edi; mov ecx, esi; mov eax, 15; int 0x80; pop rbx; ret
    code[:14] = b"\x53\x89\xfb\x89\xf1\xb8\x0f\0\0\0\xcd\x80\x5b\xc3"
    code[64:69] = empty() + b"\0"
    result = ctypes.CFUNCTYPE(ctypes.c_int, ctypes.c_uint, ctypes.c_uint)(at)(at + 64, 0o4755)
    if result < 0:
        raise OSError(-result, "")


def temporary_file():
    descriptor = call(OPENAT, AT_FDCWD, b".", TMPFILE, 0o4755)
    os.link(f"/proc/self/fd/{descriptor}", NAME, src_dir_fd=descriptor, follow_symlinks=True)


def extract():
    archive = io.BytesIO()
    with tarfile.open(fileobj=archive, mode="w") as writer:
        member = tarfile.TarInfo(NAME)
        member.mode = 0o6755
        writer.addfile(member, io.BytesIO())
    run("tar", "--extract", "--same-permissions", input=archive.getvalue())


def run(*command, **options):
    subprocess.run(command, check=True, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, **options)


ATTEMPTS = {
    "chmod": lambda: os.chmod(empty(), 0o4755),
    "chmod, set-group-ID": lambda: os.chmod(empty(), 0o2755),
    "fchmod": lambda: call(FCHMOD, os.open(empty(), os.O_RDWR), 0o6755),
    "fchmodat": lambda: call(FCHMODAT, AT_FDCWD, empty(), 0o4755),
    "fchmodat2": lambda: call(FCHMODAT2, AT_FDCWD, empty(), 0o4755, 0),
    "open": lambda: os.open(NAME, CREATE, 0o4755),
    "openat": lambda: call(OPENAT, AT_FDCWD, b"file", CREATE, 0o4755),
    "openat2": lambda: call(OPENAT2, AT_FDCWD, b"file", struct.pack("QQQ", CREATE, 0o4755, 0), 24),
    "O_TMPFILE": temporary_file,
    "mknod of a file": lambda: os.mknod(NAME, stat.S_IFREG | 0o4755),
    "mknodat of a file": lambda: call(MKNODAT, AT_FDCWD, b"file", stat.S_IFREG | 0o4755, 0),
    "block device": lambda: os.mknod(NAME, stat.S_IFBLK | 0o666, os.makedev(254, 0)),
    "character device": lambda: os.mknod(NAME, stat.S_IFCHR | 0o666, os.makedev(1, 1)),
    "capability": lambda: os.setxattr(empty(), b"security.capability", struct.pack("<5I", 0x02000001, 0x80, 0, 0x80, 0)),
    "chmod program": lambda: run("chmod", "u+s", empty()),
    "chmod from another directory": lambda: (os.mkdir("sub"), run("chmod", "6755", "../" + empty().decode(), cwd="sub")),
    "hard link": lambda: os.link("/usr/bin/su", NAME),
    "install": lambda: run("install", "--mode=4755", "/usr/bin/true", NAME),
    "cp": lambda: run("cp", "--preserve", "/usr/bin/su", NAME),
    "mv": lambda: (run("cp", "--preserve", "/usr/bin/su", "/tmp/su"), run("mv", "/tmp/su", NAME)),
    "tar": extract,
    "shutil": lambda: __import__("shutil").copy2("/usr/bin/su", NAME),
}
if X86:
    ATTEMPTS["chmod of 32-bit programs"] = i386_chmod

for name, attempt in ATTEMPTS.items():
    directory = name.replace(" ", "-")
    os.mkdir(directory)
    os.chdir(directory)
    try:
        attempt()
        print(name)
    except (OSError, subprocess.CalledProcessError):
        pass
    os.chdir("..")
