//! Connections of clients: their sockets, and the limit of their number.

mod stream;
mod table;

pub use self::stream::{Stream, Timed};
pub use self::table::{Busy, CONNECTIONS_MAX, Connection, Connections};
