//! Reads lines of bounded length, charged to the memory for buffered bodies.

use std::ops::ControlFlow;
use std::sync::Arc;
use std::time::Duration;

use tokio::io::{AsyncRead, AsyncReadExt};
use tokio::time::{Instant, sleep};

use super::LineTaker;
use crate::mcp::mounts::{MessageMemory, MessageReservation, MountError};

/// Size of a read, in bytes.
const CHUNK: usize = 64 << 10;
/// Capacity that the buffer keeps after a line, in bytes. Between lines, a child uses at most this
/// capacity and one chunk without a reservation.
const KEPT: usize = 64 << 10;
/// How long a line waits for memory. Meanwhile the process blocks on its full pipe.
const MEMORY_WAIT: Duration = Duration::from_secs(5);
/// Interval between attempts of a waiting line to reserve memory.
const MEMORY_RETRY: Duration = Duration::from_millis(50);

/// The lines of a process's output.
pub(super) struct Lines<S> {
    pub stream: S,
    /// Limit on the length of a line, in bytes.
    pub longest: usize,
    /// The memory that unfinished lines are charged to.
    pub memory: Arc<dyn MessageMemory>,
}

impl<S: AsyncRead + Unpin> Lines<S> {
    /// Hands each line to `take`; see
    /// [`ProcessManager::read_loop`](super::ProcessManager::read_loop).
    pub async fn read(mut self, take: LineTaker<'_>) -> Result<(), MountError> {
        let mut chunk = vec![0; CHUNK];
        let mut line = Unfinished::default();
        loop {
            let read = match self.stream.read(&mut chunk).await {
                Ok(0) => return Ok(()),
                Ok(read) => read,
                Err(error) => {
                    return Err(MountError::Protocol(format!(
                        "the server's output cannot be read: {error}"
                    )));
                }
            };
            let mut rest = chunk.get(..read).unwrap_or_default();
            while let Some(end) = rest.iter().position(|byte| *byte == b'\n') {
                let (head, tail) = rest.split_at(end);
                rest = tail.get(1..).unwrap_or_default();
                // Most lines lie within one chunk.
                let taken = if line.text.is_empty() && head.len() <= self.longest {
                    take(head)
                } else {
                    line.extend(head, &self).await?;
                    let taken = take(&line.text);
                    line.clear();
                    taken
                };
                match taken {
                    ControlFlow::Break(()) => return Ok(()),
                    ControlFlow::Continue(pause) if pause.is_zero() => {}
                    ControlFlow::Continue(pause) => sleep(pause).await,
                }
            }
            // Without an unfinished line, the kept buffer needs no reservation.
            if !rest.is_empty() {
                line.extend(rest, &self).await?;
            }
        }
    }
}

/// A line whose end has not been read, and its memory.
#[derive(Default)]
struct Unfinished {
    text: Vec<u8>,
    reservation: MessageReservation,
}

impl Unfinished {
    /// Appends to the line. Waits for memory, at most [`MEMORY_WAIT`]; fails after that, or if the
    /// line becomes too long.
    async fn extend<S>(&mut self, more: &[u8], lines: &Lines<S>) -> Result<(), MountError> {
        let length = self.text.len().saturating_add(more.len());
        if length > lines.longest {
            let longest = lines.longest;
            let sentence = format!("the server sent a line of more than {longest} bytes");
            return Err(MountError::Protocol(sentence));
        }
        let capacity = self.text.capacity();
        let needed = match length > capacity {
            // Doubles, as a vector does, so that copying is amortised.
            true => length.max(capacity.saturating_mul(2)).min(lines.longest),
            false => capacity,
        };
        let until = Instant::now() + MEMORY_WAIT;
        while let Err(denial) = self.reservation.try_grow_to(&*lines.memory, needed) {
            if Instant::now() >= until {
                lines.memory.count(&denial);
                return Err(MountError::Denied(denial));
            }
            sleep(MEMORY_RETRY).await;
        }
        self.text
            .reserve_exact(needed.saturating_sub(self.text.len()));
        self.text.extend_from_slice(more);
        Ok(())
    }

    fn clear(&mut self) {
        self.text.clear();
        self.text.shrink_to(KEPT);
        self.reservation = MessageReservation::default();
    }
}

#[cfg(test)]
mod tests {
    use addons::contract::{Container, Denial};
    use proptest::prelude::*;

    use super::*;
    use crate::http::{Inspection, Reservation, unregistered_container};

    /// The memory of one container.
    struct Memory(Arc<Inspection>, Container);

