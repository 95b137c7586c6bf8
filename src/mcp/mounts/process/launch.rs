//! Starts sandboxes from one long-lived thread.

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::mpsc;

use tokio::runtime::Handle;
use tokio::sync::oneshot;

use crate::sandbox::{Refused, Sandbox};

/// Handle to the thread that starts children.
///
/// The kernel kills a child when the *thread* that started it ends (`PR_SET_PDEATHSIG`), and the
/// runtime ends and starts threads at any time. This thread lives until the last clone of the
/// handle is dropped.
#[derive(Clone)]
pub struct Spawner(Arc<mpsc::Sender<Request>>);

/// Starts the first process of a sandbox. The argument is the path of this program.
pub(super) type StartSandbox = fn(&Path) -> Result<Sandbox, Refused>;

struct Request {
    start: StartSandbox,
    reply: oneshot::Sender<Result<Sandbox, Refused>>,
}

impl Spawner {
    /// Starts the thread. The calling runtime watches the children. `program` is the path of this
    /// program, which is executed again for each child.
    pub fn start(program: PathBuf) -> std::io::Result<Self> {
        let (sender, receiver) = mpsc::channel::<Request>();
        let runtime = Handle::current();
        let thread = std::thread::Builder::new().name("mcp-spawner".to_owned());
        thread.spawn(move || {
            let _entered = runtime.enter();
            for Request { start, reply } in receiver {
                // The caller may have been dropped; a sandbox ends when it is dropped.
                let _ = reply.send(start(&program));
            }
        })?;
        Ok(Self(Arc::new(sender)))
    }

    /// Starts the first process of a child. This process either creates namespaces, or supervises
    /// the command in the namespaces of the machine.
    pub(super) async fn spawn(&self, start: StartSandbox) -> Result<Sandbox, Refused> {
        let (reply, started) = oneshot::channel();
        let lost = || {
            let gone = std::io::Error::other("the thread that starts children is gone");
            Refused::internal("starting its first process")(gone)
        };
        let request = Request { start, reply };
        self.0.send(request).map_err(|_| lost())?;
        started.await.map_err(|_| lost())?
    }
}
