//! A coding sidecar behind the gateway.

mod fake;

mod away;
mod calls;
mod hostile;
mod rules;
mod tokens;
