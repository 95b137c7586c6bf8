//! The seccomp profile: its rules, and processes under it.

use std::collections::BTreeSet;
use std::process::Command;

use serde_json::{Value, json};
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

/// The profile of `scripts/sandbox` is the container engine's default profile, except that containers
/// without CAP_SETFCAP cannot set a set-user-ID or set-group-ID bit.
#[test]
fn the_profile_of_scripts_sandbox_is_the_default_without_set_id_bits() {
    let capability = json!({ "caps": ["CAP_SETFCAP"] });
    let checked = |name: &str, argument: u64, mask: u64| {
        let condition = json!({
            "index": argument, "value": mask, "op": "SCMP_CMP_MASKED_EQ", "valueTwo": 0,
        });
        (name.to_owned(), json!([[condition], null, null]))
    };
    // The flags are O_CREAT and the bit that only O_TMPFILE has.
    let (bits, create) = (0o6000, 0o100 | 0o20_000_000);
    let mut expected = vec![
        checked("chmod", 1, bits),
        checked("fchmod", 1, bits),
        checked("fchmodat", 2, bits),
        checked("fchmodat2", 2, bits),
        checked("creat", 1, bits),
        checked("mknod", 1, bits),
        checked("mknodat", 2, bits),
        checked("open", 2, bits),
        checked("open", 1, create),
        checked("openat", 3, bits),
        checked("openat", 2, create),
        ("openat2".to_owned(), json!([null, null, capability])),
    ];
    let changed: BTreeSet<_> = expected.iter().map(|(name, _)| name.clone()).collect();
    let free = changed.iter();
    expected.extend(free.map(|name| (name.clone(), json!([null, capability, null]))));

    let (ours, unchanged) = rules("scripts/sandbox-seccomp.json");
    let mut found = Vec::new();
    for rule in &ours {
        let conditions = json!([rule["args"], rule["includes"], rule["excludes"]]);
        let names = texts(&rule["names"]).into_iter();
        found.extend(names.map(|name| (name.to_owned(), conditions.clone())));
        let unknown = rule["action"] == "SCMP_ACT_ERRNO" && rule["errnoRet"] == 38;
        let expected = if rule["excludes"].is_null() {
            rule["action"] == "SCMP_ACT_ALLOW"
        } else {
            unknown
        };
        assert!(expected, "{rule}");
    }
    let key = |(name, conditions): &(String, Value)| (name.clone(), conditions.to_string());
    found.sort_by_key(key);
    expected.sort_by_key(key);
    assert_eq!(found, expected);
    let (_, mut default) = rules(PROFILE);
    let names = default[0]["names"].as_array_mut().unwrap();
    names.retain(|name| !changed.contains(name.as_str().unwrap()));
    assert_eq!(unchanged, default);
}

/// The rules of a profile that are this project's, and those of the container engine's default.
fn rules(file: &str) -> (Vec<Value>, Vec<Value>) {
    let profile: Value = serde_json::from_str(&read(file)).unwrap();
    assert_eq!(profile["defaultAction"], "SCMP_ACT_ERRNO");
    let rules = profile["syscalls"].as_array().unwrap().iter().cloned();
    rules.partition(|rule| {
        let comment = rule["comment"].as_str();
        comment.is_some_and(|text| text.starts_with(OURS))
    })
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
