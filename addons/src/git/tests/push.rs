use std::time::Duration;

use proptest::prelude::*;
use testkit::each_row;

use super::*;
use crate::contract::Kind;
use crate::fixtures::{flow, processor_time, request, send_body};

fn rules() -> PushRules {
    PushRules {
        repo: "acme/web".to_owned(),
        ref_prefixes: None,
        allow_deletion: false,
        limit: limit(1 << 30),
        report: true,
    }
}

fn limit(bytes: u64) -> Limit {
    let rule = "the limit".to_owned();
    Limit { bytes, rule }
}

fn limited(bytes: u64) -> PushRules {
    PushRules {
        limit: limit(bytes),
        ..rules()
    }
}

fn bot() -> PushRules {
    PushRules {
        ref_prefixes: Some(["refs/heads/sandbox/".to_owned()].into()),
        ..rules()
    }
}

/// Sends a body in pieces. Returns the bytes that passed, and the verdict.
fn send(rules: PushRules, pieces: &[&[u8]]) -> (Vec<u8>, Verdict) {
    announced(rules, None, pieces)
}

fn announced(rules: PushRules, length: Option<u64>, pieces: &[&[u8]]) -> (Vec<u8>, Verdict) {
    let mut flow = flow(Kind::Http, "github.com");
    let mut push = request("/acme/web/git-receive-pack", &[]);
    push.judge_body(MAX_COMMANDS, JudgePush::new(rules, length));
    send_body(&mut flow, &mut push, pieces)
}

fn denied(rules: PushRules, body: &[u8]) -> Option<Code> {
    let (passed, verdict) = send(rules, &[body]);
    if verdict.is_err() {
        assert_eq!(passed, b"", "no byte of a denied push passes");
    } else {
        assert_eq!(passed, body);
    }
    verdict.err().map(|denial| denial.code())
}

#[test]
fn a_push_passes_byte_for_byte() {
    let mut body = commands(&[(ID, "refs/heads/main"), (ID, "refs/tags/v1")]);
    body.extend_from_slice(b"PACK and whatever follows");
    assert_eq!(denied(rules(), &body), None);
}

#[test]
fn a_push_without_commands_passes_unless_data_follows_it() {
    assert_eq!(denied(rules(), b"0000"), None);
    let smuggled = [&b"0000"[..], &commands(&[(ZERO, "refs/heads/main")])].concat();
    assert_eq!(denied(rules(), &smuggled), Some(Code::MalformedRequest));
    let (passed, verdict) = send(rules(), &[b"0000", b"x"]);
    assert_eq!(passed, b"0000");
    assert!(verdict.is_err());
}

#[test]
fn each_ref_is_judged() {
    use Code::*;
    each_row(
        [
            (ID, "refs/heads/main", None, Some(BotBranchRestricted)),
            (ID, "refs/heads/sandbox/a", None, None),
            (ID, "refs/heads/sandboxed", None, Some(BotBranchRestricted)),
            (ID, "refs/tags/v1", None, Some(BotBranchRestricted)),
            (ID, "refs/tags/sandbox/a", None, Some(BotBranchRestricted)),
            (ID, "refs/notes/commits", None, Some(BotBranchRestricted)),
            (ID, "HEAD", Some(WriteNotAllowed), Some(BotBranchRestricted)),
            (
                ID,
                "refs/for/main",
                Some(WriteNotAllowed),
                Some(BotBranchRestricted),
            ),
            (
                ID,
                "refs/replace/0123",
                Some(WriteNotAllowed),
                Some(BotBranchRestricted),
            ),
            (
                ID,
                "refs/heads/sandbox/../main",
                Some(MalformedRequest),
                Some(MalformedRequest),
            ),
            (
                ID,
                "refs/heads/sandbox/",
                Some(MalformedRequest),
                Some(MalformedRequest),
            ),
            (
                ZERO,
                "refs/heads/sandbox/a",
                Some(BranchDeletionBlocked),
                Some(BranchDeletionBlocked),
            ),
            (
                ZERO,
                "refs/tags/v1",
                Some(BranchDeletionBlocked),
                Some(BranchDeletionBlocked),
            ),
        ],
        |(new, name, user, bot_mode)| {
            let body = commands(&[(ID, "refs/heads/sandbox/first"), (new, name)]);
            assert_eq!(denied(rules(), &body), user, "{name} as a user");
            assert_eq!(denied(bot(), &body), bot_mode, "{name} as a bot");
        },
    );
}

