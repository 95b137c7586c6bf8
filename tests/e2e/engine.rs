//! A container engine for each test, in a network namespace. The engine's mounts, processes,
//! firewall rules and links end with it, so nothing of the machine changes.

use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::Duration;

use tempfile::TempDir;

use crate::machine::Machine;
use crate::summary::obstacle;
use crate::support::{Ran, Sidecar, eventually, installed, summarize};

/// Time within which an engine must start. A quiet machine needs a second.
const START: Duration = Duration::from_secs(30);
/// Programs of a base image: the shell, and the programs that the Dockerfile's stages run.
const PROGRAMS: &str = "sh install rm groupadd useradd";

/// Starts the engine as the first process of a PID namespace, with its own `/run`. Mounts that the
/// host makes later appear in the engine's mount namespace too, as on a real host.
const ENGINE: &str = r#"
mount -t tmpfs -o mode=0755 run /run
exec dockerd --data-root "$0/data" --exec-root "$0/exec" --pidfile "$0/pid" --host "unix://$0/socket" \
    --cgroup-parent "$1" >"$0/log" 2>&1
"#;

/// Lays out the root of a base image in `$0`: the programs in `$1`, their libraries and those of the
/// test's binary `$2`, two users, and an `apt-get` that does nothing, since tests download nothing.
const BASE: &str = r#"
mkdir -p "$0"/{usr/{bin,sbin,lib,lib64,share},etc/alternatives,tmp,root,home/node,proc,dev,sys,run,var}
for dir in bin sbin lib lib64; do ln -s "usr/$dir" "$0/$dir"; done
ln -s /run "$0/var/run"
chmod 1777 "$0/tmp"
chown 1000:1000 "$0/home/node"
read -ra programs < <(type -P $1 | paste -s)
cp -L "${programs[@]}" "$0/usr/bin/"
for library in $(ldd "$2" "${programs[@]}" | grep -o '\s/[^ ]*' | sort -u); do
    cp -L --parents "$library" "$0"
done
printf '#!/bin/sh\n' >"$0/usr/bin/apt-get"
chmod 0755 "$0/usr/bin/apt-get"
printf 'root:x:0:0::/root:/bin/sh\nnode:x:1000:1000::/home/node:/bin/sh\n' >"$0/etc/passwd"
printf 'root:x:0:\nnode:x:1000:\n' >"$0/etc/group"
"#;

/// Writes `$0/built.tar`, which has what the Dockerfile's stage `build` leaves for the other stages:
/// `image`, laid out as in that stage, and `sidecar`. The binaries `$1` and `$2` are linked
/// dynamically, so their libraries are added.
const BUILT: &str = r#"
cd "$0"
strip --strip-debug -o unified-proxy "$1"
install -D "$2" sidecar/coding-sidecar
mkdir image
packaging="$3/packaging/image/root"
"$packaging" image unified-proxy /etc/ssl/certs/ca-certificates.crt "$3/config" "$3/LICENSE"
for library in $(ldd "$1" "$2" | grep -o '\s/[^ ]*' | sort -u); do
    cp -L --parents "$library" image
done
tar -c image sidecar >built.tar
rm -r image sidecar unified-proxy
"#;

/// Directories of the machine that, mounted at the same paths, give a base image the machine's
/// programs. `/usr/sbin` is not among them, since the engine mounts its `docker-init` there.
pub const MACHINE: [&str; 4] = ["/usr/bin", "/usr/lib", "/usr/share", "/etc/alternatives"];

/// The programs of an engine.
pub struct Release {
    /// Directories whose programs precede those on PATH.
    directories: Vec<PathBuf>,
}

impl Release {
    /// The engine that is installed, with the client beside it: a newer client that precedes it on
    /// PATH may not support the engine.
    pub fn installed() -> Result<Self, String> {
        let path = std::env::var_os("PATH").unwrap_or_default();
        let found = std::env::split_paths(&path).find(|dir| dir.join("dockerd").is_file());
        let missing = "dockerd is not installed; on Debian or Ubuntu: apt-get install docker.io";
        let dir = found.ok_or(missing)?;
        Ok(Self {
            directories: vec![dir.with_file_name("bin"), dir],
        })
    }

