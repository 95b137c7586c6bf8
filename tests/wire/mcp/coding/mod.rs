//! A coding sidecar behind the gateway.

mod fake;

mod calls;
mod hostile;
mod rules;
mod tokens;
mod unreachable;
