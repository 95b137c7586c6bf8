//! The formats of token files, and the requests to a token endpoint with their responses.

use http::StatusCode;
use http::header::CONTENT_TYPE;
use serde_json::{Value, json};
use testkit::each_row;
use time::{Duration, OffsetDateTime};

use super::*;

const NOW: i64 = 1_700_000_000;

fn now() -> OffsetDateTime {
    OffsetDateTime::from_unix_timestamp(NOW).unwrap()
}

fn login(provider: Provider) -> Login {
    let known = provider.oauth_client();
    let url = known.map_or("https://login.example.com/token", |(url, _)| url);
    Login {
        provider,
        token_url: TokenUrl::parse(url).unwrap(),
        client_id: "client".to_owned(),
        scopes: Vec::new(),
        entry: "openai".to_owned(),
    }
}

/// A file of each format, with a token that expires at `NOW`.
fn files() -> [(Provider, Value); 5] {
    // {"exp":1700000000}
    let jwt = "e30.eyJleHAiOjE3MDAwMDAwMDB9.s";
    [
        (
            Provider::Codex,
            json!({ "tokens": { "access_token": jwt, "refresh_token": "r", "id_token": "i", "account_id": "a" }, "other": 1 }),
        ),
        (
            Provider::Gemini,
            json!({ "access_token": "x", "refresh_token": "r", "expiry_date": NOW * 1000, "scope": "s", "other": 1 }),
        ),
        (
            Provider::OpenCode,
            json!({ "openai": { "type": "oauth", "access": "x", "refresh": "r", "expires": NOW * 1000 }, "other": 1 }),
        ),
        (
            Provider::Claude,
            json!({ "claudeAiOauth": { "accessToken": "x", "refreshToken": "r", "expiresAt": NOW * 1000, "scopes": ["s"], "subscriptionType": "max" }, "other": 1 }),
        ),
        (
            Provider::Generic,
            json!({ "access_token": "x", "refresh_token": "r", "expires_at": NOW, "other": 1 }),
        ),
    ]
}

fn parse(value: &Value) -> TokenFile {
    TokenFile::parse(value.to_string().as_bytes()).unwrap()
}

#[test]
fn a_refresh_updates_the_tokens_of_each_format_and_keeps_other_fields() {
    for (provider, file) in files() {
        let (login, file) = (login(provider), parse(&file));
        let before = login.tokens(&file).unwrap();
        assert_eq!(before.expires, Some(now()), "{provider:?}");
        assert_eq!(before.refresh.unwrap().as_str(), "r");
        let answer = json!({ "access_token": "new", "refresh_token": "r2", "expires_in": 60 });
        let answer = answer.to_string();
        let after = login.refreshed(&file, StatusCode::OK, answer.as_bytes(), now());
        let after = after.unwrap_or_else(|refusal| panic!("{refusal:?}"));
        let tokens = login.tokens(&after).unwrap();
        assert_eq!(tokens.access.unwrap().as_str(), "new");
        assert_eq!(tokens.refresh.unwrap().as_str(), "r2");
        let text = after.text();
        assert!(text.contains("\"other\": 1"), "{}", *text);
        let is_claude = provider == Provider::Claude;
        assert_eq!(text.contains("\"subscriptionType\": \"max\""), is_claude);
        let stored = provider != Provider::Codex;
        let until = stored.then(|| now() + Duration::seconds(60));
        assert_eq!(tokens.expires, until, "{provider:?}");
    }
}

#[test]
fn a_refresh_token_that_the_answer_does_not_replace_is_kept() {
    let (login, file) = (login(Provider::Gemini), parse(&files()[1].1));
    each_row(
        [
            r#"{ "access_token": "new" }"#,
            r#"{ "access_token": "new", "refresh_token": "" }"#,
        ],
        |answer| {
            let after = login.refreshed(&file, StatusCode::OK, answer.as_bytes(), now());
            let tokens = login.tokens(&after.ok().unwrap()).unwrap();
            assert_eq!(tokens.refresh.unwrap().as_str(), "r");
            assert_eq!(
                tokens.expires, None,
                "the expiry of the old token is not kept"
            );
        },
    );
}

#[test]
fn a_refresh_request_has_the_encoding_of_its_provider() {
    each_row(
        [
            (
                Provider::Codex,
                "application/json",
                r#"{"client_id":"client","grant_type":"refresh_token","refresh_token":"a/b&c"}"#,
            ),
            (
                Provider::Claude,
                "application/json",
                r#"{"client_id":"client","grant_type":"refresh_token","refresh_token":"a/b&c"}"#,
            ),
            (
                Provider::OpenCode,
                "application/x-www-form-urlencoded",
                "client_id=client&grant_type=refresh%5Ftoken&refresh_token=a%2Fb%26c",
            ),
            (
                Provider::Gemini,
                "application/x-www-form-urlencoded",
                "client_id=client&grant_type=refresh%5Ftoken&refresh_token=a%2Fb%26c",
            ),
        ],
        |(provider, content_type, body)| {
            let request = login(provider).refresh_request("a/b&c", None).unwrap();
            assert_eq!(request.headers()[CONTENT_TYPE], content_type);
            assert_eq!(request.body(), body);
            let (url, _) = provider.oauth_client().unwrap();
            assert_eq!(request.uri().to_string(), url);
        },
    );
}