    /// The engine of Debian's next release, unpacked below the target directory. It uses runc and
    /// iptables of the installed one.
    pub fn newer() -> Result<Self, String> {
        Self::installed()?;
        let unpacked = unpacked()?.join("usr");
        Ok(Self {
            directories: vec![unpacked.join("sbin"), unpacked.join("bin")],
        })
    }

    fn path(&self) -> String {
        let path = std::env::var_os("PATH").unwrap();
        let first = self.directories.iter().cloned();
        let all = std::env::join_paths(first.chain(std::env::split_paths(&path)));
        all.unwrap().into_string().unwrap()
    }
}

/// Directory with the unpacked packages of Debian's next release: an engine, and compose.
fn unpacked() -> Result<PathBuf, String> {
    let (dir, _lock) = installed::directory("e2e");
    let unpacked = dir.join("newer-engine");
    let script = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/e2e/newer-engine");
    installed::once(&dir, "newer-engine", "testing", || {
        installed::run("newer-engine fails", Command::new(script).arg(&unpacked))
    })?;
    Ok(unpacked)
}

pub struct Engine {
    path: String,
    process: Child,
    dir: TempDir,
    cgroup: String,
}

/// A release, if this machine has one and can run it; if not, the summary has the reason.
pub fn available(test: &str, release: fn() -> Result<Release, String>) -> Option<Release> {
    let release = obstacle().map_or(Ok(()), Err).and_then(|()| release());
    summarize(
        "e2e",
        test,
        &release.as_ref().map(|_| ()).map_err(Clone::clone),
    );
    release.ok()
}

impl Engine {
    /// Starts an engine in a network namespace.
    pub fn start(host: &Machine, release: &Release) -> Self {
        let dir = TempDir::new().unwrap();
        let cgroup = dir.path().file_name().unwrap().to_str().unwrap();
        let cgroup = format!("/unified-proxy-test{cgroup}");
        let net = format!("--net=/proc/{}/ns/net", host.pid());
        let mut process = Command::new("setpriv");
        process
            .args(["--pdeathsig", "KILL", "nsenter", &net])
            .args(["unshare", "--mount", "--propagation", "slave"])
            .args(["--pid", "--fork", "--kill-child", "--mount-proc"])
            .args(["bash", "-euc", ENGINE])
            .arg(dir.path())
            .arg(&cgroup)
            .env("PATH", release.path())
            .stdin(Stdio::null());
        let mut engine = Self {
            path: release.path(),
            process: process.spawn().unwrap(),
            dir,
            cgroup,
        };
        eventually("the engine answers", START, || {
            let ended = engine.process.try_wait().unwrap();
            assert_eq!(ended, None, "{}", engine.log());
            engine.docker(&["version"]).code == Some(0)
        });
        engine
    }

    /// The last lines of the engine's log.
    fn log(&self) -> String {
        let log = fs::read_to_string(self.dir.path().join("log")).unwrap_or_default();
        let lines: Vec<_> = log.lines().collect();
        lines[lines.len().saturating_sub(20)..].join("\n")
    }

    /// A directory that ends with the engine.
    pub fn dir(&self) -> &Path {
        self.dir.path()
    }

