//! The private appliance of one `run` command. It has its own state directory and admin socket. It
//! also listens on the Unix sockets of registered containers, but on no TCP or UDP port.

use std::os::fd::BorrowedFd;
use std::sync::Arc;

use serde::{Deserialize, Serialize};

use super::descriptors;
use super::failure::Failure;
use super::listeners::Listeners;
use super::private_options::PrivateOptions;
use super::reload::Source;
use super::{App, Running, internal};
use crate::config::Profile;
use crate::sandbox::Channel;
use crate::telemetry::init_logging;
use crate::upstream::OwnListeners;

/// The message that the appliance sends to its launcher once the appliance has started or failed to
/// start.
#[derive(Debug, Deserialize, Serialize)]
pub enum PrivateStart {
    Ready,
    /// The exit code and the reason.
    Failed(u8, String),
}

/// Starts the appliance, reports the result as a [`PrivateStart`] over `channel`, and runs it until
/// the launcher closes `channel`, or until SIGTERM or SIGINT. If the start fails, the message
/// carries the error and the function returns `Ok`.
pub async fn run_private(
    options: PrivateOptions,
    channel: &Channel<BorrowedFd<'static>>,
) -> Result<(), Failure> {
    let state = options.state.clone();
    let started = start(options).await;
    let message = match &started {
        Ok(_) => PrivateStart::Ready,
        Err(failure) => PrivateStart::Failed(failure.code(), failure.to_string()),
    };
    channel.send(&message, &[]).map_err(internal)?;
    let Ok(mut running) = started else {
        return Ok(());
    };
    let socket = channel.watch().map_err(internal)?;
    tokio::select! {
        () = running.until_signalled() => {}
        // The launcher sends nothing more, so the socket becomes readable only when the launcher
        // closes its end.
        _ = socket.readable() => {}
    }
    running.drain().await;
    // The launcher removes the directory too, unless the launcher was killed.
    let _ = std::fs::remove_dir_all(state);
    Ok(())
}

async fn start(options: PrivateOptions) -> Result<Running, Failure> {
    let dir = options.config.clone();
    let (source, config) = Source::load(dir, Profile::Serve, Some(options))?;
    init_logging(&config.proxy.logging).map_err(Failure::Setting)?;
    descriptors::raise_limit();
    let listeners = Listeners::bind(&config.proxy.listen, config.proxy.admin_mode, false)?;
    let app = App::build(
        source,
        Arc::new(config),
        OwnListeners::new(std::iter::empty()),
    )?;
    app.start(listeners)
}
