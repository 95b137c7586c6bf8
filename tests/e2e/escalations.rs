//! Attempts to leave files that raise the rights of a user of the host, or that are devices.

use std::path::Path;
use std::process::Command;

/// Python program that makes the attempts in its working directory. It prints the names of those that
/// succeed.
pub const SCRIPT: &str = include_str!("escalations.py");
/// Attempts that succeed for root on a host: all except those that only newer kernels know, or that
/// need `/usr` and the working directory on one file system.
pub const POSSIBLE: usize = 18;

/// Number of files with a set-user-ID or set-group-ID bit or with capabilities, and of devices, below a
/// directory.
pub fn privileged(dir: &Path) -> usize {
    let capabilities = "import os, sys\n\
        for file in sys.argv[1:]: 'security.capability' in os.listxattr(file) and print(file)";
    let find = format!(
        "cd {}; find -type f -perm /6000; find -type b; find -type c
         find -type f -exec python3 -c \"{capabilities}\" {{}} +",
        dir.display()
    );
    let found = Command::new("bash").args(["-ec", &find]).output().unwrap();
    assert!(found.status.success(), "{found:?}");
    String::from_utf8(found.stdout).unwrap().lines().count()
}
