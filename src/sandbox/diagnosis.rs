//! Finds out why this machine does not allow a sandbox, and gives advice.

use std::fs;
use std::io;
use std::path::Path;

use super::handle::Refused;
use super::machine::CERTIFICATES;
use crate::exit_code as code;

const APPARMOR: &str = "/proc/sys/kernel/apparmor_restrict_unprivileged_userns";
const DEBIAN: &str = "/proc/sys/kernel/unprivileged_userns_clone";
const MAXIMUM: &str = "/proc/sys/user/max_user_namespaces";

/// Like [`Refused::internal`], for a step that the machine's settings may forbid. The refusal has
/// the exit code of an unavailable service, and advice on the setting that is the likely cause.
pub fn refused<E: Into<io::Error>>(step: &str) -> impl FnOnce(E) -> Refused {
    move |error| {
        let error: io::Error = error.into();
        let advice = advice(&Machine::look());
        Refused {
            code: code::UNAVAILABLE,
            message: format!("cannot make a sandbox: {step}: {error}: {advice}"),
        }
    }
}

/// The machine's settings for user namespaces; a field is `None` if the kernel does not have that
/// setting.
#[derive(Debug, Default)]
struct Machine {
    apparmor: Option<String>,
    debian: Option<String>,
    maximum: Option<String>,
    /// Whether a seccomp filter is in force, as in most containers.
    filtered: bool,
    /// Whether there are the proxy's certificates, as in sandboxes of `scripts/sandbox`.
    is_sandbox: bool,
}

impl Machine {
    fn look() -> Self {
        let read = |path| {
            fs::read_to_string(path)
                .ok()
                .map(|text| text.trim().to_owned())
        };
        let status = fs::read_to_string("/proc/self/status").unwrap_or_default();
        Self {
            apparmor: read(APPARMOR),
            debian: read(DEBIAN),
            maximum: read(MAXIMUM),
            filtered: status.lines().any(|line| line == "Seccomp:\t2"),
            is_sandbox: Path::new(CERTIFICATES).is_dir(),
        }
    }
}

fn advice(machine: &Machine) -> &'static str {
    if machine.is_sandbox {
        return "this is a sandbox of unified-proxy already: start the command without \
                `unified-proxy run`, or start it on the host";
    }
    if machine.maximum.as_deref() == Some("0") {
        return "user namespaces are switched off (sysctl user.max_user_namespaces is 0): \
                set it to 10000 or so";
    }
    if machine.debian.as_deref() == Some("0") {
        return "only root may create user namespaces (sysctl \
                kernel.unprivileged_userns_clone is 0): set it to 1";
    }
    if machine.filtered {
        return "a seccomp filter is in force, probably the container's default profile: start the \
                container with packaging/seccomp/unified-proxy.json as its profile";
    }
    if machine.apparmor.as_deref() == Some("1") {
        return "AppArmor restricts user namespaces (sysctl \
                kernel.apparmor_restrict_unprivileged_userns is 1): install \
                packaging/apparmor/unified-proxy, which allows them to this program";
    }
    "user namespaces, and mounts in them, must be allowed; a container also needs an unmasked \
     /proc (docs/sandboxes.md)"
}

#[cfg(test)]
mod tests {
    use testkit::each_row;

    use super::*;

    #[test]
    fn the_setting_that_forbids_user_namespaces_is_named_with_its_remedy() {
        let text = |text: &str| Some(text.to_owned());
        each_row(
            [
                (
                    Machine {
                        maximum: text("0"),
                        ..Machine::default()
                    },
                    "user.max_user_namespaces",
                ),
                (
                    Machine {
                        debian: text("0"),
                        ..Machine::default()
                    },
                    "kernel.unprivileged_userns_clone",
                ),
                (
                    Machine {
                        apparmor: text("1"),
                        maximum: text("96365"),
                        ..Machine::default()
                    },
                    "packaging/apparmor/unified-proxy",
                ),
                (
                    Machine {
                        filtered: true,
                        apparmor: text("1"),
                        ..Machine::default()
                    },
                    "packaging/seccomp/unified-proxy.json",
                ),
                (
                    Machine {
                        is_sandbox: true,
                        filtered: true,
                        ..Machine::default()
                    },
                    "without `unified-proxy run`",
                ),
                (Machine::default(), "must be allowed"),
            ],
            |(machine, part)| {
                let advice = advice(&machine);
                assert!(advice.contains(part), "{advice}");
            },
        );
    }
}
