//! The systemd unit, with and without the drop-in for MCP servers over stdio.

use std::fs;
use std::path::Path;
use std::process::Command;

use regex::Regex;
use testkit::each_row;

use super::{program, read, root, run};

const UNIT: &str = "unified-proxy.service";
const DROP_IN: &str = "mcp-stdio.conf";

/// A directory with the unit and, if `drop_in` is true, the drop-in.
fn directory(drop_in: bool) -> tempfile::TempDir {
    let directory = tempfile::tempdir().unwrap();
    let packaged = root().join("packaging/systemd");
    fs::copy(packaged.join(UNIT), directory.path().join(UNIT)).unwrap();
    if drop_in {
        let drop_ins = directory.path().join(format!("{UNIT}.d"));
        fs::create_dir(&drop_ins).unwrap();
        fs::copy(packaged.join(DROP_IN), drop_ins.join(DROP_IN)).unwrap();
    }
    directory
}

/// The exposure level by `systemd-analyze security`, from 0.0 (safe) to 10.0.
fn exposure(analyze: &Path, drop_in: bool) -> f64 {
    let directory = directory(drop_in);
    let mut security = Command::new(analyze);
    security.args(["security", "--offline=true", "--no-pager"]);
    let (code, output) = run(security.arg(directory.path().join(UNIT)));
    assert_eq!(code, 0, "{output}");
    let level = Regex::new(r"Overall exposure level for \S+: (\d+\.\d)").unwrap();
    level.captures(&output).unwrap()[1].parse().unwrap()
}

#[test]
fn the_exposure_level_of_the_unit_is_low_with_and_without_mcp_servers() {
    let Some(analyze) = program("systemd-analyze") else {
        return;
    };
    each_row([(false, 2.0), (true, 2.5)], |(drop_in, below)| {
        let exposure = exposure(&analyze, drop_in);
        assert!(
            exposure < below,
            "the exposure is {exposure}, not below {below}"
        );
    });
}

#[test]
fn systemd_analyze_finds_no_fault_in_the_unit() {
    let Some(analyze) = program("systemd-analyze") else {
        return;
    };
    each_row([false, true], |drop_in| {
        let directory = directory(drop_in);
        let unit = directory.path().join(UNIT);
        // `verify` fails if the program of the unit does not exist.
        let text = fs::read_to_string(&unit).unwrap();
        let binary = env!("CARGO_BIN_EXE_unified-proxy");
        fs::write(&unit, text.replace("/usr/bin/unified-proxy", binary)).unwrap();
        let (code, output) = run(Command::new(&analyze)
            .args(["verify", "--man=no"])
            .arg(unit));
        let about_ours: Vec<_> = output
            .lines()
            .filter(|line| line.contains("unified-proxy"))
            .collect();
        assert!(code == 0 && about_ours.is_empty(), "{output}");
    });
}

#[test]
fn the_unit_has_the_lines_for_its_rights_reload_restart_and_runtime_directory() {
    let unit = read("packaging/systemd/unified-proxy.service");
    each_row(
        [
            "User=unified-proxy",
            "AmbientCapabilities=CAP_NET_BIND_SERVICE",
            "CapabilityBoundingSet=CAP_NET_BIND_SERVICE",
            "NoNewPrivileges=true",
            "ExecReload=/bin/kill -HUP $MAINPID",
            "RestartPreventExitStatus=64 78",
            "RuntimeDirectory=proxy",
            "RuntimeDirectoryMode=0700",
        ],
        |line| assert!(unit.lines().any(|present| present == line), "{line}"),
    );
}
