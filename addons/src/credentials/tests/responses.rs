//! Responses: echoes of secrets are scrubbed.

use base64::Engine;
use base64::engine::general_purpose::{STANDARD, STANDARD_NO_PAD, URL_SAFE};
use http::HeaderValue;
use proptest::prelude::*;
use testkit::each_row;

use super::*;
use crate::contract::{Container, Scheme};

fn percent(text: &str, upper: bool) -> String {
    let escape = |byte: u8| match byte {
        b'a'..=b'z' | b'A'..=b'Z' | b'0'..=b'9' | b'-' | b'.' | b'_' | b'~' => {
            char::from(byte).to_string()
        }
        _ if upper => format!("%{byte:02X}"),
        _ => format!("%{byte:02x}"),
    };
    text.bytes().map(escape).collect()
}

/// Echoes of the secret in common encodings.
fn echoes(secret: &str) -> Vec<String> {
    let json = serde_json::to_string(secret).unwrap();
    let json = &json[1..json.len() - 1];
    let mut forms = vec![
        secret.to_owned(),
        percent(secret, true),
        percent(secret, false),
        json.replace('/', "\\/"),
        json.to_owned(),
        secret.bytes().map(|byte| format!("%{byte:02x}")).collect(),
    ];
    for before in ["", "a", "ab", "user:", "x-access-token:"] {
        let text = format!("{before}{secret}");
        forms.push(STANDARD.encode(&text));
        forms.push(URL_SAFE.encode(&text));
        forms.push(STANDARD_NO_PAD.encode(format!("{text}, and more")));
    }
    forms
}

/// Whether the body still reveals the secret: its text, the echo, or most of a long echo.
fn reveals(body: &[u8], secret: &str, echo: &str) -> bool {
    let body = String::from_utf8_lossy(body);
    let middle = echo.get(4..echo.len() - 4).unwrap_or(echo);
    body.contains(secret) || body.contains(echo) || (echo.len() > 20 && body.contains(middle))
}

#[test]
fn every_echo_is_replaced_by_the_credentials_name() {
    let (addon, mut flow) = guarded(basic(SECRET));
    for echo in echoes(SECRET) {
        let body = format!("before {echo} after");
        let back = respond(&addon, &mut flow, &[], &[body.as_bytes()]).unwrap();
        let back = String::from_utf8(back).unwrap();
        assert!(
            back.starts_with("before ") && back.ends_with(" after"),
            "{back}"
        );
        assert!(
            back.contains("[REDACTED:git]"),
            "{echo} came back as {back}"
        );
        assert!(!reveals(back.as_bytes(), SECRET, &echo), "{back}");
    }
    let exact = respond(
        &addon,
        &mut flow,
        &[],
        &[STANDARD.encode(SECRET).as_bytes()],
    );
    assert_eq!(exact.unwrap(), b"[REDACTED:git]");
    let pair = STANDARD.encode(format!("x-access-token:{SECRET}"));
    let exact = respond(&addon, &mut flow, &[], &[pair.as_bytes()]);
    assert_eq!(exact.unwrap(), b"[REDACTED:git]");
}

#[test]
fn the_secret_of_a_set_header_is_scrubbed_also_without_its_scheme() {
    let (addon, mut flow) = guarded(key("k", "token abcdefgh12345"));
    let back = respond(&addon, &mut flow, &[], &[b"<abcdefgh12345>"]).unwrap();
    assert_eq!(back, b"<[REDACTED:k]>");
}

#[test]
fn echoes_in_fields_and_trailers_are_scrubbed_too() {
    let (addon, mut flow) = guarded(key("k", SECRET));
    let location = format!("https://x.example.com/?k={}", percent(SECRET, true));
    let fields = headers(&[
        ("location", &location),
        ("x-echo", SECRET),
        ("etag", "plain"),
    ]);
    let mut response = Response::new(StatusCode::FOUND, fields);
    assert_eq!(code(addon.response(&mut flow, &mut response)), None);
    let scrubbed = [
        ("location", "https://x.example.com/?k=[REDACTED:k]"),
        ("x-echo", "[REDACTED:k]"),
        ("etag", "plain"),
    ];
    assert_eq!(response.headers, headers(&scrubbed));
    let mut trailers = headers(&[("x-sum", SECRET)]);
    let mut filters = response.take_filters();
    let filter = filters.first_mut().unwrap();
    filter
        .end(&mut BodyOut::default(), Some(&mut trailers))
        .unwrap();
    assert_eq!(trailers, headers(&[("x-sum", "[REDACTED:k]")]));
}

