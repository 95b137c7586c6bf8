//! A coding sidecar behind the gateway.

mod fake;

mod unreachable;
mod calls;
mod hostile;
mod rules;
mod tokens;
