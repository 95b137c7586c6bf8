//! Lines of a stream, of bounded length.

use std::ops::ControlFlow;

use tokio::io::{AsyncRead, AsyncReadExt};
use tokio::time::sleep;

use super::LineTaker;
use crate::mcp::mounts::MountError;

/// Bytes that are read at once.
const CHUNK: usize = 64 << 10;
/// A buffer that grew beyond this is given back after its line, in bytes.
const KEPT: usize = 256 << 10;

/// Hands each line to `take`; see [`ProcessManager::read_loop`](super::ProcessManager::read_loop).
pub(super) async fn read(
    mut stream: impl AsyncRead + Unpin,
    longest: usize,
    take: LineTaker<'_>,
) -> Result<(), MountError> {
    let mut chunk = vec![0; CHUNK];
    let mut line: Vec<u8> = Vec::new();
    loop {
        let read = match stream.read(&mut chunk).await {
            Ok(0) => return Ok(()),
            Ok(read) => read,
            Err(error) => return Err(MountError::Protocol(format!("its output: {error}"))),
        };
        let mut rest = chunk.get(..read).unwrap_or_default();
        while let Some(end) = memchr(rest) {
            let (head, tail) = rest.split_at(end);
            rest = tail.get(1..).unwrap_or_default();
            if line.len().saturating_add(head.len()) > longest {
                return Err(too_long(longest));
            }
            // Most lines lie within one chunk.
            let taken = match line.is_empty() {
                true => take(head),
                false => {
                    line.extend_from_slice(head);
                    let taken = take(&line);
                    line.clear();
                    line.shrink_to(KEPT);
                    taken
                }
            };
            match taken {
                ControlFlow::Break(()) => return Ok(()),
                ControlFlow::Continue(pause) if pause.is_zero() => {}
                ControlFlow::Continue(pause) => sleep(pause).await,
            }
        }
        if line.len().saturating_add(rest.len()) > longest {
            return Err(too_long(longest));
        }
        line.extend_from_slice(rest);
    }
}

fn memchr(bytes: &[u8]) -> Option<usize> {
    bytes.iter().position(|byte| *byte == b'\n')
}

fn too_long(longest: usize) -> MountError {
    MountError::Protocol(format!("it sent a line of more than {longest} bytes"))
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use proptest::prelude::*;

    use super::*;

    async fn lines(chunks: Vec<Vec<u8>>, longest: usize) -> (Vec<Vec<u8>>, bool) {
        let mut stream = tokio_test_stream(chunks);
        let mut lines = Vec::new();
        let mut take = |line: &[u8]| {
            lines.push(line.to_vec());
            ControlFlow::Continue(Duration::ZERO)
        };
        let read = read(&mut stream, longest, &mut take).await;
        (lines, read.is_ok())
    }

    /// A stream that yields these chunks one by one.
    fn tokio_test_stream(chunks: Vec<Vec<u8>>) -> impl AsyncRead + Unpin {
        let (reader, mut writer) = tokio::io::duplex(16);
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
    async fn a_line_that_is_too_long_ends_the_reading_before_it_is_complete() {
        let (read, ok) = lines(vec![b"short\n".to_vec(), vec![b'x'; 5000]], 100).await;
        assert_eq!((read, ok), (vec![b"short".to_vec()], false));
        let (_, ok) = lines(vec![vec![b'x'; 101], b"\n".to_vec()], 100).await;
        assert!(!ok);
        let (read, ok) = lines(vec![vec![b'x'; 100], b"\n".to_vec()], 100).await;
        assert!(ok && read.len() == 1);
    }

    proptest! {
        #[test]
        fn lines_are_the_same_however_they_arrive(
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