#[test]
fn allowed_deletions_pass_and_bots_stay_below_their_prefixes() {
    let allowed = |rules| PushRules {
        allow_deletion: true,
        ..rules
    };
    let main = commands(&[(ZERO, "refs/heads/main")]);
    assert_eq!(denied(allowed(rules()), &main), None);
    assert_eq!(
        denied(allowed(bot()), &main),
        Some(Code::BotBranchRestricted)
    );
    let own = commands(&[(ZERO, "refs/heads/sandbox/a")]);
    assert_eq!(denied(allowed(bot()), &own), None);
}

#[test]
fn denials_have_their_documented_sentences() {
    let sentence = |rules, body: &[u8]| {
        let denial = send(rules, &[body]).1.unwrap_err();
        (denial.sentence().to_owned(), denial.addon())
    };
    let deletion = sentence(rules(), &commands(&[(ZERO, "refs/heads/main")]));
    let blocked = "Branch deletion blocked: refs/heads/main";
    assert_eq!(deletion, (blocked.to_owned(), "git"));
    let bot = sentence(bot(), &commands(&[(ID, "refs/heads/main")]));
    let restricted = "Bot mode: can only push to sandbox/* branches";
    assert_eq!(bot, (restricted.to_owned(), "git"));
}

#[test]
fn the_denial_of_a_push_names_the_repository() {
    let bot: fn() -> PushRules = bot;
    each_row(
        [
            (bot, ID, "refs/heads/main", Code::BotBranchRestricted),
            (bot, ID, "refs/tags/v1", Code::BotBranchRestricted),
            (rules, ZERO, "refs/heads/a", Code::BranchDeletionBlocked),
            (rules, ID, "refs/pull/1/head", Code::WriteNotAllowed),
        ],
        |(rules, new, name, code)| {
            for report in [true, false] {
                let rules = PushRules { report, ..rules() };
                let denial = send(rules, &[&commands(&[(new, name)])]).1.unwrap_err();
                let found = (denial.code(), denial.detail("repo"));
                assert_eq!(found, (code, Some("acme/web")), "{name}, report: {report}");
            }
        },
    );
}

#[test]
fn a_denial_is_sent_as_a_report_on_every_ref_or_as_an_http_status() {
    let body = commands(&[(ID, "refs/heads/a"), (ZERO, "refs/heads/b")]);
    let denial = send(rules(), &[&body]).1.unwrap_err();
    let answer = denial.answer().unwrap();
    assert_eq!(answer.drain_bytes, 500 << 20);
    let text = String::from_utf8_lossy(&answer.body);
    each_row(["a", "b"], |name| {
        let line = format!("ng refs/heads/{name} Branch deletion blocked: refs/heads/b");
        assert!(text.contains(&line), "{text}");
    });
    let plain = PushRules {
        report: false,
        ..rules()
    };
    assert_eq!(send(plain, &[&body]).1.unwrap_err().answer(), None);
}

#[test]
fn a_push_over_the_limit_is_denied_with_a_report() {
    let head = commands(&[(ID, "refs/heads/a")]);
    let size = head.len() as u64;
    assert_eq!(denied(limited(size), &head), None);
    assert_eq!(denied(limited(size - 1), &head), Some(Code::PushTooLarge));
    let (passed, verdict) = send(limited(size + 10), &[&head, &[0; 10], &[0; 1]]);
    assert_eq!(passed.len() as u64, size + 10);
    let denial = verdict.unwrap_err();
    assert_eq!(denial.code(), Code::PushTooLarge);
    assert_eq!(denial.rule_name(), Some("the limit"));
    let text = String::from_utf8_lossy(&denial.answer().unwrap().body).into_owned();
    assert!(text.contains("ng refs/heads/a Push size exceeds limit"));
    assert!(text.contains("\x02Use Git LFS for large binary files"));
}

#[test]
fn an_announced_length_is_judged_before_the_pack() {
    let head = commands(&[(ID, "refs/heads/a")]);
    let (passed, verdict) = announced(limited(1000), Some(1001), &[&head]);
    assert!(passed.is_empty());
    let denial = verdict.unwrap_err();
    assert_eq!(denial.to_json()["details"]["push_size_bytes"], 1001);
}

