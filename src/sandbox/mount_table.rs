//! Parses the kernel's table of mounts.

use std::ffi::OsString;
use std::io;
use std::os::unix::ffi::OsStringExt;
use std::path::PathBuf;

use rustix::mount::MountFlags;

/// A mount of this process's namespace.
#[derive(Debug, PartialEq, Eq)]
pub struct Mount {
    pub at: PathBuf,
    /// The mount's flags. A remount must repeat them: the kernel refuses to clear flags of mounts
    /// that come from the machine's mount namespace (mount_namespaces(7)).
    pub flags: MountFlags,
}

/// Reads all mounts, in the order of `table`, which is the text of a `mountinfo` file (proc(5)).
pub fn read(table: &str) -> io::Result<Vec<Mount>> {
    let broken = || io::Error::other("a line of mountinfo has fewer than six fields");
    table
        .lines()
        .map(|line| {
            let mut fields = line.split(' ').skip(4);
            let at = fields.next().ok_or_else(broken)?;
            let options = fields.next().ok_or_else(broken)?;
            Ok(Mount {
                at: unescape(at),
                flags: options.split(',').filter_map(flag).collect(),
            })
        })
        .collect()
}

fn flag(option: &str) -> Option<MountFlags> {
    Some(match option {
        "ro" => MountFlags::RDONLY,
        "nosuid" => MountFlags::NOSUID,
        "nodev" => MountFlags::NODEV,
        "noexec" => MountFlags::NOEXEC,
        "noatime" => MountFlags::NOATIME,
        "nodiratime" => MountFlags::NODIRATIME,
        "relatime" => MountFlags::RELATIME,
        "nosymfollow" => MountFlags::NOSYMFOLLOW,
        _ => return None,
    })
}

/// Decodes white space and backslashes, which are escaped as a backslash with three octal digits.
fn unescape(text: &str) -> PathBuf {
    let mut bytes = Vec::with_capacity(text.len());
    let mut rest = text.as_bytes();
    while let Some((first, after)) = rest.split_first() {
        let octal = after.get(..3).filter(|_| *first == b'\\');
        let octal = octal.and_then(|digits| std::str::from_utf8(digits).ok());
        match octal.and_then(|digits| u8::from_str_radix(digits, 8).ok()) {
            Some(byte) => {
                bytes.push(byte);
                rest = after.get(3..).unwrap_or_default();
            }
            None => {
                bytes.push(*first);
                rest = after;
            }
        }
    }
    OsString::from_vec(bytes).into()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_mount_is_read_with_its_flags_and_with_spaces_in_its_path() {
        let table = "36 35 98:0 /mnt1 /a\\040b\\134c rw,nosuid,relatime master:1 - ext3 /dev/root rw\n\
                     37 36 0:1 / /proc ro - proc proc ro\n";
        let expected = [
            Mount {
                at: "/a b\\c".into(),
                flags: MountFlags::NOSUID | MountFlags::RELATIME,
            },
            Mount {
                at: "/proc".into(),
                flags: MountFlags::RDONLY,
            },
        ];
        assert_eq!(read(table).unwrap(), expected);
    }

    #[test]
    fn a_truncated_table_is_an_error() {
        assert!(read("36 35 98:0").is_err());
    }
}
