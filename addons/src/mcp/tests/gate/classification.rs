//! The classification of resources, prompts and other data that is no tool's result.

use testkit::each_row;

use super::*;
use crate::fixtures::run;

const CONFIDENTIAL: Level = Level::Confidential;
const SECRET: Level = Level::Secret;
const PUBLIC: Level = Level::Public;

/// Settings in which the server `kb` has these classifications, and its tool `fetch` this rule.
fn classified(
    classification: Option<Level>,
    resources: &[(&str, Level)],
    prompts: &[(&str, Level)],
    of_tool: Option<Level>,
) -> McpSettings {
    let patterns = |all: &[(&str, Level)]| {
        let all = all.iter().map(|&(pattern, level)| (pattern.into(), level));
        all.collect()
    };
    let kb = ServerSettings {
        classification,
        resources: patterns(resources),
        prompts: patterns(prompts),
        ..(*server("kb")).clone()
    };
    let mut settings = settings();
    settings.servers.insert("kb".into(), Arc::new(kb));
    if let Some(classification) = of_tool {
        let rule = OverrideRule {
            classification,
            ..OverrideRule::default()
        };
        settings.overrides = overriding("kb", "fetch", rule).overrides;
    }
    settings
}

fn to_server(method: &str, params: &Value) -> Frame {
    Frame::request(
        Direction::ToServer,
        kb(),
        method,
        Some(raw(params.to_string())),
    )
}

/// Messages that ask for or announce the resource at a URI.
fn of_resource(uri: &str) -> Vec<Frame> {
    let params = json!({ "uri": uri });
    let filter = json!({ "resourceSubscriptions": ["kb://open/1", uri] });
    let reference = json!({ "type": "ref/resource", "uri": uri });
    vec![
        to_server("resources/read", &params),
        to_server("resources/subscribe", &params),
        to_server("subscriptions/listen", &json!({ "notifications": filter })),
        to_server("completion/complete", &json!({ "ref": reference })),
        Frame::notification(
            Direction::ToClient,
            kb(),
            "notifications/resources/updated",
            Some(raw(params.to_string())),
        ),
    ]
}

/// Messages that ask for a prompt.
fn of_prompt(name: &str) -> Vec<Frame> {
    let reference = json!({ "type": "ref/prompt", "name": name });
    vec![
        to_server("prompts/get", &json!({ "name": name })),
        to_server("completion/complete", &json!({ "ref": reference })),
    ]
}

/// The level of a container after a message passed. Checks that the level is on disk.
fn after(settings: &McpSettings, mut frame: Frame) -> Level {
    let gate = gate(settings.clone());
    let mut flow = start(&gate.web, &frame.method, None).begin();
    run(gate.request(&mut flow, &mut frame)).unwrap();
    let level = gate.web.level();
    let written: Vec<_> = (level > PUBLIC)
        .then(|| format!("level {}", level.as_str()))
        .into_iter()
        .collect();
    assert_eq!(gate.written(), written);
    level
}

#[test]
fn messages_about_a_resource_or_prompt_raise_the_level_to_its_classification() {
    let patterns = [
        ("kb://*", PUBLIC),
        ("kb://hr/*", CONFIDENTIAL),
        ("kb://hr/pay/*", SECRET),
        ("kb://hr/plan", CONFIDENTIAL),
        ("kb://open/*", PUBLIC),
        ("config://keys/", CONFIDENTIAL),
        ("file:///srv/pay/*", CONFIDENTIAL),
    ];
    let prompts = [("*", PUBLIC), ("review*", CONFIDENTIAL)];
    let settings = classified(None, &patterns, &prompts, None);
    let rows = [
        ("kb://hr/1", CONFIDENTIAL),
        ("kb://hr/pay/1", SECRET),
        ("kb://open/1", PUBLIC),
        ("kb://other/1", PUBLIC),
        ("file:///srv/a%20b", PUBLIC),
        // A server might read each of these as one that a pattern matches.
        ("KB://HR/1", SECRET),
        ("kb://HR/pay/1", SECRET),
        ("kb://h%72/1", SECRET),
        ("Kb://hr/1", SECRET),
        ("config://keys/", CONFIDENTIAL),
        ("config://keys", SECRET),
        ("config://keys?x", SECRET),
        ("config://keys/#x", SECRET),
        ("config://keys/x", PUBLIC),
        ("config:keys", SECRET),
        ("file:/srv/pay/1", SECRET),
        ("file://localhost/srv/pay/1", SECRET),
        ("file:///srv/pay", SECRET),
        ("file:///srv/payments", PUBLIC),
        ("kb://open/../hr/1", SECRET),
        ("kb://open//../hr/1", SECRET),
        ("kb://{place}/1", SECRET),
        ("kb:\\\\hr\\1", SECRET),
        ("", SECRET),
    ];
    each_row(rows, |(uri, expected)| {
        for frame in of_resource(uri) {
            let method = Arc::clone(&frame.method);
            assert_eq!(after(&settings, frame), expected, "{method}");
        }
    });
    for (name, expected) in [
        ("greet", PUBLIC),
        ("review-all", CONFIDENTIAL),
        ("Review", SECRET),
    ] {
        for frame in of_prompt(name) {
            assert_eq!(after(&settings, frame), expected, "{name}");
        }
    }
}

