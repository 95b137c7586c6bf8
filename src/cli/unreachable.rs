//! Explains why the admin socket cannot be reached, and what to do.

use std::io;
use std::os::unix::fs::MetadataExt;
use std::path::Path;

/// The reason why `connect` failed, and the remedy.
pub(super) fn explain(socket: &Path, error: &io::Error) -> String {
    const START: &str = "Start it (unified-proxy serve, or dev), or name its socket with \
                         --socket PATH";
    match error.kind() {
        io::ErrorKind::PermissionDenied => refused(socket),
        io::ErrorKind::ConnectionRefused => format!("the server that made it has ended. {START}"),
        _ => format!("is unified-proxy running? {START}"),
    }
}

/// The reason why the server closed the connection before it answered, if this user is the reason.
pub(super) fn not_admitted(socket: &Path) -> Option<String> {
    let user = rustix::process::geteuid().as_raw();
    // The server admits root, its own user, to whom the socket belongs, and `admin_uids`.
    let server = socket.metadata().ok()?.uid();
    (user != 0 && user != server).then(|| {
        format!(
            "the server admits root, its own user ({server}) and `admin_uids`: {}",
            remedy(user)
        )
    })
}

/// Names the directory that this user may not search or, if there is none, the socket that the user
/// may not write to.
fn refused(socket: &Path) -> String {
    let user = rustix::process::geteuid().as_raw();
    let parents = socket.ancestors().skip(1);
    let mut visible = parents.filter(|path| path.symlink_metadata().is_ok());
    let closed = match socket.symlink_metadata() {
        Ok(_) => None,
        Err(_) => visible.next(),
    };
    let what = match closed {
        Some(directory) => format!("may not search the directory {}", directory.display()),
        None => "may not write to the socket".to_owned(),
    };
    format!("user {user} {what}: {}", remedy(user))
}

fn remedy(user: u32) -> String {
    format!(
        "run the command as root or as the server's user, or let user {user} in: list it under \
         `admin_uids` in proxy.yaml, set `admin_mode`, let it search the socket's directory, and \
         restart the server (docs/operations.md, \"A socket instead of an address\")"
    )
}
