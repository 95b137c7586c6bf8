//! Pushes: judging a body does not panic, chunk boundaries do not change the verdict, and a push
//! that passes is unchanged.
#![no_main]

use libfuzzer_sys::fuzz_target;

mod git;

fn push(pieces: &[&[u8]]) -> (Vec<u8>, Option<addons::contract::Code>) {
    git::post("/acme/web/git-receive-pack", pieces)
}

fuzz_target!(|body: &[u8]| {
    let (whole, expected) = push(&[body]);
    let bytes: Vec<_> = body.chunks(1).collect();
    let (passed, code) = push(&bytes);
    assert_eq!(code, expected);
    assert!(body.starts_with(&passed) && passed.starts_with(&whole));
    assert!(code.is_some() || passed == body);
});
