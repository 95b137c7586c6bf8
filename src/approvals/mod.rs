//! The ledger of approvals: questions that a person decides, and the grants that approvals give.
//!
//! A question is opened by a flow and decided by a person, once. [`Ledger`] is what the rest of the
//! engine uses. It keeps all questions and grants in an [`ApprovalStore`], so that nothing that was
//! decided is lost and no approval for one execution is used twice, also after a crash.

pub mod bounds;
mod learner;
mod ledger;
mod live;
mod metrics;
mod notify;
mod port;
mod record;
pub mod sqlite;
mod store;
mod waiters;
mod watch;

pub use learner::{Learner, NotLearned};
pub use ledger::{Ledger, LiveLeases};
pub use live::LiveGrants;
pub use metrics::ApprovalMetrics;
pub use notify::Notifier;
pub use port::LedgerPort;
pub use record::{Asked, Change, Decision, Grant, News, Record, Scope, State, Target};
pub use store::{ApprovalStore, Filter, Refused, StoreError};
pub use waiters::Clock;
pub use watch::{Seen, Watch};
