//! Replaces a file atomically.

use std::fs::{self, File};
use std::io::{self, Write};
use std::os::unix::fs::{MetadataExt, PermissionsExt, fchown};
use std::path::{Path, PathBuf};

use addons::contract::{FileVersion, Replacement};
use rustix::fs::{AtFlags, CWD, StatxAttributes, StatxFlags, statx};
use tempfile::NamedTempFile;

use super::version;

/// A temporary file in the directory of the file that it will replace.
pub struct TempBeside {
    file: NamedTempFile,
    target: PathBuf,
}

impl TempBeside {
    /// Creates the temporary file. Fails if the target does not exist or is a mount point, or if
    /// its directory cannot be written to.
    pub fn create(path: &Path) -> io::Result<Self> {
        let target = fs::canonicalize(path)?;
        let dir = dir_of(&target);
        if is_mounted(&target, dir)? {
            let why = "it is a mount point, which cannot be replaced: mount its directory instead";
            return Err(io::Error::other(why));
        }
        let file = NamedTempFile::new_in(dir)?;
        Ok(Self { file, target })
    }
}

impl Replacement for TempBeside {
    fn fill(&mut self, text: &[u8]) -> io::Result<()> {
        let metadata = fs::metadata(&self.target)?;
        let mut mode = metadata.permissions().mode() & 0o7777;
        let file = self.file.as_file();
        if fchown(file, None, Some(metadata.gid())).is_err() {
            // The new file has another group, to which the old group's permissions must not apply.
            mode &= !0o070;
        }
        file.set_permissions(fs::Permissions::from_mode(mode))?;
        // Last, since only the owner may change the mode. Only root may change the owner: if this
        // process is not root, the error is ignored, and its user owns the new file, as with most
        // editors.
        let _ = fchown(file, Some(metadata.uid()), None);
        self.file.write_all(text)?;
        self.file.as_file().sync_all()
    }

    fn commit(self: Box<Self>) -> io::Result<FileVersion> {
        let file = self.file.persist(&self.target)?;
        // An error is ignored: the file is replaced, and only the flush of its directory failed.
        let _ = File::open(dir_of(&self.target)).and_then(|dir| dir.sync_all());
        Ok(version(&file.metadata()?))
    }
}

fn dir_of(target: &Path) -> &Path {
    target.parent().unwrap_or(Path::new("/"))
}

/// Whether a file is a mount point, which cannot be replaced.
fn is_mounted(target: &Path, dir: &Path) -> io::Result<bool> {
    if let Ok(stat) = statx(CWD, target, AtFlags::empty(), StatxFlags::BASIC_STATS) {
        let root = StatxAttributes::MOUNT_ROOT;
        if stat.stx_attributes_mask.contains(root) {
            return Ok(stat.stx_attributes.contains(root));
        }
    }
    // An old kernel lacks the attribute. Then a mount from the same file system is not detected.
    Ok(fs::metadata(target)?.dev() != fs::metadata(dir)?.dev())
}

#[cfg(test)]
mod tests {
    use std::process::Command;

    use addons::contract::SecretFiles;

    use super::super::FilesOnDisk;
    use super::*;

    const FILES: FilesOnDisk = FilesOnDisk;

    #[test]
    fn a_replacement_keeps_mode_and_links_and_leaves_no_temporary_file() {
        let dir = tempfile::tempdir().unwrap();
        let (file, link) = (dir.path().join("auth.json"), dir.path().join("link"));
        fs::write(&file, "old").unwrap();
        fs::set_permissions(&file, fs::Permissions::from_mode(0o640)).unwrap();
        std::os::unix::fs::symlink(&file, &link).unwrap();
        let before = FILES.read(&link, None).unwrap().unwrap().version;
        assert!(FILES.read(&link, Some(&before)).unwrap().is_none());
        let mut replacement = TempBeside::create(&link).unwrap();
        replacement.fill(b"new").unwrap();
        assert_eq!(fs::read_to_string(&file).unwrap(), "old");
        let after = Box::new(replacement).commit().unwrap();
        drop(TempBeside::create(&link).unwrap());
        assert_eq!(fs::read_to_string(&file).unwrap(), "new");
        let mode = fs::metadata(&file).unwrap().permissions().mode();
        assert_eq!(mode & 0o7777, 0o640);
        assert!(fs::symlink_metadata(&link).unwrap().is_symlink());
        assert_eq!(fs::read_dir(dir.path()).unwrap().count(), 2);
        assert!(FILES.read(&link, Some(&after)).unwrap().is_none());
        assert!(FILES.read(&link, Some(&before)).unwrap().is_some());
    }

    /// Runs this test again in a child process with its own mount namespace, in which the file is a
    /// mount point.
    #[test]
    fn no_replacement_is_created_for_a_file_that_is_a_mount_point() {
        const MOUNTED: &str = "TOKEN_FILE_THAT_IS_MOUNTED";
        if let Some(file) = std::env::var_os(MOUNTED) {
            let refused = TempBeside::create(Path::new(&file)).err().unwrap();
            assert!(refused.to_string().contains("mount its directory"));
            return;
        }
        let dir = tempfile::tempdir().unwrap();
        let file = dir.path().join("auth.json");
        fs::write(&file, "{}").unwrap();
        assert!(TempBeside::create(&file).is_ok());
        let name = std::thread::current().name().unwrap().to_owned();
        let mounted = Command::new("unshare")
            .args(["--map-root-user", "--mount", "sh", "-c"])
            .arg("mount --bind \"$1\" \"$1\" && exec \"$2\" --exact \"$3\"")
            .args(["sh".as_ref(), file.as_os_str()])
            .arg(std::env::current_exe().unwrap())
            .arg(name)
            .env(MOUNTED, &file)
            .output()
            .unwrap();
        let said = String::from_utf8_lossy(&mounted.stdout);
        let passed = mounted.status.success() && said.contains("1 passed");
        assert!(passed, "{said}{}", String::from_utf8_lossy(&mounted.stderr));
    }
}
