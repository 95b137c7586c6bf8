//! The first bytes inside a tunnel: chunk boundaries change neither the detected protocol nor the
//! server name of a ClientHello.
#![no_main]

use libfuzzer_sys::fuzz_target;
use unified_proxy::ingress::{HelloReader, Sniffed, sniff};

/// Reads a ClientHello that arrives in pieces of `size` bytes. Returns the server name and the
/// length of the ClientHello, or an error if the ClientHello is refused. `None` if it is
/// incomplete.
fn hello(bytes: &[u8], size: usize) -> Option<Result<(Option<String>, usize), ()>> {
    let mut reader = HelloReader::default();
    let ends = (size..bytes.len()).step_by(size).chain([bytes.len()]);
    for end in ends {
        match reader.read(bytes.get(..end)?) {
            Ok(None) => {}
            Ok(Some(accepted)) => {
                let name = accepted.client_hello().server_name().map(str::to_owned);
                return Some(Ok((name, reader.length())));
            }
            Err(_) => return Some(Err(())),
        }
    }
    None
}

fuzz_target!(|input: (u8, &[u8])| {
    let (size, bytes) = input;
    let whole = sniff(bytes);
    let decided = (0..=bytes.len().min(600))
        .filter_map(|end| bytes.get(..end))
        .map(sniff)
        .find(|verdict| *verdict != Sniffed::NeedMore);
    if let Some(decided) = decided {
        assert_eq!(decided, whole);
    }
    if whole == Sniffed::Tls {
        let whole = hello(bytes, bytes.len());
        let cut = hello(bytes, usize::from(size).max(1));
        // In one piece, the reader may also get bytes after the ClientHello, and refuse those.
        if let (Some(Ok((whole, _))), Some(Ok((cut, _)))) = (whole, cut) {
            assert_eq!(whole, cut);
        }
    }
});
