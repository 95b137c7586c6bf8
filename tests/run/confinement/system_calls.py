import fcntl, mmap, platform

MACHINE = platform.machine()
EPERM, ENOSYS = errno.EPERM, errno.ENOSYS
path = b"/tmp\0"
text = ctypes.create_string_buffer(b"/tmp")
room = ctypes.create_string_buffer(4096)
NEW = {"NEWUSER": 0x10000000, "NEWNET": 0x40000000, "NEWNS": 0x20000, "NEWPID": 0x20000000, "NEWIPC": 0x8000000,
       "NEWUTS": 0x4000000, "NEWCGROUP": 0x2000000}

# Number on x86-64, number on i386, arguments, required error.
CALLS = {
    "mount": (165, 21, (text, text, None, 4096, None), EPERM),
    "umount2": (166, 52, (text, 2), EPERM),
    "pivot_root": (155, 217, (text, text), EPERM),
    "chroot": (161, 61, (text,), EPERM),
    "open_tree": (428, 428, (-100, text, 1), EPERM),
    "move_mount": (429, 429, (-100, text, -100, text, 0), EPERM),
    "fsopen": (430, 430, (ctypes.create_string_buffer(b"tmpfs"), 0), EPERM),
    "fsmount": (432, 432, (0, 0, 0), EPERM),
    "mount_setattr": (442, 442, (-100, text, 0, room, 32), EPERM),
    "statmount": (457, 457, (room, room, 512, 0), EPERM),
    "listmount": (458, 458, (room, room, 8, 0), EPERM),
    "unshare": (272, 310, (NEW["NEWUSER"],), EPERM),
    "setns": (308, 346, (0, 0), EPERM),
    "clone3": (435, 435, (room, 88), ENOSYS),
    "open_by_handle_at": (304, 342, (-100, room, 0), EPERM),
    "keyctl": (250, 288, (0, -3, 1), EPERM),
    "add_key": (248, 286, (ctypes.create_string_buffer(b"user"), text, text, 4, -3), EPERM),
    "request_key": (249, 287, (ctypes.create_string_buffer(b"user"), text, None, -3), EPERM),
    "bpf": (321, 357, (0, room, 120), EPERM),
    "perf_event_open": (298, 336, (room, 0, -1, -1, 0), EPERM),
    "io_uring_setup": (425, 425, (8, room), ENOSYS),
    "io_uring_enter": (426, 426, (0, 0, 0, 0, None, 0), ENOSYS),
    "io_uring_register": (427, 427, (-1, 0, None, 0), ENOSYS),
    "userfaultfd": (323, 374, (1,), EPERM),
    "fanotify_init": (300, 338, (0, 0), EPERM),
    "init_module": (175, 128, (room, 0, text), EPERM),
    "finit_module": (313, 350, (0, text, 0), EPERM),
    "delete_module": (176, 129, (text, 0), EPERM),
    "kexec_load": (246, 283, (0, 0, None, 0), EPERM),
    "reboot": (169, 88, (0xfee1dead, 0, 0), EPERM),
    "swapon": (167, 87, (text, 0), EPERM),
    "swapoff": (168, 115, (text,), EPERM),
    "syslog": (103, 103, (10, None, 0), EPERM),
    "acct": (163, 51, (None,), EPERM),
    "quotactl": (179, 131, (0, None, 0, None), EPERM),
    "sethostname": (170, 74, (text, 4), EPERM),
    "setdomainname": (171, 121, (text, 4), EPERM),
    "settimeofday": (164, 79, (room, None), EPERM),
    "clock_settime": (227, 264, (0, room), EPERM),
    "adjtimex": (159, 124, (room,), EPERM),
    "kcmp": (312, 349, (1, 1, 0, 0, 0), EPERM),
    "process_madvise": (440, 440, (0, None, 0, 0, 0), EPERM),
    "move_pages": (279, 317, (0, 0, None, None, None, 0), EPERM),
    "migrate_pages": (256, 294, (0, 0, None, None), EPERM),
    "vhangup": (153, 111, (), EPERM),
    "memfd_secret": (447, 447, (0,), EPERM),
}
ONLY_64 = {"iopl": (172, (3,)), "ioperm": (173, (0, 8, 1)), "kexec_file_load": (320, (0, 0, 0, None, 0)),
           "uselib": (134, (text,))}

for name, (number, _, arguments, code) in CALLS.items():
    fails(name, lambda: call(number, *arguments), code)
for name, (number, arguments) in ONLY_64.items():
    fails(name, lambda: call(number, *arguments), EPERM)

# New namespaces, by unshare and by clone.
for name, flag in NEW.items():
    fails(f"unshare {name}", lambda: call(272, flag), EPERM)
    fails(f"clone {name}", lambda: call(56, flag | signal.SIGCHLD, None, None, None, None) or os._exit(0), EPERM)
fails("clone NEWUSER | NEWNS", lambda: call(56, NEW["NEWUSER"] | NEW["NEWNS"] | signal.SIGCHLD, None, None, None, None) or os._exit(0), EPERM)
fails("a namespace of another process", lambda: call(308, os.open("/proc/1/ns/net", os.O_RDONLY), 0))

# Calls with numbers that the filter does not list fail as unknown.
for number in (467, 480, 500, 600, 1000):
    fails(f"the call {number}", lambda: call(number, 0, 0, 0, 0, 0), ENOSYS)