#[test]
fn an_echo_over_plain_http_is_scrubbed_too() {
    let addon = Credentials::new(vec![key("k", SECRET)]);
    let mut flow = flow();
    flow.endpoint_mut().scheme = Scheme::Http;
    assert_eq!(code(addon.request(&mut flow, &mut request("/", &[]))), None);
    let back = respond(&addon, &mut flow, &[], &[SECRET.as_bytes()]).unwrap();
    assert_eq!(back, b"[REDACTED:k]");
}

#[test]
fn only_a_body_that_cannot_hold_a_secret_keeps_its_length_and_encoding() {
    let ok = StatusCode::OK;
    each_row(
        [
            (ok, &[("content-length", "2")][..], true),
            (
                ok,
                &[("content-length", "2"), ("content-encoding", "gzip")],
                false,
            ),
            (ok, &[("content-length", "2000")], false),
            (ok, &[], false),
            (StatusCode::NO_CONTENT, &[], true),
            (
                StatusCode::NOT_MODIFIED,
                &[("content-encoding", "gzip")],
                true,
            ),
        ],
        |(status, fields, kept)| {
            let (addon, mut flow) = guarded(key("k", SECRET));
            let mut response = Response::new(status, headers(fields));
            assert_eq!(code(addon.response(&mut flow, &mut response)), None);
            let mut filters = response.take_filters();
            let [filter] = filters.as_mut_slice() else {
                panic!("{status} {fields:?}: {} filters", filters.len());
            };
            let keeps = (filter.keeps_length(), filter.reads_content());
            assert_eq!(keeps, (kept, !kept), "{status} {fields:?}");
            // Over HTTP/2, trailers may follow even an empty body.
            let mut trailers = headers(&[("x-sum", SECRET)]);
            filter
                .end(&mut BodyOut::default(), Some(&mut trailers))
                .unwrap();
            assert_eq!(trailers["x-sum"], "[REDACTED:k]", "{status} {fields:?}");
        },
    );
}

#[test]
fn a_stream_holds_back_only_the_beginning_of_a_secret() {
    let (addon, mut flow) = guarded(key("k", SECRET));
    let mut response = Response::new(StatusCode::OK, HeaderMap::new());
    assert_eq!(code(addon.response(&mut flow, &mut response)), None);
    let mut filters = response.take_filters();
    let filter = filters.first_mut().unwrap();
    let mut step = |chunk: &'static str| {
        let chunk = Bytes::from_static(chunk.as_bytes());
        let at = chunk.as_ptr();
        let mut out = BodyOut::default();
        filter.chunk(chunk, &mut out).unwrap();
        let passed: Vec<Bytes> = out.drain().collect();
        let copied = passed.first().is_some_and(|first| first.as_ptr() != at);
        (String::from_utf8(passed.concat()).unwrap(), copied)
    };
    assert_eq!(step("data: one\n\n"), ("data: one\n\n".to_owned(), false));
    assert_eq!(step("data: sk-ant/Api"), ("data: ".to_owned(), false));
    assert_eq!(step("03+x9_"), (String::new(), false));
    assert_eq!(step("nothing\n\n").0, "sk-ant/Api03+x9_nothing\n\n");
}