#[test]
fn a_list_of_commands_over_1_mib_or_without_an_end_is_denied() {
    let line = format!("0090{ID} {ID} refs/tags/{}", "x".repeat(48));
    let many = line.repeat((1 << 20) / line.len() + 1);
    let code = denied(rules(), many.as_bytes());
    assert_eq!(code, Some(Code::BodyTooLargeToInspect));
    each_row(["", "0", "0085", &line[..100], &line], |cut| {
        let code = denied(rules(), cut.as_bytes());
        assert_eq!(code, Some(Code::MalformedRequest), "{cut}");
    });
}

/// Bodies of pushes: commands, some of them not permitted, and up to 39 bytes of pack. In three of
/// ten bodies, one byte of the commands is replaced.
fn body() -> impl Strategy<Value = Vec<u8>> {
    let name = prop_oneof![
        Just("refs/heads/main"),
        Just("refs/heads/sandbox/a"),
        Just("refs/heads/.."),
        Just("refs/for/main"),
    ];
    let command = (prop_oneof![4 => Just(ID), 1 => Just(ZERO)], name);
    let list = prop::collection::vec(command, 0..4);
    let damage = prop::option::weighted(0.3, (any::<prop::sample::Index>(), any::<u8>()));
    let rest = prop::collection::vec(any::<u8>(), 0..40);
    (list, damage, rest).prop_map(|(list, damage, rest)| {
        let mut body = commands(&list);
        if let Some((at, byte)) = damage {
            let at = at.index(body.len());
            body[at] = byte;
        }
        body.extend(rest);
        body
    })
}

proptest! {
    #[test]
    fn chunking_changes_no_verdict_and_no_byte(
        body in body(),
        bytes in 100u64..600,
        cuts in prop::collection::vec(any::<prop::sample::Index>(), 0..6),
    ) {
        let rules = || PushRules { limit: limit(bytes), ..bot() };
        let (whole, expected) = send(rules(), &[&body]);
        let mut cuts: Vec<_> = cuts.iter().map(|cut| cut.index(body.len())).collect();
        cuts.extend([0, body.len()]);
        cuts.sort_unstable();
        let pieces: Vec<_> = cuts.windows(2).map(|two| &body[two[0]..two[1]]).collect();
        let bytewise: Vec<_> = body.chunks(1).collect();
        for pieces in [pieces, bytewise] {
            let (passed, verdict) = send(rules(), &pieces);
            let code = |verdict: &Verdict| verdict.as_ref().err().map(Denial::code);
            prop_assert_eq!(code(&verdict), code(&expected));
            prop_assert!(body.starts_with(&passed) && passed.starts_with(&whole));
            if verdict.is_ok() {
                prop_assert_eq!(passed, body.clone());
            }
        }
    }

    #[test]
    fn no_body_causes_a_panic(body in prop::collection::vec(any::<u8>(), 0..300)) {
        let _ = send(rules(), &[&body]);
    }
}

#[track_caller]
fn assert_quick(pieces: &[&[u8]]) {
    let took = processor_time(|| {
        let _ = send(rules(), pieces);
    });
    assert!(took < Duration::from_millis(50), "{took:?}");
}

/// Sends about 1 MiB of each input that might be slow: the shortest lines, many commands, the
/// longest line, and flush packets. Each input is sent in one piece, then its first 100 000 bytes
/// are sent one by one.
#[test]
fn one_mebibyte_is_judged_quickly() {
    let shortest = "0005a".repeat((1 << 20) / 5);
    let line = format!("0068{ID} {ID} refs/tags/12345678");
    let commands = line.repeat(9_000);
    let longest = format!("fff0{}", "x".repeat(1 << 20));
    for body in [shortest, commands, longest, "0".repeat(1 << 20)] {
        let pieces: Vec<_> = body.as_bytes().chunks(1).collect();
        assert_quick(&[body.as_bytes()]);
        assert_quick(&pieces[..pieces.len().min(100_000)]);
    }
}

#[test]
fn after_many_commands_a_pack_that_becomes_too_large_is_denied_without_a_report() {
    let few = commands(&[(ID, "refs/heads/a")]);
    let many: Vec<_> = (0..700)
        .map(|number| format!("refs/heads/{number:020}"))
        .collect();
    let many: Vec<_> = many.iter().map(|name| (ID, name.as_str())).collect();
    each_row(
        [(few, true), (commands(&many), false)],
        |(head, reported)| {
            let rules = limited(head.len() as u64 + 10);
            let denial = send(rules, &[&head, &[0; 11]]).1.unwrap_err();
            assert_eq!(denial.code(), Code::PushTooLarge);
            assert_eq!(denial.answer().is_some(), reported, "{} bytes", head.len());
        },
    );
}
