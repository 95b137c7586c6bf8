//! Attempts to write outside the working directory.

use std::fs;
use std::path::Path;

use super::people;
use crate::attempts::check;

const WRITES: &str = r#"
name = f"planted-{sys.argv[1]}"
home, other = sys.argv[2], sys.argv[3]

def require_set_id_bit(path):
    if not os.lstat(path).st_mode & 0o6000:
        raise OSError(errno.EPERM, "the file has neither set-user-ID nor set-group-ID")

def write(path):
    with open(path, "w") as file:
        file.write("0")

for directory in ("/", "/etc", "/etc/profile.d", "/usr", "/usr/bin", "/usr/local/bin", "/opt", "/var",
                  "/var/lib/dpkg", "/var/spool/cron", "/boot", "/root", "/home", "/srv", "/mnt", "/sys", "/dev",
                  "/proc", "/run/unified-proxy/certs", other):
    fails(f"a file in {directory}", lambda: write(f"{directory}/{name}"))
for path in ("/etc/passwd", "/etc/hosts", "/etc/resolv.conf", "/etc/ssl/certs/ca-certificates.crt", "/usr/bin/env",
             "/run/unified-proxy/certs/ca.pem", "/proc/sysrq-trigger", "/proc/sys/kernel/hostname",
             "/proc/sys/kernel/core_pattern", "/proc/sys/vm/drop_caches", "/proc/sys/net/ipv4/ip_forward",
             "/proc/sys/user/max_user_namespaces", "/proc/sys/fs/binfmt_misc/register", "/proc/irq/default_smp_affinity",
             "/proc/1/mem", "/dev/kmsg", "/dev/mem", "/dev/vda", "/dev/sda"):
    fails(f"the file {path}", lambda: write(path))
    fails(f"removing {path}", lambda: os.unlink(path))
fails("renaming a directory of the system", lambda: os.rename("/usr/bin", "/usr/nib"))
fails("a device", lambda: os.mknod("device", stat.S_IFCHR | 0o666, os.makedev(1, 1)), errno.EPERM)
fails("a device in /dev/shm", lambda: os.mknod("/dev/shm/device", stat.S_IFBLK | 0o666, os.makedev(254, 0)), errno.EPERM)
fails("another root", lambda: os.chroot("/tmp"), errno.EPERM)
fails("another host name", lambda: socket.sethostname("x"), errno.EPERM)

# A set-user-ID program would give other users this user's rights, so setting the bit must fail.
open("own", "w").close()
for mode in (0o4755, 0o2755, 0o6755):
    fails(f"the mode {mode:o} by chmod", lambda: os.chmod("own", mode), errno.EPERM)
    fails(f"the mode {mode:o} by fchmod", lambda: os.fchmod(os.open("own", os.O_RDONLY), mode), errno.EPERM)
    fails(f"the mode {mode:o} by fchmodat", lambda: call(53 if os.uname().machine == "aarch64" else 268, -100, b"own", mode), errno.EPERM)
    fails(f"the mode {mode:o} by fchmodat2", lambda: call(452, -100, b"own", mode, 0))
    fails(f"the mode {mode:o} at open", lambda: (os.close(os.open(f"made-{mode}", os.O_CREAT | os.O_WRONLY, mode)), require_set_id_bit(f"made-{mode}")))
    fails(f"the mode {mode:o} at mknod", lambda: (os.mknod(f"node-{mode}", stat.S_IFREG | mode), require_set_id_bit(f"node-{mode}")))

# The working directory and the sandbox's own directories can be written to.
for directory in (".", home, "/tmp", "/var/tmp", "/dev/shm", "/run/lock"):
    holds(f"the sandbox's own {directory}", lambda: write(f"{directory}/{name}") or True)
holds("a program in /tmp is started", lambda: subprocess.run(["sh", "-c", "cp /bin/true /tmp/t && /tmp/t"]).returncode == 0)
"#;

#[test]
fn nothing_outside_the_working_directory_can_be_written_to() {
    for person in people() {
        let other = person.base().join("other");
        fs::create_dir(&other).unwrap();
        person.own(&other);
        let mark = person
            .base()
            .file_name()
            .unwrap()
            .to_str()
            .unwrap()
            .to_owned();
        let home = person.home();
        let arguments = [&mark, home.to_str().unwrap(), other.to_str().unwrap()];
        check(&person, &[], WRITES, &arguments, 85);
        let planted = format!("planted-{mark}");
        assert!(person.work().join(&planted).is_file());
        for directory in [
            "/",
            "/etc",
            "/tmp",
            "/var/tmp",
            "/dev/shm",
            "/run/lock",
            "/run",
        ] {
            assert!(!Path::new(directory).join(&planted).exists(), "{directory}");
        }
        for directory in [person.home(), person.base().to_owned(), other] {
            assert!(
                !directory.join(&planted).exists(),
                "{}",
                directory.display()
            );
        }
    }
}

#[test]
fn write_and_read_flags_open_only_their_directories() {
    for person in people() {
        let (write, read) = (person.directory("opened"), person.directory("shown/below"));
        fs::write(read.join("text"), "shown").unwrap();
        let hooks = person.directory("opened/.git/hooks");
        fs::write(
            person.home().join("opened/.git/HEAD"),
            "ref: refs/heads/main\n",
        )
        .unwrap();
        person.directory("opened/.git/objects");
        let script = r#"
write, read = sys.argv[1:3]
holds("the opened directory", lambda: open(f"{write}/made", "w").write("x"))
holds("the shown directory", lambda: open(f"{read}/text").read() == "shown")
fails("writing to the shown directory", lambda: open(f"{read}/made", "w"), errno.EROFS)
fails("writing to the shown file", lambda: open(f"{read}/text", "w"), errno.EROFS)
fails("a file beside them", lambda: open(f"{write}/../{os.path.basename(read)}x/made", "w"))
fails("a hook in the opened directory", lambda: open(f"{write}/.git/hooks/pre-commit", "w"), errno.EROFS)
fails("settings in the opened directory", lambda: os.mkdir(f"{write}/.vscode/x"), errno.EROFS)
"#;
        let (write_flag, read_flag) = (write.to_str().unwrap(), read.to_str().unwrap());
        let flags = ["--write", write_flag, "--read", read_flag];
        check(&person, &flags, script, &[write_flag, read_flag], 7);
        assert!(write.join("made").is_file());
        assert_eq!(fs::read_dir(hooks).unwrap().count(), 0);
        assert!(!write.join(".vscode").exists());
    }
}
