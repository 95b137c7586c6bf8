//! Builds the file system of a sandbox: a root in memory, in which the entries of the specification
//! are mounted.
//!
//! Paths are resolved from descriptors and never through a symbolic link, since another sandbox may
//! replace files of a writable directory while this root is built.

use std::ffi::{CStr, CString};
use std::fs::{self, Permissions};
use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::fs::{PermissionsExt, symlink};
use std::path::{Component, Path, PathBuf};

use rustix::fs::{CWD, Mode, OFlags, ResolveFlags, fstat, mkdirat, openat, openat2};
use rustix::io::Errno;
use rustix::mount::{
    MountFlags, MountPropagationFlags, MoveMountFlags, OpenTreeFlags, UnmountFlags, mount,
    mount_change, mount_remount, move_mount, open_tree, unmount,
};
use rustix::process::pivot_root;

use super::mount_table;
use super::spec::{Access, Entry};

/// The directory where the new root is built; every machine has it.
const BASE: &str = "/tmp";
/// Size of the tmpfs for all scratch directories together if the specification has no limit: half
/// of the machine's memory. Its contents can be swapped out.
const SCRATCH_SIZE: &str = "50%";
/// Options of the root's own tmpfs, which holds a few directories and links.
const ROOT_OPTIONS: &CStr = c"size=16m,mode=0755";

/// Devices that programs expect. None gives access to the machine.
const DEVICES: [&str; 6] = ["null", "zero", "full", "random", "urandom", "tty"];
const DEVICE_LINKS: [(&str, &str); 5] = [
    ("ptmx", "pts/ptmx"),
    ("fd", "/proc/self/fd"),
    ("stdin", "/proc/self/fd/0"),
    ("stdout", "/proc/self/fd/1"),
    ("stderr", "/proc/self/fd/2"),
];
/// Files of /proc through which the whole machine can be changed. Their permissions do not restrict
/// the user root, who may have started the sandbox.
const READ_ONLY_PROC: [&str; 5] = ["bus", "fs", "irq", "sys", "sysrq-trigger"];
/// Files of /proc that reveal state of the whole machine.
const HIDDEN_PROC: [&str; 9] = [
    "acpi",
    "asound",
    "interrupts",
    "kcore",
    "keys",
    "latency_stats",
    "sched_debug",
    "scsi",
    "timer_list",
];

/// Builds the file system and makes it the root of this process, which must be alone in its mount
/// and PID namespaces. `memory` limits its files in memory, in bytes. The old root is unmounted.
pub fn build(entries: &[Entry], memory: Option<u64>) -> io::Result<()> {
    mount_change(
        "/",
        MountPropagationFlags::PRIVATE | MountPropagationFlags::REC,
    )?;
    let mut tree = Tree::begin(memory)?;
    for entry in entries {
        tree.add(entry).map_err(|error| named(entry.at(), error))?;
    }
    tree.finish()
}

fn named(path: &Path, error: io::Error) -> io::Error {
    io::Error::new(error.kind(), format!("{}: {error}", path.display()))
}

impl Entry {
    /// The entry's path in the sandbox.
    pub fn at(&self) -> &Path {
        match self {
            Self::Scratch { at, .. }
            | Self::File { at, .. }
            | Self::Link { at, .. }
            | Self::Bind { at, .. }
            | Self::Pin { at, .. }
            | Self::Hide { at }
            | Self::Replace { at, .. }
            | Self::Redirect { at, .. } => at,
        }
    }
}

// `finish` adds these flags to those that a mount already has.
const WRITABLE: MountFlags = MountFlags::NOSUID.union(MountFlags::NODEV);
const READ_ONLY: MountFlags = WRITABLE.union(MountFlags::RDONLY);
// Programs can write to a device on a read-only mount too.
const DEVICE: MountFlags = MountFlags::RDONLY
    .union(MountFlags::NOSUID)
    .union(MountFlags::NOEXEC);

impl Access {
    fn flags(self) -> MountFlags {
        match self {
            Self::ReadOnly => READ_ONLY,
            Self::Writable => WRITABLE,
        }
    }
}

