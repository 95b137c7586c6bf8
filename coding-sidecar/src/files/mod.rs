//! The operations on one file or folder: `read`, `write`, `edit` and `ls`.

mod diff;
mod edit;
mod image;
mod lines;
mod ls;
mod read;
mod write;

pub use edit::{EditRequest, EditResult, edit};
pub use ls::{LsRequest, LsResult, ls};
pub use read::{ReadRequest, ReadResult, read};
pub use write::{WriteRequest, WriteResult, write};