#[test]
fn each_websocket_message_is_scrubbed_separately() {
    let (addon, mut flow) = guarded(key("k", SECRET));
    let mut opened = Response::new(StatusCode::SWITCHING_PROTOCOLS, HeaderMap::new());
    assert_eq!(code(addon.response(&mut flow, &mut opened)), None);
    assert!(opened.take_filters().is_empty(), "a 101 has no body");
    let filters = opened.take_message_filters();
    let [filter] = filters.as_slice() else {
        panic!("{} filters", filters.len());
    };
    let (half, rest) = SECRET.split_at(5);
    each_row(
        [
            (vec!["<", SECRET, ">"], "<[REDACTED:k]>"),
            (vec![half, rest], "[REDACTED:k]"),
            (vec![half], half),
            (vec![rest], rest),
        ],
        |(chunks, clean)| {
            let (mut filter, mut out) = (filter(), BodyOut::default());
            for chunk in chunks {
                filter.chunk(chunk.into(), &mut out).unwrap();
            }
            filter.end(&mut out, None).unwrap();
            let passed: Vec<u8> = out.drain().flatten().collect();
            assert_eq!(String::from_utf8(passed).unwrap(), clean);
        },
    );
    let mut answered = Response::new(StatusCode::OK, HeaderMap::new());
    assert_eq!(code(addon.response(&mut flow, &mut answered)), None);
    assert!(answered.take_message_filters().is_empty());
}

fn scrubbed(container: &Arc<Container>, chunks: &[&[u8]]) -> Vec<u8> {
    let addon = Credentials::new(vec![basic(SECRET), key("k", "aaaaaab")]);
    let mut flow = flow_of(container, Kind::Http, "api.example.com");
    assert_eq!(code(addon.request(&mut flow, &mut request("/", &[]))), None);
    respond(&addon, &mut flow, &[], chunks).unwrap()
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(64))]

    #[test]
    fn the_output_does_not_depend_on_the_chunks(
        parts in proptest::collection::vec((0..20_usize, "[a-c=%+/ ]{0,12}"), 0..12),
        cuts in proptest::collection::vec(1..40_usize, 1..20),
    ) {
        let echoes = echoes(SECRET);
        let mut body = String::new();
        for (echo, filler) in &parts {
            let echo = echoes.get(*echo).map_or("aaaaaab", String::as_str);
            // The whole echo, or the first half of it.
            let length = if filler.len() % 3 == 0 { echo.len() / 2 } else { echo.len() };
            body.push_str(filler);
            body.push_str(&echo[..length]);
        }
        let mut chunks = Vec::new();
        let mut rest = body.as_bytes();
        for cut in cuts.iter().cycle() {
            if rest.is_empty() {
                break;
            }
            let (chunk, after) = rest.split_at((*cut).min(rest.len()));
            chunks.push(chunk);
            rest = after;
        }
        let web = container("web");
        prop_assert_eq!(scrubbed(&web, &chunks), scrubbed(&web, &[body.as_bytes()]));
    }

    #[test]
    fn no_form_of_a_secret_survives(
        secret in "[!-~]{12,60}",
        before in "[ -~]{0,30}",
        chunk in 1..50_usize,
    ) {
        prop_assume!(HeaderValue::from_str(&secret).is_ok());
        let (addon, mut flow) = guarded(basic(&secret));
        for echo in echoes(&secret) {
            let body = format!("{before}\n{echo}\n");
            let chunks: Vec<_> = body.as_bytes().chunks(chunk).collect();
            let back = respond(&addon, &mut flow, &[], &chunks).unwrap();
            prop_assert!(!reveals(&back, &secret, &echo), "{} in {:?}", echo, String::from_utf8_lossy(&back));
        }
    }

    #[test]
    fn a_body_without_a_secret_is_unchanged(body in proptest::collection::vec(any::<u8>(), 0..2000), chunk in 1..300_usize) {
        let chunks: Vec<_> = body.chunks(chunk).collect();
        prop_assert_eq!(scrubbed(&container("web"), &chunks), body);
    }
}

#[test]
fn a_replaced_token_is_still_scrubbed() {
    let token = Token::new("login", "new-token", ["old-token"]).unwrap();
    let mut fields = headers(&[("x-echo", "old-token, new-token")]);
    token.scrubber().scrub_headers(&mut fields);
    assert_eq!(fields["x-echo"], "[REDACTED:login], [REDACTED:login]");
}
