//! LFS batch calls: judging one does not panic or take 5 s, and judging the body that is sent
//! upstream returns this body unchanged.
#![no_main]

use addons::contract::Code;
use libfuzzer_sys::fuzz_target;

mod git;

/// The body that is sent upstream for a batch call, or the code of the denial.
fn judge(batch: &[u8]) -> Result<Vec<u8>, Code> {
    let (sent, code) = git::post("/acme/web/info/lfs/objects/batch", &[batch]);
    code.map_or(Ok(sent), Err)
}

fuzz_target!(|batch: &[u8]| {
    let begun = std::time::Instant::now();
    match judge(batch) {
        Ok(sent) => {
            assert!(
                sent.len() <= batch.len() + 1024,
                "the sent body is too long"
            );
            assert_eq!(
                judge(&sent).as_ref(),
                Ok(&sent),
                "the sent body is judged differently"
            );
            let sent: serde_json::Value = serde_json::from_slice(&sent).unwrap();
            let sizes = sent["objects"].as_array().into_iter().flatten();
            let too_large = |object: &serde_json::Value| object["size"].as_u64() > Some(1024);
            assert!(sent["operation"] == "download" || !{ sizes }.any(too_large));
        }
        Err(code) => assert_ne!(code, Code::InternalError),
    }
    assert!(begun.elapsed().as_secs() < 5, "{:?}", begun.elapsed());
});