    /// Sets the variables with which docker's client uses this engine, and finds compose.
    pub fn adjust<'a>(&self, command: &'a mut Command) -> &'a mut Command {
        let socket = self.dir.path().join("socket");
        command
            .env("PATH", &self.path)
            .env("DOCKER_HOST", format!("unix://{}", socket.display()))
            .env("DOCKER_CONFIG", self.dir.path().join("client"))
            .env("DOCKER_BUILDKIT", "0")
            .stdin(Stdio::null())
    }

    /// Runs docker's client to its end.
    pub fn docker(&self, arguments: &[&str]) -> Ran {
        let mut command = Command::new("docker");
        command.current_dir(env!("CARGO_MANIFEST_DIR"));
        Ran::of(self.adjust(command.args(arguments)))
    }

    /// Runs a script with bash, in the sources' directory.
    pub fn sh(&self, script: &str) -> Ran {
        let mut command = Command::new("bash");
        command.args(["-euc", script]);
        Ran::of(self.adjust(command.current_dir(env!("CARGO_MANIFEST_DIR"))))
    }

    /// Installs the compose plugin of Debian's next release for this engine's client.
    pub fn add_compose(&self) {
        let plugins = self.dir.path().join("client/cli-plugins");
        fs::create_dir_all(&plugins).unwrap();
        let plugin = "usr/libexec/docker/cli-plugins/docker-compose";
        let plugin = unpacked().unwrap().join(plugin);
        std::os::unix::fs::symlink(plugin, plugins.join("docker-compose")).unwrap();
    }

    /// Makes a base image without a registry, and gives it these names.
    pub fn base_image(&self, names: &[&str]) {
        let root = self.dir.path().join("base");
        bash(
            BASE,
            &root,
            &[PROGRAMS, env!("CARGO_BIN_EXE_unified-proxy")],
        );
        let import = format!(
            "tar -C {} -c . | docker import - {}",
            root.display(),
            names[0]
        );
        self.sh(&import).ok();
        for name in &names[1..] {
            self.docker(&["tag", names[0], name]).ok();
        }
    }

    /// Builds stages of the Dockerfile as the images `unified-proxy:STAGE`. The stage `build` is
    /// replaced: the test's binaries stand in for those that it would compile. A base image stands in
    /// for Node's. The engine's builder would build further stages too, so the others are left out.
    pub fn build_images(&self, stages: &[&str]) {
        self.base_image(&["node:22-bookworm-slim", "node:22-bookworm"]);
        let context = self.dir.path().join("context");
        fs::create_dir(&context).unwrap();
        let sources = env!("CARGO_MANIFEST_DIR");
        let sidecar = Sidecar::binary().to_str().unwrap();
        bash(
            BUILT,
            &context,
            &[env!("CARGO_BIN_EXE_unified-proxy"), sidecar, sources],
        );
        let file = fs::read_to_string(Path::new(sources).join("Dockerfile")).unwrap();
        let all: Vec<_> = file.split("\nFROM ").collect();
        for name in stages {
            let ends = format!(" AS {name}");
            let stage = all
                .iter()
                .find(|stage| stage.lines().next().unwrap().ends_with(&ends));
            let stage = stage.unwrap();
            let file = format!("FROM scratch AS build\nADD built.tar /\nFROM {stage}");
            fs::write(context.join("Dockerfile"), file).unwrap();
            let tag = format!("unified-proxy:{name}");
            self.docker(&["build", "--tag", &tag, context.to_str().unwrap()])
                .ok();
        }
    }

    /// A property of a container, as a Go template of `docker inspect`.
    pub fn inspect(&self, container: &str, template: &str) -> String {
        let said = self.docker(&["inspect", "--format", template, container]);
        said.ok().trim().to_owned()
    }

    /// The network namespace of a container, in which the test is root.
    pub fn machine(&self, container: &str) -> Machine {
        let unshare = self.process.id();
        let children = format!("/proc/{unshare}/task/{unshare}/children");
        let engine = fs::read_to_string(children).unwrap();
        let key = self.inspect(container, "{{.NetworkSettings.SandboxKey}}");
        // `/var/run` is a link to the test's `/run`, not to the engine's.
        let key = key.replace("/var/run/", "/run/");
        Machine::at(Path::new(&format!("/proc/{}/root{key}", engine.trim())))
    }
}

impl Drop for Engine {
    fn drop(&mut self) {
        if std::thread::panicking() {
            let said = self.sh("docker ps --all; for id in $(docker ps --all --quiet); do docker logs --tail 20 $id; done");
            eprintln!("--- containers ---\n{}{}", said.stdout, said.stderr);
            eprintln!("--- log of the engine ---\n{}", self.log());
        }
        let _ = self.process.kill();
        let _ = self.process.wait();
        // The kernel kills all processes of the engine's PID namespace. Then their cgroups, for which no
        // namespace exists, can be removed.
        let remove = format!(
            "for i in $(seq 100); do
                 find /sys/fs/cgroup -depth -type d -path '*{0}*' -exec rmdir {{}} + 2>/dev/null && exit
                 sleep 0.1
             done",
            self.cgroup
        );
        let _ = Command::new("bash").args(["-c", &remove]).status();
    }
}

/// Runs a script with bash, which gets a directory as `$0`.
fn bash(script: &str, dir: &Path, arguments: &[&str]) {
    let mut command = Command::new("bash");
    command.args(["-euo", "pipefail", "-c", script]).arg(dir);
    Ran::of(command.args(arguments)).ok();
}

/// Writes a file that every user may read.
pub fn write_public(path: &Path, text: &str) {
    fs::write(path, text).unwrap();
    fs::set_permissions(path, fs::Permissions::from_mode(0o644)).unwrap();
}