/// A root under construction. Meanwhile the root of the process is a tmpfs with four directories:
/// `old` is the machine's root, `new` the sandbox's, and `scratch` and `parts` hold directories and
/// files to be mounted into `new`.
struct Tree {
    old: OwnedFd,
    new: OwnedFd,
    /// Device numbers of the file systems of the new root in which entries may be made.
    ours: [u64; 2],
    /// The flags of each mount of the new root. They also apply to its submounts.
    mounts: Vec<(PathBuf, MountFlags)>,
    /// The paths of mounted symbolic links, which have no flags to set.
    links: Vec<PathBuf>,
    /// The number of files and directories that were made in `scratch` and `parts`.
    parts: usize,
}

impl Tree {
    fn begin(memory: Option<u64>) -> io::Result<Self> {
        let flags = WRITABLE;
        mount("tmpfs", BASE, "tmpfs", flags, Some(c"mode=0755"))?;
        for name in ["old", "new", "scratch", "parts"] {
            fs::create_dir(Path::new(BASE).join(name))?;
        }
        pivot_root(BASE, format!("{BASE}/old"))?;
        std::env::set_current_dir("/")?;
        mount("tmpfs", "/new", "tmpfs", flags, Some(ROOT_OPTIONS))?;
        let size = memory.map_or(SCRATCH_SIZE.to_owned(), |bytes| bytes.to_string());
        let options = CString::new(format!("size={size},nr_inodes=1m,mode=0755"))?;
        mount("tmpfs", "/scratch", "tmpfs", flags, Some(&*options))?;
        let new = open("/new")?;
        let ours = [fstat(&new)?.st_dev, fstat(&open("/scratch")?)?.st_dev];
        let mut tree = Self {
            old: open("/old")?,
            new,
            ours,
            mounts: vec![(PathBuf::from("/"), READ_ONLY)],
            links: Vec::new(),
            parts: 0,
        };
        tree.add_devices()?;
        tree.add_proc()?;
        Ok(tree)
    }

    fn add(&mut self, entry: &Entry) -> io::Result<()> {
        match entry {
            Entry::Scratch { at, mode } => self.scratch(at, *mode),
            Entry::File { at, text } => self.file(at, text),
            Entry::Link { at, to } => {
                self.directory(at.parent().unwrap_or(Path::new("/")))?;
                symlink(to, inside(at))
            }
            Entry::Bind { from, at, access } => self.bind(from, at, access.flags()),
            Entry::Pin { at, access } => {
                let target = self.find(at)?;
                self.attach(&target, &target, at, access.flags())
            }
            Entry::Hide { at } => self.hide(at),
            Entry::Replace { at, text } => {
                let target = self.find(at)?;
                let part = self.part("/parts", |path| fs::write(path, text))?;
                self.attach(&part, &target, at, READ_ONLY)
            }
            Entry::Redirect { at, to } => {
                let target = self.find(at)?;
                let part = self.part("/parts", |path| symlink(to, path))?;
                self.links.push(at.clone());
                self.attach(&part, &target, at, READ_ONLY)
            }
        }
    }

    fn scratch(&mut self, at: &Path, mode: u32) -> io::Result<()> {
        let target = self.directory(at)?;
        let source = self.part("/scratch", |path| {
            fs::create_dir(path)?;
            // Set explicitly, since the inherited umask must not apply to a directory such as /tmp.
            fs::set_permissions(path, Permissions::from_mode(mode))
        })?;
        self.attach(&source, &target, at, WRITABLE)
    }

    fn file(&mut self, at: &Path, text: &str) -> io::Result<()> {
        let parent = self.directory(at.parent().unwrap_or(Path::new("/")))?;
        self.refuse_foreign(&parent)?;
        fs::write(inside(at), text)
    }

    fn bind(&mut self, from: &Path, at: &Path, flags: MountFlags) -> io::Result<()> {
        let source = resolve(self.old.as_fd(), from)?;
        let is_directory = is_directory(&source)?;
        let target = match self.find_if_there(at)? {
            Some(target) => target,
            None if is_directory => self.directory(at)?,
            None => {
                self.file(at, "")?;
                self.find(at)?
            }
        };
        self.attach(&source, &target, at, flags)
    }

