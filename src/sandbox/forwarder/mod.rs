//! The forwarder: creates the namespaces, listens on loopback inside, and carries connections to
//! the sandbox's Unix listener outside. It makes no decisions: the chain behind the listener judges
//! every flow.

mod dns;
mod host_port;
mod tcp;

use std::collections::BTreeSet;
use std::convert::Infallible;
use std::io;
use std::net::{Ipv4Addr, SocketAddr};
use std::os::fd::BorrowedFd;
use std::path::PathBuf;
use std::process::ExitCode;
use std::sync::Arc;

use arc_swap::ArcSwap;
use rustix::process::{Signal, set_parent_process_death_signal};
use tokio::io::Interest;
use tokio::net::{TcpListener, UdpSocket, UnixStream};

use super::channel::Channel;
use super::handle::{Refused, SELF_EXE, SandboxMessage, Serve};
use super::{GATEWAY_PORT, PID1, PROXY_PORT, diagnosis, loopback, namespaces, privileges};
use crate::exit_code as code;

const DNS_PORT: u16 = 53;

/// Runs as the forwarder. Its standard input is the launcher's channel, its standard output the
/// channel for PID 1. The process must have one thread.
pub fn run() -> ExitCode {
    let launcher = Channel::from_stdin();
    match serve(&launcher) {
        Ok(()) => ExitCode::SUCCESS,
        Err(refused) => {
            // Fails if the launcher has ended.
            let _ = launcher.send(&SandboxMessage::Refused(refused), &[]);
            ExitCode::from(code::SOFTWARE)
        }
    }
}

fn serve(launcher: &Channel<BorrowedFd<'static>>) -> Result<(), Refused> {
    // The name in `ps`; an error here is harmless.
    let _ = rustix::thread::set_name(c"up-forwarder");
    let step = "setting the forwarder's parent-death signal (PR_SET_PDEATHSIG)";
    set_parent_process_death_signal(Some(Signal::KILL)).map_err(Refused::internal(step))?;
    namespaces::enter()?;
    loopback::bring_up().map_err(diagnosis::refused("bringing up its loopback interface"))?;
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()
        .map_err(Refused::internal("starting the forwarder's runtime"))?;
    runtime.block_on(async {
        let sockets = Sockets::open()
            .await
            .map_err(diagnosis::refused("binding its listeners"))?;
        privileges::pass_on_to_pid1()
            .map_err(Refused::internal("passing capabilities to its PID 1"))?;
        let mut pid1 = start_pid1().map_err(Refused::internal("starting its PID 1"))?;
        privileges::raise_open_files()
            .map_err(Refused::internal("raising the forwarder's open-file limit"))?;
        // The ports are bound and PID 1 is started: no step from here on needs a privilege.
        privileges::drop_capabilities().map_err(Refused::internal("giving up privileges"))?;
        let step = "receiving the launcher's first message";
        let message = launcher.receive().map_err(Refused::internal(step))?;
        let Some((message, _)) = message else {
            return Ok(());
        };
        let Serve {
            listener,
            host_ports,
        } = message;
        let outside = OutsideListener::new(listener.clone().unwrap_or_default());
        for port in BTreeSet::from_iter(host_ports) {
            let step = format!("listening at port {port} for the host's");
            let listeners = host_port::listen(port).await;
            for listener in listeners.map_err(Refused::internal(&step))? {
                tokio::spawn(host_port::forward(listener, port, outside.clone()));
            }
        }
        let serving = async {
            match listener {
                Some(_) => sockets.serve(outside.clone()).await,
                // Closes the ports, which then refuse connections.
                None => {
                    drop(sockets);
                    std::future::pending().await
                }
            }
        };
        tokio::select! {
            ended = pid1.wait() => {
                ended.map(drop).map_err(Refused::internal("waiting for its PID 1"))
            }
            followed = follow(launcher, &outside) => {
                // Returns when all processes inside are gone. Fails if PID 1 has ended.
                let _ = pid1.kill().await;
                followed.map_err(Refused::internal("receiving a message from the launcher"))
            }
            never = serving => match never {},
        }
    })
}

/// The path of the Unix listener outside, which the launcher may change.
#[derive(Clone)]
struct OutsideListener(Arc<ArcSwap<PathBuf>>);

impl OutsideListener {
    fn new(listener: PathBuf) -> Self {
        Self(Arc::new(ArcSwap::from_pointee(listener)))
    }

    async fn connect(&self) -> io::Result<UnixStream> {
        UnixStream::connect(&**self.0.load()).await
    }
}

/// Applies the launcher's changes of the listener until the launcher ends. Fails if the channel
/// fails or the launcher sends an invalid message.
async fn follow(
    launcher: &Channel<BorrowedFd<'static>>,
    outside: &OutsideListener,
) -> io::Result<()> {
    let readiness = launcher.watch()?;
    let receive = || launcher.try_receive();
    while let Some((Serve { listener, .. }, _)) =
        readiness.async_io(Interest::READABLE, receive).await?
    {
        outside.0.store(Arc::new(listener.unwrap_or_default()));
    }
    Ok(())
}

/// Starts PID 1 with this process's standard output as its standard input. PID 1 is then the only
/// process with this end of the channel, so the launcher reads end-of-file when PID 1 exits.
fn start_pid1() -> io::Result<tokio::process::Child> {
    tokio::process::Command::new(SELF_EXE)
        .arg0("unified-proxy")
        .arg(PID1)
        .env_clear()
        .stdin(Channel::take_stdout()?.into_inner())
        .stdout(std::process::Stdio::null())
        .kill_on_drop(true)
        .spawn()
}

/// The sockets on 127.0.0.1 inside the sandbox.
struct Sockets {
    proxy: TcpListener,
    gateway: TcpListener,
    dns: TcpListener,
    dns_datagrams: UdpSocket,
}

impl Sockets {
    async fn open() -> io::Result<Self> {
        let at = |port| SocketAddr::from((Ipv4Addr::LOCALHOST, port));
        Ok(Self {
            proxy: TcpListener::bind(at(PROXY_PORT)).await?,
            gateway: TcpListener::bind(at(GATEWAY_PORT)).await?,
            dns: TcpListener::bind(at(DNS_PORT)).await?,
            dns_datagrams: UdpSocket::bind(at(DNS_PORT)).await?,
        })
    }

    async fn serve(self, outside: OutsideListener) -> Infallible {
        let resolver = dns::Resolver(outside.clone());
        let (never, ..) = tokio::join!(
            tcp::forward(self.proxy, outside.clone()),
            tcp::forward(self.gateway, outside),
            resolver.serve_connections(self.dns),
            resolver.serve_datagrams(self.dns_datagrams),
        );
        never
    }
}
