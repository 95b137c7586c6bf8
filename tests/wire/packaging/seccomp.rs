//! The seccomp profile: its rules, and processes under it.

use std::process::Command;

use serde_json::Value;
use testkit::each_row;

use super::{read, root, run, texts};

const PROFILE: &str = "packaging/seccomp/unified-proxy.json";
/// Prefix of the comments on rules that the container engine's default profile lacks.
const OURS: &str = "unified-proxy: ";
/// System calls that the profile allows beyond the container engine's default profile.
const ADDED: [&str; 10] = [
    "clone",
    "mount",
    "mount_setattr",
    "move_mount",
    "open_tree",
    "pivot_root",
    "sethostname",
    "umount",
    "umount2",
    "unshare",
];

fn profile() -> Value {
    serde_json::from_str(&read(PROFILE)).unwrap()
}

#[test]
fn the_profile_adds_only_the_listed_system_calls_to_the_default() {
    let profile = profile();
    assert_eq!(profile["defaultAction"], "SCMP_ACT_ERRNO");
    let rules = profile["syscalls"].as_array().unwrap();
    let is_ours = |rule: &&Value| {
        rule["comment"]
            .as_str()
            .is_some_and(|text| text.starts_with(OURS))
    };
    let mut added: Vec<_> = rules
        .iter()
        .filter(is_ours)
        .flat_map(|rule| texts(&rule["names"]))
        .collect();
    added.sort_unstable();
    assert_eq!(added, ADDED);
    for call in ["clone", "unshare"] {
        let rule = rules
            .iter()
            .filter(is_ours)
            .find(|rule| texts(&rule["names"]).contains(call));
        let flags = rule.unwrap()["args"][0]["value"].as_u64().unwrap();
        assert_ne!(
            flags & 0x0200_0000,
            0,
            "{call}: cgroup namespaces stay forbidden"
        );
    }
    let clone3 = rules.iter().find(|rule| {
        rule["action"] == "SCMP_ACT_ERRNO" && texts(&rule["names"]).contains("clone3")
    });
    assert_eq!(
        clone3.unwrap()["errnoRet"],
        38,
        "with ENOSYS, callers of clone3 fall back to clone"
    );
}

/// A Python with libseccomp's module, which Debian builds for `/usr/bin/python3` only. `None` if
/// there is none; then the summary that `scripts/test` prints says so.
fn python() -> Option<&'static str> {
    let candidates = ["python3", "/usr/bin/python3"];
    let has_module = |python: &&str| {
        let import = Command::new(python).args(["-c", "import seccomp"]).output();
        import.is_ok_and(|output| output.status.success())
    };
    let found = candidates.into_iter().find(has_module);
    if found.is_none() {
        crate::support::left_out("wire", "python3-seccomp", "it is not installed");
    }
    found
}

#[test]
fn a_process_under_the_profile_makes_a_sandbox_but_no_cgroup_or_time_namespace() {
    let Some(python) = python() else { return };
    let sandbox = "unshare --user --map-root-user --net --mount --ipc --uts --pid --fork \
                   sh -c 'mount -t tmpfs none /mnt && hostname sandbox && id -u'";
    let (free, _) = run(Command::new("sh").args(["-c", sandbox]));
    if free != 0 {
        crate::support::left_out(
            "wire",
            "the seccomp profile",
            "user namespaces are forbidden",
        );
        return;
    }
    each_row(
        [
            (sandbox, true),
            ("unshare --user --cgroup true", false),
            ("unshare --user --time true", false),
        ],
        |(command, allowed)| {
            let mut confined = Command::new(python);
            confined
                .arg(root().join("tests/packaging/under_seccomp.py"))
                .arg(root().join(PROFILE));
            let (code, output) = run(confined.args(["sh", "-c", command]));
            assert_eq!(code == 0, allowed, "{output}");
        },
    );
}
