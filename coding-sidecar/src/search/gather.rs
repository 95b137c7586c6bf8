//! Searches many files on several threads. The result does not depend on the number of threads.
//!
//! Threads take batches of files from one walk, and the results are joined in the order of the
//! walk. A thread finishes a batch that it has begun, unless this batch alone fills the result. So
//! the result has the first matches of the tree.

use std::collections::BTreeMap;
use std::os::fd::OwnedFd;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread;

use grep_regex::RegexMatcher;
use grep_searcher::{BinaryDetection, Searcher, SearcherBuilder};
use rustix::fs::{FileType, OFlags, fstat};
use rustix::io::Errno;

use super::Skipped;
use super::filter::Filter;
use super::lines::{CheckedReader, FileLines};
use super::walk::{Found, Walk};
use crate::failure::{Failure, reason};
use crate::truncation::{HeadCut, OUTPUT_BYTES_MAX, OUTPUT_LINES_MAX};
use crate::work::Work;
use crate::workspace::{Links, Workspace, WorkspacePath};

/// The number of files in a batch: large enough that the walk's lock is rarely contended.
const BATCH_FILES: usize = 64;
/// The most folders of a batch: each is an open descriptor until its files have been searched.
const BATCH_FOLDERS: usize = 8;
/// The most threads of one search.
const THREADS_MAX: usize = 8;
/// The most bytes of a line. The search of a file ends at a longer line, which is usually
/// generated. The deadline is not checked within a line. So this limit and the limit on the size of
/// a compiled pattern bound how long a search runs past its deadline.
const LINE_BYTES_MAX: usize = 256 * 1024;
/// The number of bytes of found lines after which a search ends: more than a result can hold.
const GATHERED_BYTES_MAX: usize = 5 * OUTPUT_BYTES_MAX;

/// The parameters of a search.
pub(super) struct Search<'a> {
    pub(super) workspace: &'a Workspace,
    pub(super) matcher: RegexMatcher,
    pub(super) filter: Option<Filter>,
    pub(super) context: usize,
    pub(super) limit: usize,
    pub(super) work: &'a Work,
}

/// The found lines, and the reasons why lines are missing.
pub(super) struct Gathered {
    pub(super) cut: HeadCut,
    pub(super) more_matches: bool,
    pub(super) lines_cut: bool,
    pub(super) skipped: Skipped,
}

/// Searches the one file that the request names.
pub(super) fn search_file(search: &Search<'_>, path: &WorkspacePath) -> Result<Gathered, Failure> {
    let open = search.workspace.file(path)?;
    let mut batch = BatchResult::default();
    if search.accepts(path.relative()) {
        let shown = path.shown();
        let mut searcher = search.searcher();
        let nul = search.search(open.file.into(), shown, &mut searcher, &mut batch)?;
        if let Some(nul) = nul {
            let reason = format!("the rest, from the NUL at byte {nul} on (a binary file)");
            batch.skipped.add(path.requested(), reason);
        }
    }
    let batches = BTreeMap::from([(0, batch)]);
    Ok(join(batches, search.limit, Skipped::default()))
}

/// Searches the files of a tree.
pub(super) fn search_tree(search: &Search<'_>, walk: Walk<'_>) -> Result<Gathered, Failure> {
    let shared = Shared {
        search,
        source: Mutex::new(Source { walk, next: 0 }),
        results: Mutex::default(),
        enough: AtomicBool::new(false),
    };
    // A small tree is searched before another thread would have started.
    let more = shared.search_batch(&mut search.searcher())?;
    if more {
        let threads = thread::available_parallelism().map_or(1, |threads| threads.get());
        thread::scope(|scope| {
            for _ in 1..threads.min(THREADS_MAX) {
                // If no thread can be started, this one does the work.
                let _ = thread::Builder::new().spawn_scoped(scope, || shared.search_all());
            }
            shared.search_all();
        });
    }
    let results = shared
        .results
        .into_inner()
        .unwrap_or_else(PoisonError::into_inner);
    if let Some(failure) = results.failure {
        return Err(failure);
    }
    let source = shared
        .source
        .into_inner()
        .unwrap_or_else(PoisonError::into_inner);
    Ok(join(results.batches, search.limit, source.walk.skipped))
}

/// The state that the threads of one search share.
struct Shared<'a> {
    search: &'a Search<'a>,
    source: Mutex<Source<'a>>,
    results: Mutex<Results>,
    /// Set once the batches so far fill the result, or after a failure.
    enough: AtomicBool,
}

struct Source<'a> {
    walk: Walk<'a>,
    /// The number of the next batch.
    next: u64,
}

/// The files that one thread searches, with their paths as the result shows them.
struct FileBatch {
    number: u64,
    files: Vec<(Found, String)>,
    /// Whether there may be another batch.
    more: bool,
}

#[derive(Default)]
struct Results {
    batches: BTreeMap<u64, BatchResult>,
    matches: usize,
    bytes: usize,
    failure: Option<Failure>,
}

/// The results of one batch: the files with matches, and the skipped files.
#[derive(Default)]
struct BatchResult {
    files: Vec<FileLines>,
    skipped: Skipped,
}