    fn hide(&mut self, at: &Path) -> io::Result<()> {
        let Some(target) = self.find_if_there(at)? else {
            return Ok(());
        };
        let is_directory = is_directory(&target)?;
        let part = self.part("/parts", |path| match is_directory {
            true => fs::create_dir(path),
            false => fs::write(path, ""),
        })?;
        self.attach(&part, &target, at, READ_ONLY)
    }

    /// Mounts `source`, with its submounts, over `target`.
    fn attach(
        &mut self,
        source: &OwnedFd,
        target: &OwnedFd,
        at: &Path,
        flags: MountFlags,
    ) -> io::Result<()> {
        let copy = open_tree(
            source,
            c"",
            OpenTreeFlags::OPEN_TREE_CLONE
                | OpenTreeFlags::OPEN_TREE_CLOEXEC
                | OpenTreeFlags::AT_EMPTY_PATH
                | OpenTreeFlags::AT_RECURSIVE,
        )?;
        move_mount(
            copy,
            c"",
            target,
            c"",
            MoveMountFlags::MOVE_MOUNT_F_EMPTY_PATH | MoveMountFlags::MOVE_MOUNT_T_EMPTY_PATH,
        )?;
        self.mounts.push((at.to_owned(), flags));
        Ok(())
    }

    /// A new file or directory in `/scratch` or `/parts`, to be mounted into the root.
    fn part(
        &mut self,
        folder: &str,
        make: impl FnOnce(&str) -> io::Result<()>,
    ) -> io::Result<OwnedFd> {
        self.parts += 1;
        let path = format!("{folder}/{}", self.parts);
        make(&path)?;
        open(&path)
    }

    fn find(&self, at: &Path) -> io::Result<OwnedFd> {
        resolve(self.new.as_fd(), at)
    }

