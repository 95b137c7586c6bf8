//! Processes on this machine, confined unless the server has `confine: none`.

use std::sync::Arc;
use std::time::Duration;

use addons::contract::BoxFuture;
use rustix::process::Signal;
use tokio::io::AsyncWriteExt;
use tokio::net::unix::pipe;
use tokio::sync::{Mutex, mpsc, watch};
use tokio::time::timeout;
use tokio_util::sync::CancellationToken;

use super::lines::Lines;
use super::stderr::{self, Secrets};
use super::view::Machine;
use super::{LineTaker, ProcessConfig, ProcessManager, Runtime, Spawner};
use crate::mcp::mounts::MountError;
use crate::sandbox::{Event, Sandbox, Signalled};

/// A process on this machine.
pub struct Local {
    spawner: Spawner,
    machine: Arc<Machine>,
    stdin: Mutex<Option<pipe::Sender>>,
    stdout: Mutex<Option<Lines<pipe::Receiver>>>,
    state: watch::Sender<State>,
    orders: Mutex<Option<mpsc::Sender<Order>>>,
    /// Cancelled once the process and its descendants are gone, or starting the process has failed.
    gone: CancellationToken,
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum State {
    NotStarted,
    Running,
    Ended(Option<i32>),
}

/// An order to a running process.
enum Order {
    Terminate,
    Kill,
}

impl Local {
    /// Creates a manager that starts its process with `spawner`. `machine` determines the files
    /// that a confined process sees.
    pub fn new(spawner: &Spawner, machine: &Arc<Machine>) -> Self {
        Self {
            spawner: spawner.clone(),
            machine: Arc::clone(machine),
            stdin: Mutex::default(),
            stdout: Mutex::default(),
            state: watch::Sender::new(State::NotStarted),
            orders: Mutex::default(),
            gone: CancellationToken::new(),
        }
    }

    async fn begin(&self, config: ProcessConfig) -> Result<(), MountError> {
        let (program, egress) = (&config.program, config.egress.as_deref());
        let running = program.begin(&self.spawner, &self.machine, egress).await?;
        let running = running.started().await?;
        let (orders, receiver) = mpsc::channel(2);
        self.state.send_replace(State::Running);
        *self.stdin.lock().await = Some(running.stdin);
        *self.stdout.lock().await = Some(Lines {
            stream: running.stdout,
            longest: config.longest_line,
            memory: config.memory,
        });
        *self.orders.lock().await = Some(orders);
        let of_env = config.program.env.iter().map(|(_, value)| value);
        let secrets = of_env.chain(&config.secrets);
        let secrets = Secrets::among(secrets.map(|value| value.as_str()));
        let server = config.server;
        let log = move |line: &str| tracing::info!(%server, line, "an MCP server's stderr");
        tokio::spawn(stderr::follow(running.stderr, secrets, log));
        tokio::spawn(attend(
            running.sandbox,
            receiver,
            self.state.clone(),
            self.gone.clone(),
        ));
        Ok(())
    }

    async fn order(&self, order: Order) {
        if let Some(orders) = &*self.orders.lock().await {
            // A process that has ended takes no orders.
            let _ = orders.try_send(order);
        }
    }
}

/// Watches a process and carries out orders to it, until it and its descendants are gone.
async fn attend(
    mut sandbox: Sandbox,
    mut orders: mpsc::Receiver<Order>,
    state: watch::Sender<State>,
    gone: CancellationToken,
) {
    let _gone = gone.drop_guard();
    loop {
        tokio::select! {
            event = sandbox.next() => match event {
                Ok(Event::Ended(ending)) => {
                    state.send_replace(State::Ended(Some(ending.exit_code().into())));
                    return sandbox.end().await;
                }
                Ok(Event::Started | Event::Stopped | Event::Terminal(_)) => {}
                Err(_lost) => break,
            },
            order = orders.recv() => match order {
                Some(Order::Terminate) => {
                    sandbox.signal(Signal::TERM.as_raw(), Signalled::Command);
                }
                Some(Order::Kill) | None => break,
            },
        }
    }
    sandbox.end().await;
    let killed = 128 + Signal::KILL.as_raw();
    state.send_replace(State::Ended(Some(killed)));
}

impl ProcessManager for Local {
    fn start(&self, config: ProcessConfig) -> BoxFuture<'_, Result<(), MountError>> {
        Box::pin(async move {
            let begun = self.begin(config).await;
            if begun.is_err() {
                self.state.send_replace(State::Ended(None));
                self.gone.cancel();
            }
            begun
        })
    }

    fn write<'a>(&'a self, data: &'a [u8]) -> BoxFuture<'a, Result<(), MountError>> {
        Box::pin(async move {
            let failed = MountError::Write;
            let mut stdin = self.stdin.lock().await;
            let stdin = stdin.as_mut();
            let stdin = stdin.ok_or_else(|| failed("the server is not running".to_owned()))?;
            let written = stdin.write_all(data).await;
            written.map_err(|error| failed(error.to_string()))
        })
    }

    fn read_loop<'a>(&'a self, take: LineTaker<'a>) -> BoxFuture<'a, Result<(), MountError>> {
        Box::pin(async move {
            let stdout = self.stdout.lock().await.take();
            let not_running = || MountError::Protocol("the server is not running".to_owned());
            stdout.ok_or_else(not_running)?.read(take).await
        })
    }

    fn stop(&self, limit: Duration) -> BoxFuture<'_, ()> {
        Box::pin(async move {
            if *self.state.borrow() == State::NotStarted {
                return;
            }
            // If the lock is held, a write is blocked on the full pipe, and stdin cannot be closed.
            // SIGTERM then ends the process.
            if let Ok(mut stdin) = self.stdin.try_lock() {
                *stdin = None;
            }
            if timeout(limit / 2, self.gone.cancelled()).await.is_err() {
                self.order(Order::Terminate).await;
            }
            if timeout(limit / 2, self.gone.cancelled()).await.is_err() {
                self.order(Order::Kill).await;
            }
            self.gone.cancelled().await;
        })
    }

    fn ended(&self) -> BoxFuture<'_, ()> {
        Box::pin(async move {
            let mut state = self.state.subscribe();
            // Never fails: `self` holds the sender.
            let _ = state.wait_for(|now| matches!(now, State::Ended(_))).await;
        })
    }

    fn is_running(&self) -> bool {
        *self.state.borrow() == State::Running
    }

    fn exit_code(&self) -> Option<i32> {
        match *self.state.borrow() {
            State::Ended(code) => code,
            State::NotStarted | State::Running => None,
        }
    }

    fn runtime(&self) -> Runtime {
        Runtime::Local
    }
}
