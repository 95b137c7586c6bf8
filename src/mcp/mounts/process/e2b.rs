//! Processes in e2b sandboxes, which this version does not implement.

use std::time::Duration;

use addons::contract::BoxFuture;

use super::{LineTaker, ProcessConfig, ProcessManager, Runtime};
use crate::mcp::mounts::MountError;

/// Refuses to start any process.
#[derive(Clone, Copy, Debug, Default)]
pub struct E2b;

fn not_implemented() -> MountError {
    MountError::NotImplemented("runtime e2b is not implemented: use runtime local".to_owned())
}

impl ProcessManager for E2b {
    fn start(&self, _: ProcessConfig) -> BoxFuture<'_, Result<(), MountError>> {
        Box::pin(async { Err(not_implemented()) })
    }

    fn write<'a>(&'a self, _: &'a [u8]) -> BoxFuture<'a, Result<(), MountError>> {
        Box::pin(async { Err(not_implemented()) })
    }

    fn read_loop<'a>(&'a self, _: LineTaker<'a>) -> BoxFuture<'a, Result<(), MountError>> {
        Box::pin(async { Err(not_implemented()) })
    }

    fn stop(&self, _: Duration) -> BoxFuture<'_, ()> {
        Box::pin(async {})
    }

    fn ended(&self) -> BoxFuture<'_, ()> {
        Box::pin(async {})
    }

    fn is_running(&self) -> bool {
        false
    }

    fn exit_code(&self) -> Option<i32> {
        None
    }

    fn runtime(&self) -> Runtime {
        Runtime::E2b
    }
}