impl Shared<'_> {
    /// Searches batches until the walk has ended, the result is full or a search fails.
    fn search_all(&self) {
        let mut searcher = self.search.searcher();
        loop {
            match self.search_batch(&mut searcher) {
                Ok(true) => {}
                Ok(false) => return,
                Err(failure) => {
                    self.results().failure.get_or_insert(failure);
                    self.enough.store(true, Ordering::Relaxed);
                    return;
                }
            }
        }
    }

    /// Searches the next batch, unless the result is full. Returns whether there may be another.
    fn search_batch(&self, searcher: &mut Searcher) -> Result<bool, Failure> {
        if self.enough.load(Ordering::Relaxed) {
            return Ok(false);
        }
        let FileBatch {
            number,
            files,
            more,
        } = self.next_files()?;
        let mut batch = BatchResult::default();
        let (mut matches, mut bytes) = (0_usize, 0_usize);
        for (found, shown) in files {
            self.search.work.check()?;
            self.search
                .search_found(&found, shown, searcher, &mut batch)?;
            matches = batch.files.iter().map(FileLines::matches).sum();
            bytes = batch.files.iter().map(FileLines::bytes).sum();
            if matches > self.search.limit || bytes > GATHERED_BYTES_MAX {
                break;
            }
        }
        let mut results = self.results();
        results.matches = results.matches.saturating_add(matches);
        results.bytes = results.bytes.saturating_add(bytes);
        if results.matches > self.search.limit || results.bytes > GATHERED_BYTES_MAX {
            self.enough.store(true, Ordering::Relaxed);
        }
        if !batch.files.is_empty() || batch.skipped.count > 0 {
            results.batches.insert(number, batch);
        }
        Ok(more)
    }

    fn next_files(&self) -> Result<FileBatch, Failure> {
        let mut source = self.source.lock().unwrap_or_else(PoisonError::into_inner);
        let mut files: Vec<(Found, String)> = Vec::with_capacity(BATCH_FILES);
        let mut folders = 0_usize;
        let mut more = true;
        while files.len() < BATCH_FILES && folders < BATCH_FOLDERS {
            let Some(found) = source.walk.next(self.search.work)? else {
                more = false;
                break;
            };
            if found.kind == FileType::RegularFile && self.search.accepts(&found.path) {
                let known = files
                    .last()
                    .is_some_and(|(last, _)| Arc::ptr_eq(&last.folder, &found.folder));
                folders = folders.saturating_add(usize::from(!known));
                let shown = source.walk.shown(&found.path);
                files.push((found, shown));
            }
        }
        let number = source.next;
        source.next = number.saturating_add(1);
        Ok(FileBatch {
            number,
            files,
            more,
        })
    }

    fn results(&self) -> MutexGuard<'_, Results> {
        self.results.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Search<'_> {
    fn searcher(&self) -> Searcher {
        SearcherBuilder::new()
            .before_context(self.context)
            .after_context(self.context)
            .line_number(true)
            .heap_limit(Some(LINE_BYTES_MAX))
            .binary_detection(BinaryDetection::quit(0))
            .build()
    }

    fn accepts(&self, path: &[u8]) -> bool {
        self.filter
            .as_ref()
            .is_none_or(|filter| filter.accepts(path))
    }

    /// Searches an entry of the walk. If it was removed or changed its kind meanwhile, it has no
    /// matches.
    fn search_found(
        &self,
        found: &Found,
        shown: String,
        searcher: &mut Searcher,
        batch: &mut BatchResult,
    ) -> Result<(), Failure> {
        let opened = self
            .workspace
            .open_at(&found.folder, &found.name, OFlags::RDONLY, Links::Refuse)
            .and_then(|fd| Ok((fstat(&fd)?, fd)));
        match opened {
            Ok((stat, fd)) if FileType::from_raw_mode(stat.st_mode) == FileType::RegularFile => {
                self.search(fd, shown, searcher, batch).map(|_| ())
            }
            Ok(_) | Err(Errno::NOENT) => Ok(()),
            Err(error) => {
                batch.skipped.add(&shown, reason(error));
                Ok(())
            }
        }
    }

    /// Searches `file` and adds the found lines to `batch`. The search ends at the first NUL byte;
    /// returns its offset, or `None` if the search reached no NUL byte.
    fn search(
        &self,
        file: OwnedFd,
        shown: String,
        searcher: &mut Searcher,
        batch: &mut BatchResult,
    ) -> Result<Option<u64>, Failure> {
        // One match more than the limit shows that there are more.
        let matches_max = self.limit.saturating_add(1);
        let mut lines = FileLines::new(shown, matches_max, GATHERED_BYTES_MAX);
        let reader = CheckedReader {
            file: file.into(),
            work: self.work,
        };
        if let Err(error) = searcher.search_reader(&self.matcher, reader, &mut lines) {
            self.work.check()?;
            let reason = match error.raw_os_error() {
                Some(_) => error.to_string(),
                // Only the error of the searcher's heap limit has no number.
                None => format!("the rest, from a line of more than {LINE_BYTES_MAX} bytes on"),
            };
            batch.skipped.add(lines.path(), reason);
        }
        let binary_at = lines.binary_at;
        if lines.matches() > 0 {
            batch.files.push(lines);
        }
        Ok(binary_at)
    }
}

/// Joins the results of batches in the order of the walk, and applies the limit of matches.
fn join(batches: BTreeMap<u64, BatchResult>, limit: usize, skipped: Skipped) -> Gathered {
    let mut gathered = Gathered {
        cut: HeadCut::new(OUTPUT_LINES_MAX),
        more_matches: false,
        lines_cut: false,
        skipped,
    };
    let mut left = limit;
    for batch in batches.into_values() {
        gathered.skipped.merge(batch.skipped);
        for file in batch.files {
            gathered.more_matches |= file.matches() > left;
            if left > 0 {
                gathered.cut.take(file.text(left).as_bytes());
                gathered.lines_cut |= file.has_cut_lines();
            }
            left = left.saturating_sub(file.matches());
        }
    }
    gathered
}
