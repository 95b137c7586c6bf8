//! The Dockerfile, the build context and the binary with only the image's files.

use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::Path;
use std::process::Command;

use regex::Regex;
use testkit::each_row;

use super::{read, root, run};

/// Name and instructions of each stage of the Dockerfile, with continuation lines joined.
fn stages() -> Vec<(String, Vec<String>)> {
    let text = read("Dockerfile").replace("\\\n", " ");
    let mut stages: Vec<(String, Vec<String>)> = Vec::new();
    for line in text
        .lines()
        .filter(|line| !line.is_empty() && !line.starts_with('#'))
    {
        if line.starts_with("FROM ") {
            let name = line.split(" AS ").nth(1).unwrap();
            stages.push((name.to_owned(), Vec::new()));
        }
        let (_, instructions) = stages.last_mut().unwrap();
        instructions.push(line.split_whitespace().collect::<Vec<_>>().join(" "));
    }
    stages
}

#[test]
fn both_images_run_as_a_numeric_user_and_have_a_health_check() {
    let stages = stages();
    let (last, _) = stages.last().unwrap();
    assert_eq!(
        last, "appliance",
        "a build without --target makes the last stage"
    );
    each_row(["appliance", "tools"], |name| {
        let (_, stage) = stages.iter().find(|(stage, _)| stage == name).unwrap();
        for instruction in [
            "USER 65532:65532",
            "HEALTHCHECK --interval=5s --timeout=3s --retries=3 --start-period=15s CMD [\"/usr/bin/unified-proxy\", \"health\"]",
            "ENTRYPOINT [\"/usr/bin/unified-proxy\"]",
            "CMD [\"serve\"]",
        ] {
            assert!(
                stage.iter().any(|line| line == instruction),
                "{instruction}"
            );
        }
    });
    let (_, appliance) = stages.last().unwrap();
    assert_eq!(appliance[0], "FROM scratch AS appliance");
    assert!(
        !read("Dockerfile").contains("setcap"),
        "the image sets no file capabilities"
    );
}

/// A name with a host would select a registry other than the default one.
#[test]
fn base_images_have_plain_names() {
    let plain = Regex::new(r"^FROM (scratch|[a-z]+:[a-z0-9.-]+) AS [a-z-]+$").unwrap();
    for (name, stage) in stages() {
        assert!(plain.is_match(&stage[0]), "{name}: {}", stage[0]);
    }
}

/// Made by `scripts/release profile` and not committed. The build does without it.
const PROFILE: &str = "packaging/unified-proxy.profdata";

/// Copies the build context. Panics unless `*` is the first pattern of `.dockerignore`. Takes each
/// further line that begins with `!` as a path without wildcards, and ignores the other lines.
fn copy_context(to: &Path) {
    let ignore = read(".dockerignore");
    let mut lines = ignore.lines().filter(|line| !line.starts_with('#'));
    assert_eq!(lines.next(), Some("*"));
    for kept in lines.filter_map(|line| line.strip_prefix('!')) {
        if kept == PROFILE && !root().join(kept).exists() {
            continue;
        }
        assert!(
            root().join(kept).exists(),
            ".dockerignore keeps {kept}, which does not exist"
        );
        let there = to.join(kept);
        fs::create_dir_all(there.parent().unwrap()).unwrap();
        let (code, output) = run(Command::new("cp")
            .arg("-r")
            .args([root().join(kept), there]));
        assert_eq!(code, 0, "{output}");
    }
}

#[test]
fn the_build_context_holds_what_the_build_needs_and_no_secret() {
    let context = tempfile::tempdir().unwrap();
    copy_context(context.path());
    let mut metadata = Command::new(env!("CARGO"));
    metadata.args([
        "metadata",
        "--format-version=1",
        "--locked",
        "--offline",
        "--no-deps",
    ]);
    let (code, output) = run(metadata.current_dir(context.path()));
    assert_eq!(code, 0, "{output}");
    for needed in [
        "scripts/release",
        "scripts/licences",
        "packaging/image/root",
        "config/proxy.yaml",
    ] {
        let mode = fs::metadata(context.path().join(needed))
            .unwrap()
            .permissions()
            .mode();
        let is_script = !needed.contains('.');
        assert_eq!(mode & 0o111 != 0, is_script, "{needed}: {mode:o}");
    }
    for secret in [".git", ".unified-proxy", "credentials.env", "target"] {
        assert!(!context.path().join(secret).exists(), "{secret}");
    }
}

/// A debug build is dynamically linked, so `image.py` also copies the binary's libraries into the
/// image. `scripts/release` runs `image.py` for the static binary.
#[test]
fn the_binary_serves_as_an_unprivileged_user_with_only_the_files_of_the_image() {
    let mut image = Command::new("python3");
    image.arg(root().join("tests/packaging/image.py"));
    let (code, output) = run(image.arg(env!("CARGO_BIN_EXE_unified-proxy")));
    if output.contains("unshare: Operation not permitted") {
        crate::support::left_out("wire", "the image", "user namespaces are forbidden");
        return;
    }
    assert_eq!(code, 0, "{output}");
    for step in [
        "healthy after",
        "refuses an unregistered source",
        "SIGTERM ends the server",
    ] {
        assert!(output.contains(step), "{step}: {output}");
    }
}
