//! The bounds of the ledger. Beyond them, a question is refused and its flow is denied.

use std::time::Duration;

/// Open questions of one container. A person reads each, and a container that asks more is a loop.
pub const MAX_PENDING_PER_CONTAINER: usize = 32;
/// Open questions of all containers: 31 containers that are at their limit. People fall behind long
/// before.
pub const MAX_PENDING: usize = 1000;
/// New questions of one container within [`RATE_WINDOW`]. Decided and ended questions count too, so
/// that a container cannot write to the disk at the speed at which its questions end.
pub const MAX_NEW_PER_WINDOW: usize = 30;
/// The time in which [`MAX_NEW_PER_WINDOW`] questions may be new.
pub const RATE_WINDOW: Duration = Duration::from_secs(60);
/// Bytes of the arguments of one question. Nobody reads more, and what is approved must be shown whole.
pub const MAX_ARGUMENT_BYTES: usize = 256 << 10;
/// Bytes of a question's texts besides its arguments. They are kept as long as the question: those of
/// [`MAX_DECIDED`] questions take 400 MiB at most.
pub const MAX_TOPIC_BYTES: usize = 4 << 10;
/// Bytes of the arguments of all open and decided questions together: as much as 256 of the largest
/// ones. Arguments of decided questions make room for new ones.
pub const MAX_KEPT_BYTES: usize = 64 << 20;
/// How long a decided question is kept, for those who ask later who decided.
pub const KEPT_AFTER_DECISION: Duration = Duration::from_secs(30 * 24 * 60 * 60);
/// Decided questions that are kept: over two days of a container that is at its limit of new ones.
pub const MAX_DECIDED: usize = 100_000;
/// Questions in one page of a list: at most 25 MiB of arguments.
pub const MAX_PAGE: usize = 100;
/// The longest time for which a grant is given, so that a forgotten one ends within a day.
pub const MAX_GRANT: Duration = Duration::from_secs(24 * 60 * 60);
/// The time of a grant if the person names none: long enough to repeat a request and finish the
/// task at hand.
pub const DEFAULT_GRANT: Duration = Duration::from_secs(10 * 60);
/// How long the store may take for an operation, including the wait for others. Then the operation
/// fails, and its flow is denied.
pub const STORE_LIMIT: Duration = Duration::from_secs(5);
/// How long a grant for one execution is kept for the caller that has waited longest. Longer than
/// the policies take that judge the call again.
pub const PROMISED_FOR: Duration = Duration::from_secs(10);
/// Changes that a subscriber may be behind before it must list the questions again.
pub const MAX_BEHIND: usize = 256;
/// Operations that wait for the store: twice the flows that may wait in the chain. Beyond them, flows
/// are denied.
pub const MAX_QUEUED: usize = 16_384;