#[test]
fn data_that_no_pattern_names_has_the_servers_classification_or_the_highest_of_its_tools() {
    each_row(
        [
            (classified(None, &[], &[], None), PUBLIC),
            (classified(None, &[], &[], Some(CONFIDENTIAL)), CONFIDENTIAL),
            (classified(Some(SECRET), &[], &[], None), SECRET),
            (classified(Some(PUBLIC), &[], &[], Some(SECRET)), PUBLIC),
            (
                classified(None, &[("kb://other/*", PUBLIC)], &[], Some(SECRET)),
                SECRET,
            ),
        ],
        |(settings, expected)| {
            let mut frames = [of_resource("kb://a/1"), of_prompt("greet")].concat();
            frames.push(to_server("com.example/run", &json!({})));
            for frame in frames {
                assert_eq!(after(&settings, frame), expected);
            }
        },
    );
    // The result of an unknown method may hold any of the server's data.
    let settings = classified(None, &[("kb://hr/*", SECRET)], &[], None);
    let unknown = to_server("com.example/run", &json!({ "uri": "kb://open/1" }));
    assert_eq!(after(&settings, unknown), SECRET);
    for method in ["resources/list", "prompts/list", "logging/setLevel", "ping"] {
        assert_eq!(after(&settings, to_server(method, &json!({}))), PUBLIC);
    }
}

#[test]
fn a_servers_message_that_belongs_to_no_tool_has_the_servers_own_classification() {
    let log = || {
        let method = "notifications/message";
        Frame::notification(Direction::ToClient, kb(), method, Some(raw("{}")))
    };
    let ask = || {
        Frame::request(
            Direction::ToClient,
            kb(),
            "elicitation/create",
            Some(raw("{}")),
        )
    };
    for (settings, expected) in [
        (classified(Some(SECRET), &[], &[], None), SECRET),
        (
            classified(None, &[("kb://hr/*", SECRET)], &[], Some(SECRET)),
            PUBLIC,
        ),
    ] {
        for frame in [log(), ask()] {
            assert_eq!(after(&settings, frame), expected);
        }
    }
    // A message during a call has the classification of the called tool.
    let settings = classified(Some(SECRET), &[], &[], Some(PUBLIC));
    assert_eq!(after(&settings, log().of_tool(tool(FETCH))), PUBLIC);
}

#[test]
fn a_tool_without_a_classification_has_that_of_its_server() {
    for (of_server, of_tool, expected) in [
        (Some(CONFIDENTIAL), None, CONFIDENTIAL),
        (Some(CONFIDENTIAL), Some(PUBLIC), PUBLIC),
        (Some(PUBLIC), Some(SECRET), SECRET),
        (None, None, PUBLIC),
    ] {
        let gate = gate(classified(of_server, &[], &[], of_tool));
        run(gate.fetch(json!({}))).unwrap();
        assert_eq!(gate.web.level(), expected);
    }
}

#[test]
fn a_resource_is_denied_if_its_classification_cannot_be_stored_or_another_rise_excludes_it() {
    let settings = || classified(Some(CONFIDENTIAL), &[], &[], None);
    let read = || to_server("resources/read", &json!({ "uri": "kb://a/1" }));
    let judge = |gate: &Gate| {
        let mut flow = start(&gate.web, "resources/read", None).begin();
        run(gate.request(&mut flow, &mut read()))
    };
    let mut broken = gate(settings());
    broken.records = Arc::new(Records {
        broken: true,
        ..Records::default()
    });
    broken.addon.ports.records = Arc::clone(&broken.records) as _;
    let denied = judge(&broken);
    assert_eq!(code(&denied), Some(Code::RegistryUnavailable));
    assert_eq!(broken.web.level(), CONFIDENTIAL, "raised in memory");
    let latch: fn(&Container) = |web| web.abort();
    let raise: fn(&Container) = |web| web.raise_level(SECRET);
    for (meanwhile, expected) in [
        (latch, Code::PolicyDenied),
        (raise, Code::PolicyDeniedContinue),
    ] {
        let gate = gate(settings());
        let web = Arc::clone(&gate.web);
        *gate.records.meanwhile.lock() = Some(Box::new(move || meanwhile(&web)));
        assert_eq!(code(&judge(&gate)), Some(expected));
    }
}

#[test]
fn the_response_raises_the_level_again_if_it_was_reset_meanwhile() {
    let gate = gate(classified(Some(CONFIDENTIAL), &[], &[], None));
    let mut flow = start(&gate.web, "resources/read", None).begin();
    let mut read = to_server("resources/read", &json!({ "uri": "kb://a/1" }));
    run(gate.request(&mut flow, &mut read)).unwrap();
    gate.web.reset_standing();
    let mut response = Frame::response(Direction::ToServer, kb(), "resources/read", ok(json!({})));
    run(gate.addon.judge_response(&mut flow, &mut response)).unwrap();
    assert_eq!(gate.web.level(), CONFIDENTIAL);
}
