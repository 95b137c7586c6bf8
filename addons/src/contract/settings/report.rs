//! The report: the errors of all files, each with file, line, column and key path.

use std::cell::RefCell;
use std::cmp::Ordering;
use std::fmt;
use std::sync::Arc;

use saphyr_parser::Marker;

/// Limit on the errors kept for one file. Further errors are most likely consequences of these.
const MAX_ERRORS_PER_FILE: usize = 100;

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

/// One error and its place. The message quotes no unparsed value from a file or the environment,
/// since that might be a misplaced secret. It may quote a key, and a value that was parsed, such as
/// a host name.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct ConfigError {
    /// The file's name, or the directory if the error concerns the directory.
    pub file: Arc<str>,
    /// Counted from 1; 0 for an error of the whole file.
    pub line: usize,
    /// Counted from 1, in characters; 0 for an error of the whole file.
    pub column: usize,
    /// The key's path, such as `domains[2].ports[0]`; empty for the whole document.
    pub key: String,
    /// The error, and how to correct it.
    pub message: String,
}

impl fmt::Display for ConfigError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.file)?;
        if self.line > 0 {
            write!(f, ":{}:{}", self.line, self.column)?;
        }
        if !self.key.is_empty() {
            write!(f, ": {}", self.key)?;
        }
        write!(f, ": {}", self.message)
    }
}

impl std::error::Error for ConfigError {}

/// The errors of all files, sorted by file and line. Never empty. Has at most 100 errors for each
/// file, and one more that says that not all are shown.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ConfigErrors(pub Vec<ConfigError>);

impl fmt::Display for ConfigErrors {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let lines: Vec<_> = self.0.iter().map(ConfigError::to_string).collect();
        f.write_str(&lines.join("\n"))
    }
}

impl std::error::Error for ConfigErrors {}

/// Collects errors and warnings while files are read.
#[derive(Default)]
pub struct Report {
    errors: RefCell<Vec<ConfigError>>,
    warnings: RefCell<Vec<String>>,
}

impl Report {
    /// Adds an error, unless another reader has reported the same one or the file has too many.
    pub fn error(&self, error: ConfigError) {
        let mut errors = self.errors.borrow_mut();
        if errors.contains(&error) {
            return;
        }
        let same_file = errors.iter().filter(|e| e.file == error.file).count();
        match same_file.cmp(&MAX_ERRORS_PER_FILE) {
            Ordering::Less => errors.push(error),
            Ordering::Equal => errors.push(ConfigError {
                file: error.file,
                line: 0,
                column: 0,
                key: String::new(),
                message: format!("has more than {MAX_ERRORS_PER_FILE} errors: not all are shown"),
            }),
            Ordering::Greater => {}
        }
    }

    /// Adds a warning, unless another reader has added the same one.
    pub fn warn(&self, warning: String) {
        let mut warnings = self.warnings.borrow_mut();
        if !warnings.contains(&warning) {
            warnings.push(warning);
        }
    }

    /// Returns the warnings if there is no error, otherwise the errors in order.
    pub fn finish(self) -> Result<Vec<String>, ConfigErrors> {
        let mut errors = self.errors.into_inner();
        if errors.is_empty() {
            return Ok(self.warnings.into_inner());
        }
        errors.sort();
        Err(ConfigErrors(errors))
    }
}

/// The report for one file.
#[derive(Clone, Copy)]
pub struct FileReport<'a> {
    /// The file's name.
    pub file: &'a Arc<str>,
    /// The report of all files.
    pub report: &'a Report,
}

impl FileReport<'_> {
    /// Reports an error at a place.
    pub fn refuse(&self, place: Place, key: &str, message: impl Into<String>) {
        self.report.error(ConfigError {
            file: self.file.clone(),
            line: place.line,
            column: place.column,
            key: key.to_owned(),
            message: message.into(),
        });
    }

    /// Reports an error of the whole file.
    pub fn refuse_file(&self, message: impl Into<String>) {
        self.refuse(Place { line: 0, column: 0 }, "", message);
    }

    /// Adds a warning about the file.
    pub fn warn(&self, message: impl fmt::Display) {
        self.report.warn(format!("{}: {message}", self.file));
    }

    /// Adds a warning about a line.
    pub fn warn_at(&self, place: Place, message: impl fmt::Display) {
        let line = place.line;
        self.report.warn(format!("{}:{line}: {message}", self.file));
    }
}
