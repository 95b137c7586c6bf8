//! Attempts to reach processes, shared memory and descriptors of the host.

use std::process::{Child, Command, Stdio};
use std::time::Duration;

use crate::attempts::{check, python};
use crate::fixture::Person;
use crate::processes;

/// A process of the same user outside the sandbox.
struct Bystander(Child);

impl Bystander {
    fn start(person: &Person) -> Self {
        let child = person
            .outside("sleep")
            .arg("1000")
            .env("OUTSIDE", "bystander")
            .spawn()
            .unwrap();
        std::thread::sleep(Duration::from_millis(50));
        Self(child)
    }
}

impl Drop for Bystander {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// Python code with attempts on the processes whose pids are the arguments.
const REACH: &str = r#"
PIDS = [int(pid) for pid in sys.argv[1:]]
room = ctypes.create_string_buffer(64)

class Vector(ctypes.Structure):
    _fields_ = [("base", ctypes.c_void_p), ("length", ctypes.c_size_t)]

local, remote = Vector(ctypes.addressof(room), 64), Vector(ctypes.addressof(room), 64)
for pid in PIDS:
    holds(f"{pid} is not listed", lambda: str(pid) not in os.listdir("/proc"))
    fails(f"{pid}: its environment", lambda: open(f"/proc/{pid}/environ").read())
    fails(f"{pid}: its directory", lambda: os.listdir(f"/proc/{pid}/cwd"))
    fails(f"{pid}: its root", lambda: os.listdir(f"/proc/{pid}/root"))
    fails(f"{pid}: its memory", lambda: open(f"/proc/{pid}/mem", "rb"))
    fails(f"{pid}: a signal", lambda: os.kill(pid, 0), errno.ESRCH)
    fails(f"{pid}: a signal to its group", lambda: os.killpg(pid, 0), errno.ESRCH)
    fails(f"{pid}: a pidfd", lambda: os.pidfd_open(pid))
    fails(f"{pid}: ptrace", lambda: call(101, 16, pid, 0, 0))
    fails(f"{pid}: PTRACE_SEIZE", lambda: call(101, 0x4206, pid, 0, 0))
    fails(f"{pid}: reading its memory", lambda: call(310, pid, ctypes.byref(local), 1, ctypes.byref(remote), 1, 0))
    fails(f"{pid}: writing its memory", lambda: call(311, pid, ctypes.byref(local), 1, ctypes.byref(remote), 1, 0))
    fails(f"{pid}: its priority", lambda: os.getpriority(os.PRIO_PROCESS, pid))
    fails(f"{pid}: its processors", lambda: os.sched_getaffinity(pid))
    fails(f"{pid}: its limits", lambda: call(302, pid, 7, 0, room))
holds("few processes exist", lambda: len([name for name in os.listdir("/proc") if name.isdigit()]) < 6)
holds("the PID of the command is small", lambda: os.getpid() < 100 and os.getppid() == 1)

# PID 1 belongs to `run`, and the command has no access to it.
for name in ("exe", "cwd", "root", "fd/0", "ns/net"):
    fails(f"PID 1: {name}", lambda: os.readlink(f"/proc/1/{name}"))
for name in ("environ", "mem", "maps"):
    fails(f"PID 1: {name}", lambda: open(f"/proc/1/{name}", "rb").read(1))
fails("PID 1: ptrace", lambda: call(101, 16, 1, 0, 0))
fails("PID 1: its memory", lambda: call(310, 1, ctypes.byref(local), 1, ctypes.byref(remote), 1, 0))
fails("PID 1: duplicating its descriptor 0", lambda: call(438, os.pidfd_open(1), 0, 0))
os.kill(1, signal.SIGKILL)
os.kill(1, signal.SIGTERM)
holds("PID 1 cannot be killed from inside", lambda: os.path.exists("/proc/1/status"))

# `kill(-1)` leaves out PID 1 and the caller. The command can signal no other process, not even as root.
fails("a signal to every process", lambda: os.kill(-1, 0), errno.ESRCH)
"#;

#[test]
fn no_process_of_the_host_exists_inside() {
    for person in super::people() {
        let bystander = Bystander::start(&person);
        let (other, ours) = (bystander.0.id(), std::process::id());
        // The attempts assume that no process inside has one of these pids; pids inside are small.
        assert!(other > 100 && ours > 100);
        check(
            &person,
            &[],
            REACH,
            &[&other.to_string(), &ours.to_string()],
            40,
        );
        assert!(processes::runs(other));
    }
}

#[test]
fn at_least_six_attempts_on_processes_work_outside() {
    let Some(person) = Person::new() else { return };
    let bystander = Bystander::start(&person);
    let pid = bystander.0.id().to_string();
    let command = python(REACH, &[&pid]);
    // Leaves out the attempts on PID 1, which is the host's init outside.
    let script = command[3]
        .split("holds(\"few processes")
        .next()
        .unwrap()
        .to_owned()
        + "\nfinish()\n";
    let ran = crate::support::Ran::of(person.outside("python3").args(["-I", "-c", &script, &pid]));
    let rows = crate::attempts::rows(&ran);
    let worked = rows.iter().filter(|row| row.said.starts_with("it worked"));
    // Not all attempts work outside: with Yama, only an ancestor may attach with ptrace.
    assert!(worked.count() >= 6, "{rows:?}");
}

const MEMORY: &str = r#"
key, name = int(sys.argv[1]), sys.argv[2]
fails("a segment of System V", lambda: call(29, key, 0, 0), errno.ENOENT)
fails("a semaphore of System V", lambda: call(64, key, 0, 0), errno.ENOENT)
fails("a queue of System V", lambda: call(68, key, 0), errno.ENOENT)
fails("shared memory of POSIX", lambda: open(f"/dev/shm/{name}", "rb"), errno.ENOENT)
holds("no segment is listed", lambda: len(open("/proc/sysvipc/shm").readlines()) == 1)
holds("creating a segment", lambda: call(29, 0, 4096, 0o1600) >= 0)
"#;

#[test]
fn shared_memory_of_the_host_is_not_visible() {
    let Some(person) = Person::new() else { return };
    let name = format!("of-the-host-{}", std::process::id());
    let key = std::process::id() as i32;
    let make = format!(
        "import ctypes\nlibc = ctypes.CDLL(None)\nids = [libc.shmget({key}, 4096, 0o1666), libc.semget({key}, 1, 0o1666), libc.msgget({key}, 0o1666)]\n\
         assert min(ids) >= 0, ids\nopen('/dev/shm/{name}', 'w').write('x')\nprint('ready', flush=True)\nimport sys; sys.stdin.read()\n\
         import os; libc.shmctl(ids[0], 0, None); libc.semctl(ids[1], 0, 0); libc.msgctl(ids[2], 0, None); os.unlink('/dev/shm/{name}')"
    );
    let mut host = person.outside("python3");
    host.args(["-c", &make])
        .stdin(Stdio::piped())
        .stdout(Stdio::piped());
    let mut host = host.spawn().unwrap();
    let mut ready = [0; 6];
    std::io::Read::read_exact(host.stdout.as_mut().unwrap(), &mut ready).unwrap();
    check(&person, &[], MEMORY, &[&key.to_string(), &name], 6);
    drop(host.stdin.take());
    assert!(host.wait().unwrap().success());
}

#[test]
fn no_descriptor_but_the_three_streams_is_inherited() {
    let Some(person) = Person::new() else { return };
    let secret = person.base().join("inherited");
    std::fs::write(&secret, "secret").unwrap();
    let inner = person.command(&[], &["ls", "/proc/self/fd"]);
    let open = format!(
        "exec 3<{0} 5<>{0} 19<{0} 100<{0} 200</; exec \"$@\"",
        secret.display()
    );
    let mut outer = Command::new("bash");
    outer
        .args(["-c", &open, "bash"])
        .arg(inner.get_program())
        .args(inner.get_args());
    outer.env_clear().envs(
        inner
            .get_envs()
            .filter_map(|(name, value)| Some((name, value?))),
    );
    let ran = crate::support::Ran::of(outer.current_dir(person.work()).stdin(Stdio::null()));
    // Descriptor 3 is the directory that `ls` reads.
    assert_eq!(ran.ok(), "0\n1\n2\n3\n");
}