    /// Bytes that are reserved for each body in addition to the bytes of the body.
    const OVERHEAD: usize = 8 << 10;

    impl Memory {
        fn new() -> Arc<Self> {
            let inspection = Inspection::new(&prometheus::Registry::new()).unwrap();
            Arc::new(Self(
                Arc::new(inspection),
                unregistered_container().unwrap(),
            ))
        }
    }

    impl MessageMemory for Memory {
        fn reserve(&self) -> Result<Arc<Reservation>, Denial> {
            self.0.begin(&self.1, 16 << 20)
        }

        fn count(&self, denial: &Denial) {
            self.0.count(denial);
        }
    }

    async fn lines(chunks: Vec<Vec<u8>>, longest: usize) -> (Vec<Vec<u8>>, bool) {
        let memory = Memory::new();
        let mut read = Vec::new();
        let mut take = |line: &[u8]| {
            read.push(line.to_vec());
            ControlFlow::Continue(Duration::ZERO)
        };
        let stream = stream_of(chunks);
        let lines = Lines {
            stream,
            longest,
            memory,
        };
        let ended = lines.read(&mut take).await;
        (read, ended.is_ok())
    }

    #[tokio::test(start_paused = true)]
    async fn an_unfinished_line_waits_for_memory_and_fails_after_the_time_limit() {
        // A container may use a quarter of the 16 MiB. While `other` holds 2 MiB of these 4 MiB,
        // the line does not fit.
        const LONG: usize = 3 << 20;
        let memory = Memory::new();
        let other = memory.reserve().unwrap();
        other.grow(2 << 20).unwrap();
        let chunks = vec![vec![b'x'; LONG], b"\n".to_vec()];
        let read = |memory: Arc<Memory>| {
            let stream = stream_of(chunks.clone());
            let lines = Lines {
                stream,
                longest: LONG,
                memory,
            };
            async move {
                let mut take = |line: &[u8]| {
                    assert_eq!(line.len(), LONG);
                    ControlFlow::Continue(Duration::ZERO)
                };
                lines.read(&mut take).await
            }
        };
        let began = Instant::now();
        let failed = read(Arc::clone(&memory)).await.unwrap_err();
        assert!(matches!(failed, MountError::Denied(_)), "{failed}");
        assert!(began.elapsed() >= MEMORY_WAIT);
        let freed = async {
            sleep(MEMORY_WAIT / 2).await;
            drop(other);
        };
        let (read, ()) = tokio::join!(read(Arc::clone(&memory)), freed);
        read.unwrap();
        let all = memory.reserve().unwrap();
        all.grow((4 << 20) - OVERHEAD)
            .expect("the lines released all their memory");
    }

    /// A stream to which a task writes these chunks one by one.
    fn stream_of(chunks: Vec<Vec<u8>>) -> impl AsyncRead + Unpin {
        let (reader, mut writer) = tokio::io::duplex(4096);
        tokio::spawn(async move {
            use tokio::io::AsyncWriteExt;
            for chunk in chunks {
                // The reader may have given up.
                if writer.write_all(&chunk).await.is_err() {
                    return;
                }
            }
        });
        reader
    }

    #[tokio::test]
    async fn a_line_over_the_limit_fails_before_it_is_complete() {
        let (read, ok) = lines(vec![b"short\n".to_vec(), vec![b'x'; 5000]], 100).await;
        assert_eq!((read, ok), (vec![b"short".to_vec()], false));
        let (_, ok) = lines(vec![vec![b'x'; 101], b"\n".to_vec()], 100).await;
        assert!(!ok);
        let (read, ok) = lines(vec![vec![b'x'; 100], b"\n".to_vec()], 100).await;
        assert!(ok && read.len() == 1);
    }

    proptest! {
        #[test]
        fn lines_are_the_same_in_any_chunking(
            texts in prop::collection::vec("[a-z]{0,40}", 0..8), cut in 1_usize..30
        ) {
            let runtime = tokio::runtime::Builder::new_current_thread().build().unwrap();
            let whole: String = texts.iter().map(|text| format!("{text}\n")).collect();
            let chunks = whole.as_bytes().chunks(cut).map(<[u8]>::to_vec).collect();
            let (read, ok) = runtime.block_on(lines(chunks, 100));
            let expected: Vec<_> = texts.iter().map(|text| text.as_bytes().to_vec()).collect();
            prop_assert!(ok);
            prop_assert_eq!(read, expected);
        }
    }
}
