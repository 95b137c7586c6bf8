//! Files that would exhaust the parser's time or memory, and the limit on errors.

use std::time::Duration;

use proptest::prelude::*;
use rustix::time::{ClockId, clock_gettime};
use testkit::each_row;
use unified_proxy::config::FILES;

use super::samples::samples;
use super::{load_files, load_one};

#[test]
fn bombs_are_refused_quickly() {
    let aliases: String = (0..60)
        .map(|i| format!("a{i}: &a{i} [*a{j}, *a{j}, *a{j}]\n", j = i.max(1) - 1))
        .collect();
    let bombs = [
        "[".repeat(1 << 20),
        "{a: ".repeat(1 << 18),
        "- ".repeat(1 << 19),
        "? ".repeat(1 << 19),
        "[],".repeat(1 << 18),
        "&a ".repeat(1 << 18),
        "a: \n".repeat(1 << 18),
        "\"${X}".repeat(1 << 17),
        format!("x: \"{}\"", "${X}".repeat(1 << 17)),
        format!("[{}]", "\"${X}\",".repeat(1 << 17)),
        (0..100_000).map(|i| format!("k{i}: 1\n")).collect(),
        format!("version: 1\n{aliases}"),
        format!("version: 1\n{}", "# huge\n".repeat(1 << 18)),
    ];
    each_row(bombs, |bomb| {
        let began = processor_time();
        let errors = load_one("proxy.yaml", &bomb).expect_err("the bomb is accepted");
        let took = processor_time() - began;
        let start: String = bomb.chars().take(12).collect();
        assert!(took < Duration::from_secs(5), "{start}: {took:?}");
        assert!(errors.lines().count() <= 101, "{start}");
    });
}

/// CPU time of this thread so far. Other load on the machine does not increase it.
fn processor_time() -> Duration {
    clock_gettime(ClockId::ThreadCPUTime).try_into().unwrap()
}

#[test]
fn errors_beyond_100_are_omitted_with_a_note() {
    let keys: String = (0..200).map(|i| format!("k{i}: 1\n")).collect();
    let errors = load_one("proxy.yaml", &keys).unwrap_err();
    let first = "proxy.yaml: has more than 100 errors: not all are shown";
    assert_eq!(
        (errors.lines().count(), errors.lines().next()),
        (101, Some(first))
    );
}

proptest! {
    #![proptest_config(ProptestConfig { failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn arbitrary_bytes_never_panic(bytes in prop::collection::vec(any::<u8>(), 0..200), file in 0..FILES.len()) {
        let _ = load_files(&[(FILES[file], &bytes)]);
    }

    #[test]
    fn arbitrary_yaml_never_panics(text in "([a-c]|version|domains|[-?:,\\[\\]{}#&*!|>'\"%@` \n\t~0-9.é\u{feff}]|: |- |\\$\\{|<<){0,60}", file in 0..FILES.len()) {
        let _ = load_files(&[(FILES[file], format!("version: 1\n{text}").as_bytes())]);
        let _ = load_files(&[(FILES[file], text.as_bytes())]);
    }

    #[test]
    fn samples_with_a_cut_and_a_splice_never_panic(which in any::<prop::sample::Index>(), at in any::<prop::sample::Index>(), length in 0..30_usize, splice in "[-?:,\\[\\]{}#&*!|>'\"% \n~0a$]{0,4}") {
        let mut samples = samples();
        let which = which.index(samples.len());
        let (name, text) = samples.swap_remove(which);
        let start = at.index(text.len());
        let end = (start + length).min(text.len());
        let mutant = [&text.as_bytes()[..start], splice.as_bytes(), &text.as_bytes()[end..]].concat();
        let _ = load_files(&[(name, &mutant)]);
    }
}