    fn find_if_there(&self, at: &Path) -> io::Result<Option<OwnedFd>> {
        match self.find(at) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(None),
            found => found.map(Some),
        }
    }

    /// Opens a directory of the new root, and creates it and its parents if they are missing. Fails
    /// if a directory is missing in a bind mount, since creating it would change the machine's
    /// files.
    fn directory(&self, at: &Path) -> io::Result<OwnedFd> {
        let mut directory = resolve(self.new.as_fd(), Path::new("/"))?;
        for name in at.components().filter_map(name_of) {
            let next = || {
                openat2(
                    &directory,
                    name,
                    OFlags::PATH | OFlags::CLOEXEC,
                    Mode::empty(),
                    ResolveFlags::NO_SYMLINKS,
                )
            };
            directory = match next() {
                Err(Errno::NOENT) => {
                    self.refuse_foreign(&directory)?;
                    mkdirat(&directory, name, Mode::from_raw_mode(0o755))?;
                    next()?
                }
                found => found?,
            };
        }
        Ok(directory)
    }

    fn refuse_foreign(&self, directory: &OwnedFd) -> io::Result<()> {
        match self.ours.contains(&fstat(directory)?.st_dev) {
            true => Ok(()),
            false => Err(io::Error::new(
                io::ErrorKind::ReadOnlyFilesystem,
                "it does not exist, and a sandbox creates nothing in the machine's directories",
            )),
        }
    }

    fn add_devices(&mut self) -> io::Result<()> {
        for name in DEVICES {
            let path = Path::new("/dev").join(name);
            self.bind(&path, &path, DEVICE)?;
        }
        for (name, to) in DEVICE_LINKS {
            symlink(to, Path::new("/new/dev").join(name))?;
        }
        self.scratch(Path::new("/dev/shm"), 0o1777)?;
        fs::create_dir("/new/dev/pts")?;
        let flags = MountFlags::NOSUID | MountFlags::NOEXEC;
        let options = c"newinstance,ptmxmode=0666,mode=620";
        mount("devpts", "/new/dev/pts", "devpts", flags, Some(options))?;
        self.mounts.push(("/dev/pts".into(), flags));
        Ok(())
    }

    fn add_proc(&mut self) -> io::Result<()> {
        fs::create_dir("/new/proc")?;
        let flags = MountFlags::NOSUID | MountFlags::NODEV | MountFlags::NOEXEC;
        mount("proc", "/new/proc", "proc", flags, None)?;
        let at = PathBuf::from("/proc");
        self.mounts.push((at.clone(), flags));
        for name in READ_ONLY_PROC {
            let at = at.join(name);
            if let Some(file) = self.find_if_there(&at)? {
                self.attach(&file, &file, &at, READ_ONLY)?;
            }
        }
        for name in HIDDEN_PROC {
            self.hide(&at.join(name))?;
        }
        Ok(())
    }

    /// Sets the flags of every mount, enters the new root and unmounts the old one.
    fn finish(self) -> io::Result<()> {
        // Read through the machine's /proc, which is still mounted below /old. The table's paths are
        // those of this process, so the mounts of the new root are below /new.
        let table = fs::read_to_string("/old/proc/self/mountinfo")?;
        for mount in mount_table::read(&table)? {
            let Ok(at) = mount.at.strip_prefix("/new") else {
                continue;
            };
            let at = Path::new("/").join(at);
            // The call would follow the link.
            if self.links.contains(&at) {
                continue;
            }
            let flags = self.flags(&at) | mount.flags | MountFlags::BIND;
            match mount_remount(&mount.at, flags, c"") {
                Ok(()) => {}
                // This process may not enter a parent directory of the mount, so the command may
                // not either. A security module, which returns the same error, hides no path.
                Err(Errno::ACCESS) if mount.at.symlink_metadata().is_err() => {}
                Err(error) => return Err(named(&mount.at, error.into())),
            }
        }
        std::env::set_current_dir("/new")?;
        pivot_root(".", ".")?;
        unmount(".", UnmountFlags::DETACH)?;
        std::env::set_current_dir("/")
    }

    /// The flags of the nearest mount at or above a path.
    fn flags(&self, at: &Path) -> MountFlags {
        let above = self.mounts.iter().filter(|(path, _)| at.starts_with(path));
        // Of two mounts at one path, `max_by_key` returns the later one, which is on top.
        let nearest = above.max_by_key(|(path, _)| path.components().count());
        nearest.map_or(READ_ONLY, |(_, flags)| *flags)
    }
}

/// The path of an entry while the root is built.
fn inside(at: &Path) -> PathBuf {
    Path::new("/new").join(at.strip_prefix("/").unwrap_or(at))
}

fn name_of(component: Component<'_>) -> Option<&std::ffi::OsStr> {
    match component {
        Component::Normal(name) => Some(name),
        _ => None,
    }
}

/// Opens a path below a root; fails at a symbolic link.
fn resolve(root: BorrowedFd<'_>, path: &Path) -> io::Result<OwnedFd> {
    let relative: PathBuf = path.components().filter_map(name_of).collect();
    let relative = match relative.as_os_str().is_empty() {
        true => Path::new("."),
        false => &relative,
    };
    let found = openat2(
        root,
        relative,
        OFlags::PATH | OFlags::CLOEXEC,
        Mode::empty(),
        ResolveFlags::NO_SYMLINKS | ResolveFlags::BENEATH,
    );
    found.map_err(|error| match error {
        Errno::LOOP => io::Error::other("the path contains a symbolic link"),
        error => error.into(),
    })
}

/// Opens a file or a symbolic link itself.
fn open(path: &str) -> io::Result<OwnedFd> {
    let flags = OFlags::PATH | OFlags::NOFOLLOW | OFlags::CLOEXEC;
    Ok(openat(CWD, path, flags, Mode::empty())?)
}

fn is_directory(file: &OwnedFd) -> io::Result<bool> {
    let mode = fstat(file)?.st_mode;
    Ok(rustix::fs::FileType::from_raw_mode(mode).is_dir())
}