# x32 has the same numbers with bit 30 set.
for name, (number, _, arguments, _) in CALLS.items():
    fails(f"x32 {name}", lambda: call(number | 0x40000000, *arguments), ENOSYS)
for number, name in ((56, "clone"), (41, "socket"), (16, "ioctl"), (514, "ioctl of x32"), (59, "execve"), (520, "execve of x32"), (39, "getpid")):
    fails(f"x32 {name}", lambda: call(number | 0x40000000, 0, 0, 0), ENOSYS)

# i386: machine code that makes a call by the i386 system call table; any program could contain it.
#   push rbx; mov eax, edi; mov ebx, esi; mov ecx, edx; xor edx, edx; xor esi, esi; int 0x80; pop rbx; ret
CODE = bytes.fromhex("53 89f8 89f3 89d1 31d2 31f6 cd80 5b c3")
memory = mmap.mmap(-1, mmap.PAGESIZE, prot=mmap.PROT_READ | mmap.PROT_WRITE | mmap.PROT_EXEC)
memory.write(CODE)
gate = ctypes.CFUNCTYPE(ctypes.c_long, ctypes.c_long, ctypes.c_long, ctypes.c_long)(
    ctypes.addressof(ctypes.c_char.from_buffer(memory)))

def killed(number, first=0, second=0):
    def attempt():
        gate(number, first, second)
    ended = in_child(attempt)
    return os.WIFSIGNALED(ended) and os.WTERMSIG(ended) in (signal.SIGSYS, signal.SIGSEGV) and f"signal {os.WTERMSIG(ended)}"

if MACHINE == "x86_64":
    for name, (_, number, arguments, _) in CALLS.items():
        first = next((a for a in arguments if isinstance(a, int)), 0)
        holds(f"i386 {name}", lambda: killed(number, first))
    for name, number in (("getpid", 20), ("socket", 359), ("socketcall", 102), ("clone", 120), ("ioctl", 54), ("ptrace", 26), ("execve", 11)):
        holds(f"i386 {name}", lambda: killed(number, 1, 1))

# Only sockets of AF_UNIX, AF_INET, AF_INET6 and AF_NETLINK can be created, and no raw sockets of IP.
for family in range(0, 46):
    for kind in (socket.SOCK_STREAM, socket.SOCK_DGRAM, socket.SOCK_RAW, socket.SOCK_SEQPACKET):
        allowed = family in (socket.AF_UNIX, socket.AF_INET, socket.AF_INET6, socket.AF_NETLINK)
        if not allowed:
            fails(f"a socket of family {family}, kind {kind}", lambda: socket.socket(family, kind), EPERM)
            fails(f"a pair of family {family}, kind {kind}", lambda: socket.socketpair(family, kind), EPERM)
for family in (socket.AF_INET, socket.AF_INET6):
    fails(f"a raw socket of {family.name}", lambda: socket.socket(family, socket.SOCK_RAW, socket.IPPROTO_ICMP), EPERM)
    holds(f"a stream of {family.name}", lambda: socket.socket(family, socket.SOCK_STREAM))
fails("family 40 with high bits", lambda: call(41, 40 | 1 << 40, 1, 0), EPERM)
holds("a pair of AF_UNIX", lambda: socket.socketpair())

# Rights that the command does not have, and limits.
status = dict(line.split(":\t", 1) for line in open("/proc/self/status").read().splitlines() if ":\t" in line)
for name in ("CapInh", "CapPrm", "CapEff", "CapBnd", "CapAmb"):
    holds(f"{name} is empty", lambda: int(status[name], 16) == 0)
holds("no_new_privs", lambda: status["NoNewPrivs"] == "1")
holds("seccomp filters", lambda: status["Seccomp"] == "2" and int(status["Seccomp_filters"]) >= 2)
import resource
holds("no core files", lambda: resource.getrlimit(resource.RLIMIT_CORE) == (0, 0))
holds("a bound on processes", lambda: 0 < resource.getrlimit(resource.RLIMIT_NPROC)[1] <= 8192)
holds("a bound on open files", lambda: 0 < resource.getrlimit(resource.RLIMIT_NOFILE)[1] <= 65536)
fails("a higher bound", lambda: call(302, 0, 6, ctypes.create_string_buffer(struct.pack("=QQ", 9000, 9000)), None), EPERM)
fails("another user", lambda: os.setuid(1 if os.getuid() != 1 else 2))
fails("another group", lambda: os.setgroups([0, 1]))

# Operations that programs need still work.
holds("a thread", lambda: __import__("threading").Thread(target=lambda: None).start() is None)
holds("a subprocess", lambda: subprocess.run(["true"]).returncode == 0)
holds("personality", lambda: call(135, 0xFFFFFFFF) >= 0)
holds("a pseudo-terminal", lambda: os.ttyname(os.openpty()[1]).startswith("/dev/pts/"))

def trace():
    """Lets a child stop under ptrace, and continues it."""
    child = os.fork()
    if child == 0:
        call(101, 0, 0, 0, 0)
        os.kill(os.getpid(), signal.SIGSTOP)
        os._exit(7)
    os.waitpid(child, 0)
    call(101, 7, child, 0, 0)
    return os.WEXITSTATUS(os.waitpid(child, 0)[1]) == 7

holds("ptrace of a child process", trace)
