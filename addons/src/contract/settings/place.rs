//! Places in a file.

use saphyr_parser::Marker;

/// A line and a column, both counted from 1; both are 0 for the whole file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Place {
    /// The line.
    pub line: usize,
    /// The column, in characters.
    pub column: usize,
}

impl From<&Marker> for Place {
    fn from(marker: &Marker) -> Self {
        Self {
            line: marker.line(),
            column: marker.col() + 1,
        }
    }
}