#[test]
fn only_errors_about_the_refresh_token_are_permanent() {
    let (login, file) = (login(Provider::Codex), parse(&files()[0].1));
    each_row(
        [
            (400, r#"{"error":"invalid_grant"}"#, true),
            (401, r#"{"error":{"code":"refresh_token_reused"}}"#, true),
            (400, r#"{"error":"temporarily_unavailable"}"#, false),
            (400, r#"{"error":"refresh_token_expired"}"#, true),
            (401, r#"{"error":"invalid_client"}"#, false),
            (400, r#"{"error":"unsupported_grant_type"}"#, false),
            (403, r#"{"error":"access_denied"}"#, false),
            (403, "<html>not now</html>", false),
            (404, r#"{"error":"not_found"}"#, false),
            (429, r#"{"error":"slow_down"}"#, false),
            (503, r#"{"error":"invalid_grant"}"#, false),
            (200, r#"{"refresh_token":"SECRET"}"#, false),
            (200, r#"{"access_token":""}"#, false),
            (400, r#"{"error":"SECRET token r"}"#, false),
        ],
        |(status, body, permanent)| {
            let status = StatusCode::from_u16(status).unwrap();
            let refused = login.refreshed(&file, status, body.as_bytes(), now());
            let refusal = refused.err().unwrap();
            assert_eq!(refusal.permanent, permanent, "{status} {body}");
            let says_so = refusal.why.contains("log in");
            assert_eq!(says_so, permanent, "{}", refusal.why);
            assert!(!refusal.why.contains("SECRET"), "{}", refusal.why);
        },
    );
}

#[test]
fn errors_about_a_malformed_token_file_do_not_quote_it() {
    each_row(
        [
            (Provider::Codex, r#"{"OPENAI_API_KEY":"sk-secret"}"#),
            (Provider::Codex, r#"{"tokens":{"access_token":""}}"#),
            (Provider::OpenCode, r#"{"anthropic":{"access":"secret"}}"#),
            (Provider::Gemini, r#"["secret"]"#),
        ],
        |(provider, text)| {
            let file = TokenFile::parse(text.as_bytes()).unwrap();
            let why = login(provider).tokens(&file).err().unwrap();
            assert!(why.contains("log in") && !why.contains("secret"), "{why}");
        },
    );
    let why = TokenFile::parse(b"{\"secret").err().unwrap();
    assert_eq!(why, "it is not valid JSON: error in line 1");
}

#[test]
fn a_token_url_is_https_with_a_host_name_and_without_user_or_query() {
    each_row(
        [
            "http://a.example/token",
            "https://",
            "a.example/token",
            "https://10.0.0.1/token",
            "https://a.example/token?x=1",
            "https://u@a.example/token",
        ],
        |wrong| {
            assert!(TokenUrl::parse(wrong).is_err(), "{wrong}");
        },
    );
    let url = TokenUrl::parse("https://A.example:8443/token").unwrap();
    assert_eq!(url.host(), (Host::parse("a.example").unwrap(), 8443));
}

#[test]
fn gemini_has_placeholder_endpoints_for_token_tokeninfo_and_userinfo() {
    let answers = login(Provider::Gemini).placeholder_answers();
    let asked: Vec<_> = answers
        .iter()
        .map(|answer| format!("{}{}", answer.host.0, answer.path))
        .collect();
    assert_eq!(
        asked,
        [
            "oauth2.googleapis.com/token",
            "oauth2.googleapis.com/tokeninfo",
            "www.googleapis.com/oauth2/v2/userinfo",
        ]
    );
}

#[test]
fn a_placeholder_file_parses_as_a_login_with_placeholder_tokens_and_the_real_account() {
    each_row(Provider::ALL, |provider| {
        let file = provider.placeholder_file("login", "openai", Some("acct-77"));
        let login = login(provider);
        let tokens = login.tokens(&parse(&file)).unwrap();
        for token in [tokens.access.unwrap(), tokens.refresh.unwrap()] {
            assert!(token.contains("up-placeholder-"), "{provider:?}");
        }
        assert!(tokens.expires > Some(now()), "{provider:?}");
        let has_account = login.account_field().is_some();
        assert_eq!(tokens.account.is_some(), has_account);
        assert!(!has_account || tokens.account.as_deref() == Some("acct-77"));
        assert_eq!(Provider::named(provider.as_str()), Some(provider));
    });
}

#[test]
fn the_placeholder_tokens_that_a_refresh_returns_contain_the_real_account() {
    let codex = login(Provider::Codex);
    let answer = codex.answer(
        placeholders::LoginEndpoint::Tokens,
        "codex",
        Some("acct-77"),
    );
    let answer: Value = serde_json::from_slice(&answer).unwrap();
    each_row(["access_token", "id_token"], |key| {
        // Without `account_id`, the account comes from the claims.
        let file = json!({ "tokens": { "access_token": answer[key] } });
        let tokens = codex.tokens(&parse(&file)).unwrap();
        assert_eq!(tokens.account.as_deref(), Some("acct-77"), "{key}");
    });
}

#[test]
fn placeholders_for_claude_have_the_prefixes_of_claude_tokens() {
    let file = Provider::Claude.placeholder_file("claude", "", None);
    let login = &file["claudeAiOauth"];
    let begins = |key: &str, with| login[key].as_str().unwrap().starts_with(with);
    assert!(begins("accessToken", "sk-ant-oat01-up-placeholder-"));
    assert!(begins("refreshToken", "sk-ant-ort01-up-placeholder-"));
    let scopes = login["scopes"].as_array().unwrap();
    assert!(scopes.contains(&json!("user:inference")));
}
