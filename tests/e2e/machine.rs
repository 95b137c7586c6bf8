//! Network namespaces as machines, and threads inside them.

use std::fs::File;
use std::os::fd::AsFd;
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::thread;

use rustix::thread::{LinkNameSpaceType, move_into_link_name_space};

use crate::support::{SOON, eventually};

/// A network namespace: created by [`Self::new`], or opened by [`Self::of`] or [`Self::at`].
/// A child process keeps a created namespace alive. It is killed when the `Machine` is dropped, and
/// by the kernel when the test's thread ends. When a namespace ends, its links, routes and rules go
/// too.
pub struct Machine {
    namespace: File,
    holder: Option<Child>,
}

impl Machine {
    /// Creates a network namespace with loopback up.
    pub fn new() -> Self {
        let own = std::fs::read_link("/proc/self/ns/net").unwrap();
        let holder = Command::new("setpriv")
            .args([
                "--pdeathsig",
                "KILL",
                "unshare",
                "--net",
                "sleep",
                "infinity",
            ])
            .stdin(Stdio::null())
            .spawn()
            .unwrap();
        let path = format!("/proc/{}/ns/net", holder.id());
        eventually("the child has a new network namespace", SOON, || {
            std::fs::read_link(&path).is_ok_and(|link| link != own)
        });
        let machine = Self {
            namespace: File::open(path).unwrap(),
            holder: Some(holder),
        };
        machine.sh("ip link set lo up");
        machine
    }

    /// Opens the network namespace of a running process.
    pub fn of(pid: u32) -> Self {
        Self::at(Path::new(&format!("/proc/{pid}/ns/net")))
    }

    /// Opens the network namespace that a file stands for.
    pub fn at(file: &Path) -> Self {
        Self {
            namespace: File::open(file).unwrap(),
            holder: None,
        }
    }

    /// Pid of the child that keeps the namespace alive; panics if the namespace was opened.
    pub fn pid(&self) -> u32 {
        self.holder.as_ref().unwrap().id()
    }

    /// Runs `body` on a thread in the namespace. Sockets that `body` opens, and threads and
    /// processes that it starts, belong to the namespace.
    pub fn run<T: Send>(&self, body: impl FnOnce() -> T + Send) -> T {
        thread::scope(|scope| {
            let inside = scope.spawn(|| {
                let kind = Some(LinkNameSpaceType::Network);
                move_into_link_name_space(self.namespace.as_fd(), kind).unwrap();
                body()
            });
            match inside.join() {
                Ok(value) => value,
                Err(panic) => std::panic::resume_unwind(panic),
            }
        })
    }

    /// Runs a script with bash in the namespace and returns standard output; panics if it fails.
    #[track_caller]
    pub fn sh(&self, script: &str) -> String {
        let output = self.run(|| Command::new("bash").args(["-ec", script]).output());
        let output = output.unwrap();
        let stderr = String::from_utf8_lossy(&output.stderr);
        assert!(output.status.success(), "{script}: {stderr}");
        String::from_utf8_lossy(&output.stdout).into_owned()
    }
}

impl Drop for Machine {
    fn drop(&mut self) {
        if let Some(holder) = &mut self.holder {
            let _ = holder.kill();
            let _ = holder.wait();
        }
    }
}
