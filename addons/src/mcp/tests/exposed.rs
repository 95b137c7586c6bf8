//! Tools and prompts as a container sees them.

use std::time::Duration;

use serde_json::{Value, json};
use testkit::each_row;

use super::*;
use crate::contract::{Container, Level};
use crate::fixtures::{container, processor_time};

/// The exposed name, the server and the original name of each tool.
fn names(exposed: &Exposed) -> Vec<(&str, &str, &str)> {
    let names = exposed.all().iter();
    names
        .map(|tool| (&*tool.name, &*tool.server.name, &*tool.definition.name))
        .collect()
}

fn view(settings: &McpSettings, listings: &[Listing]) -> Exposed {
    Exposed::of(settings, &container("web"), listings)
}

fn named(server_name: &str, tools: &[&str]) -> Listing {
    let tools = tools
        .iter()
        .map(|name| tool(json!({ "name": name }).to_string()));
    (server(server_name), tools.collect())
}

fn renamed(to: &str) -> OverrideRule {
    OverrideRule {
        rename: Some(to.into()),
        ..OverrideRule::default()
    }
}

#[test]
fn tools_get_the_servers_prefix_and_are_found_only_by_the_prefixed_name() {
    let listings = [named("kb", &["search", "b"]), named("weather", &["search"])];
    let exposed = view(&McpSettings::default(), &listings);
    let expected = [
        ("kb_search", "kb", "search"),
        ("kb_b", "kb", "b"),
        ("weather_search", "weather", "search"),
    ];
    assert_eq!(names(&exposed), expected);
    assert!(exposed.find("search").is_none());
    let found = exposed.find("weather_search").unwrap();
    assert_eq!(&*found.server.name, "weather");
    assert!(exposed.problems().is_empty());
}

#[test]
fn a_renamed_tool_is_not_found_by_its_old_name() {
    let settings = overriding("kb", "fetch", renamed("read"));
    let exposed = view(&settings, &[named("kb", &["fetch"])]);
    assert_eq!(names(&exposed), [("read", "kb", "fetch")]);
    assert!(exposed.find("kb_fetch").is_none() && exposed.find("fetch").is_none());
}

#[test]
fn without_a_prefix_a_definition_passes_byte_for_byte_and_with_one_only_its_name_changes() {
    let text =
        r#"{ "inputSchema":{"z":1.0,"maximum":1e400,"a":[]}, "name":"n","x-new":{"b":1,"a":2} }"#;
    let mut sole = (*server("kb")).clone();
    sole.prefix = "".into();
    let listing = (Arc::new(sole), [tool(text)].into());
    let exposed = view(&McpSettings::default(), &[listing]);
    assert_eq!(exposed.tools().collect::<Vec<_>>(), [text]);
    let prefixed = view(
        &McpSettings::default(),
        &[(server("kb"), [tool(text)].into())],
    );
    let expected = text.replace("\"n\"", "\"kb_n\"");
    assert_eq!(prefixed.tools().collect::<Vec<_>>(), [expected]);
}

#[test]
fn a_long_name_is_cut_and_stays_unique() {
    let [one, other] = ["a", "b"].map(|end| format!("{}{end}", "x".repeat(100)));
    let exposed = view(&McpSettings::default(), &[named("kb", &[&one, &other])]);
    let [first, second] = exposed.all() else {
        panic!("{exposed:?}")
    };
    assert!(first.name.len() == MAX_EXPOSED_NAME && first.name != second.name);
    assert!(first.name.starts_with("kb_xxx"));
    assert_eq!(&*exposed.find(&first.name).unwrap().definition.name, &*one);
    let cut = |problem: &&Problem| problem.text.contains(" is exposed as ");
    assert_eq!(exposed.problems().iter().filter(cut).count(), 2);
    let exact = "x".repeat(MAX_EXPOSED_NAME - 3);
    let whole = view(&McpSettings::default(), &[named("kb", &[&exact])]);
    assert!(whole.problems().is_empty() && whole.find(&format!("kb_{exact}")).is_some());
}

#[test]
fn every_exposed_name_is_one_that_apis_of_models_accept() {
    let own = [
        "files.read",
        "files/read",
        "files:read",
        "files_read",
        "a@b",
        "a$b",
        "~",
        "#",
        "\"",
        "\\",
    ];
    for prefix in ["kb_", ""] {
        let mut kb = (*server("kb")).clone();
        kb.prefix = prefix.into();
        let listing = (Arc::new(kb), named("kb", &own).1);
        let exposed = view(&McpSettings::default(), &[listing]);
        assert_eq!(
            exposed.all().len(),
            own.len(),
            "every tool has a name of its own"
        );
        for (tool, own) in exposed.all().iter().zip(own) {
            let fits = |byte: u8| byte.is_ascii_alphanumeric() || b"_-".contains(&byte);
            assert!(
                tool.name.len() <= 64 && tool.name.bytes().all(fits),
                "{}",
                tool.name
            );
            assert!(tool.name.starts_with(prefix));
            assert_eq!(&*tool.definition.name, own, "the server's own name is kept");
            let listed: Value = serde_json::from_str(&tool.json()).unwrap();
            assert_eq!(listed["name"], *tool.name);
            assert!(exposed.find(&format!("{prefix}{own}")).is_none() || own == "files_read");
        }
        let found = exposed.find(&format!("{prefix}files_read")).unwrap();
        assert_eq!(&*found.definition.name, "files_read");
        assert_eq!(exposed.problems().len(), own.len() - 1);
    }
}

#[test]
fn the_exposed_name_of_a_tool_depends_on_no_other_tool() {
    let name_of = |tools: &[&str], own: &str| {
        let exposed = view(&McpSettings::default(), &[named("kb", tools)]);
        let mut all = exposed.all().iter();
        all.find(|tool| &*tool.definition.name == own)
            .map(|tool| tool.name.to_string())
    };
    let alone = name_of(&["a.b"], "a.b").unwrap();
    let taken = alone.strip_prefix("kb_").unwrap();
    each_row(
        [
            &["a/b", "a.b"][..],
            &["a.b", "a/b"],
            &["a_b", "a.b"],
            &["a.b", "a_b", "a:b", "a.b"],
        ],
        |tools| assert_eq!(name_of(tools, "a.b").as_ref(), Some(&alone), "{tools:?}"),
    );
    // A tool whose own name is that exposed name keeps it, in any order.
    for tools in [[taken, "a.b"], ["a.b", taken]] {
        assert_eq!(name_of(&tools, taken).as_ref(), Some(&alone));
        assert_eq!(name_of(&tools, "a.b"), None);
    }
}

#[test]
fn a_name_of_several_tools_belongs_to_the_renamed_tool_or_else_the_first() {
    let mut first = (*server("a")).clone();
    first.prefix = "".into();
    let taken = (Arc::new(first), named("a", &["kb_x", "kb_y"]).1);
    let listings = [taken, named("kb", &["x", "old", "old"])];
    let exposed = view(&overriding("kb", "old", renamed("kb_y")), &listings);
    let expected = [("kb_x", "a", "kb_x"), ("kb_y", "kb", "old")];
    assert_eq!(names(&exposed), expected);
    let told: Vec<_> = exposed.problems().iter().map(|one| &one.text).collect();
    assert_eq!(told.len(), 3, "{told:?}");
    each_row(
        [
            r#""kb_x" is the exposed name of "kb_x" of a and of "x" of kb"#,
            r#""kb_y" is the exposed name of "old" of kb and of "kb_y" of a"#,
            r#""kb_y" is the exposed name of "old" of kb and of "old" of kb"#,
        ],
        |beginning| {
            assert!(
                told.iter().any(|one| one.starts_with(beginning)),
                "{told:?}"
            );
        },
    );
}

#[test]
fn a_collision_is_reported_even_if_a_server_has_a_thousand_bad_names() {
    let bad: Vec<_> = (0..1000).map(|number| format!("\u{e9}{number}")).collect();
    let bad: Vec<_> = bad.iter().map(String::as_str).collect();
    let listings = [named("bad", &bad), named("kb", &["old", "x"])];
    let exposed = view(&overriding("kb", "old", renamed("kb_x")), &listings);
    let told = &exposed.problems()[0].text;
    assert!(
        told.starts_with(r#""kb_x" is the exposed name of "old" of kb and of "x" of kb"#),
        "{told}"
    );
}

#[test]
fn a_tool_left_out_is_reported_even_if_a_server_has_a_thousand_bad_names() {
    let bad: Vec<_> = (0..1000).map(|number| format!("\u{e9}{number}")).collect();
    let bad: Vec<_> = bad.iter().map(String::as_str).collect();
    let text = json!({ "name": "x", "description": "a".repeat(300 * 1024) }).to_string();
    let listings = [named("bad", &bad), (server("kb"), [tool(text)].into())];
    let exposed = view(&overriding("kb", "x", renamed("y")), &listings);
    let told = exposed.problems();
    let first = &told[0].text;
    assert!(first.starts_with(r#"kb: "x" is left out"#), "{first}");
    assert_eq!(told.len(), 1 + 100 + 1);
    let last = &told.last().unwrap().text;
    assert_eq!(last, "bad: problems with names that are not reported: 900");
}

#[test]
fn the_number_of_prompts_whose_problems_are_not_reported_is_told() {
    let bad = (0..101).map(|number| raw(json!({ "name": format!("\u{e9}{number}") }).to_string()));
    let bad: Vec<Arc<_>> = bad.map(Arc::from).collect();
    let exposed = ExposedPrompts::of([(&server("kb"), &bad)]);
    let told = exposed.problems();
    assert_eq!(told.len(), 101);
    let last = &told[100].text;
    assert_eq!(last, "kb: problems with prompts that are not reported: 1");
}

#[test]
fn the_problems_of_one_server_leave_room_for_those_of_others_and_quote_no_long_name() {
    let bad = (0..200).map(|number| format!("{number}\u{e9}{}", "x".repeat(10_000)));
    let bad = bad.map(|name| raw(json!({ "name": name }).to_string()));
    let bad: Vec<Arc<_>> = bad.map(Arc::from).collect();
    let other = [raw(json!({ "name": "a\n\u{1b}[2J" }).to_string())].map(Arc::from);
    let (flooding, kb) = (server("flooding"), server("kb"));
    let exposed = ExposedPrompts::of([(&flooding, &bad[..]), (&kb, &other[..])]);
    let told = exposed.problems();
    let of = |server: &str| {
        told.iter()
            .filter(|one| *one.server == *server)
            .collect::<Vec<_>>()
    };
    assert_eq!(of("flooding").len(), 101);
    let expected = r#"kb: "a\n\u{1b}[2J" is left out"#;
    assert!(of("kb")[0].text.starts_with(expected), "{:?}", of("kb"));
    assert!(told.iter().all(|one| one.text.len() < 500));
}

#[test]
fn a_name_with_other_than_visible_ascii_is_left_out_unless_the_operator_renames_the_tool() {
    each_row(
        ["seаrch", "a b", "a\u{200b}", "a\n", "ﬁnd", "a\u{7f}"],
        |name| {
            let exposed = view(&McpSettings::default(), &[named("kb", &[name, "ok"])]);
            assert_eq!(names(&exposed), [("kb_ok", "kb", "ok")], "{name:?}");
            let told = &exposed.problems()[0].text;
            assert!(told.is_ascii() && told.contains("visible ASCII"), "{told}");
        },
    );
    let settings = overriding("kb", "seаrch", renamed("search"));
    let exposed = view(&settings, &[named("kb", &["seаrch"])]);
    assert!(
        exposed.find("search").is_some(),
        "the operator chose the name"
    );
}

#[test]
fn an_override_changes_the_listed_definition() {
    let rule = OverrideRule {
        rename: Some("get_weather".into()),
        description: Some("Get the \"weather\"".into()),
        hide_fields: vec!["debug".into()],
        defaults: vec![("station".into(), Injected::Uuid)],
        open_world: Some(false),
        annotations: json!({ "title": "Weather", "readOnlyHint": true })
            .as_object()
            .unwrap()
            .clone(),
        ..OverrideRule::default()
    };
    let text = json!({
        "name": "fetch", "title": "Fetch", "description": "Internal",
        "inputSchema": { "type": "object", "required": ["city", "station"], "properties": {
            "city": { "type": "string", "x-mcp-header": "City" },
            "station": { "type": "string", "x-mcp-header": "Station" },
            "debug": { "type": "boolean" },
        } },
        "annotations": { "title": "Old", "destructiveHint": false },
    });
    let listing = (server("weather"), [tool(text.to_string())].into());
    let exposed = view(&overriding("weather", "fetch", rule), &[listing]);
    let listed: Value = serde_json::from_str(&exposed.tools().next().unwrap()).unwrap();
    let expected = json!({
        "name": "get_weather", "title": "Fetch", "description": "Get the \"weather\"",
        "inputSchema": { "type": "object", "required": ["city"], "properties": {
            "city": { "type": "string", "x-mcp-header": "City" },
        } },
        "annotations": {
            "title": "Weather", "destructiveHint": false, "readOnlyHint": true, "openWorldHint": false,
        },
    });
    assert_eq!(listed, expected);
}

#[test]
fn a_servers_hint_replaces_the_operators_hint_only_if_it_is_stricter() {
    let cases = [
        (None, json!({}), true),
        (Some(false), json!({}), false),
        (Some(false), json!({ "openWorldHint": true }), true),
        (Some(true), json!({ "openWorldHint": false }), true),
        (None, json!({ "openWorldHint": false }), false),
    ];
    each_row(cases, |(operator, hints, expected)| {
        let definition = tool(json!({ "name": "a", "annotations": hints }).to_string());
        let rule = OverrideRule {
            open_world: operator,
            ..OverrideRule::default()
        };
        let hints = rule.annotations(definition.annotations);
        assert_eq!(hints.is_open_world(), expected);
    });
    let rule = OverrideRule {
        annotations:
            json!({ "readOnlyHint": true, "destructiveHint": false, "idempotentHint": true })
                .as_object()
                .unwrap()
                .clone(),
        ..OverrideRule::default()
    };
    let strict = json!({ "readOnlyHint": false, "destructiveHint": true, "idempotentHint": false });
    let definition = tool(json!({ "name": "a", "annotations": strict }).to_string());
    let hints = rule.annotations(definition.annotations);
    assert!(!hints.is_read_only() && hints.is_destructive() && !hints.is_idempotent());
}

#[test]
fn tools_that_the_chain_would_deny_are_found_but_not_listed() {
    let hints = |open| json!({ "name": "x", "annotations": { "openWorldHint": open } }).to_string();
    let at = |level| {
        let container = container("web");
        container.raise_level(level);
        container
    };
    let is_listed = |settings: &McpSettings, container: &Container, definition| {
        let listing = (server("kb"), [definition].into());
        let exposed = Exposed::of(settings, container, &[listing]);
        let is_listed = exposed.find("kb_x").unwrap().is_listed;
        assert_eq!(exposed.tools().count(), usize::from(is_listed));
        is_listed
    };
    let deny = McpSettings::default();
    let log = McpSettings {
        on_definition_change: OnChange::Log,
        ..McpSettings::default()
    };
    let closed = overriding(
        "kb",
        "x",
        OverrideRule {
            open_world: Some(false),
            ..OverrideRule::default()
        },
    );
    let (public, confidential) = (at(Level::Public), at(Level::Confidential));
    let bare = r#"{"name":"x"}"#;
    assert!(is_listed(&deny, &public, tool(bare)));
    assert!(!is_listed(&deny, &confidential, tool(bare)));
    assert!(!is_listed(&deny, &at(Level::Secret), tool(bare)));
    assert!(is_listed(&deny, &confidential, tool(hints(false))));
    assert!(is_listed(&closed, &confidential, tool(bare)));
    assert!(!is_listed(&closed, &confidential, tool(hints(true))));
    assert!(!is_listed(&deny, &public, changed(bare)));
    assert!(is_listed(&log, &public, changed(bare)));
}

#[test]
fn the_most_specific_entry_applies_to_a_container() {
    let entry = |containers: &[&str], rename: &str| {
        Arc::new(OverrideRule {
            containers: containers.iter().map(|&one| one.into()).collect(),
            ..renamed(rename)
        })
    };
    let mut settings = McpSettings::default();
    let entries = vec![
        entry(&[], "all"),
        entry(&["agent-*", "web"], "agents"),
        entry(&["agent-1*"], "ones"),
        entry(&["agent-1*"], "second"),
        entry(&["agent-12"], "twelve"),
    ];
    settings
        .overrides
        .insert(("kb".into(), "x".into()), entries);
    each_row(
        [
            ("agent-12", "twelve"),
            ("agent-13", "ones"),
            ("agent-2", "agents"),
            ("web", "agents"),
            ("webs", "all"),
        ],
        |(id, expected)| {
            let exposed = Exposed::of(&settings, &container(id), &[named("kb", &["x"])]);
            assert_eq!(&*exposed.all()[0].name, expected, "{id}");
        },
    );
}

#[test]
fn a_star_matches_any_text() {
    each_row(
        [
            ("*", "", true),
            ("a*", "abc", true),
            ("*c", "abc", true),
            ("a*c", "ac", true),
            ("a*c*e", "abcde", true),
            ("a*b*b", "ab", false),
            ("abc", "abc", true),
            ("abc", "abcd", false),
            ("a*", "ba", false),
            ("", "a", false),
        ],
        |(pattern, text, expected)| {
            assert_eq!(
                overrides::matches(pattern, text),
                expected,
                "{pattern} {text}"
            );
        },
    );
    let mut server = (*server("kb")).clone();
    server.containers = vec!["agent-*".into(), "web".into()];
    let is_for = |id| server.is_for(&container(id).id);
    assert!(is_for("agent-1") && is_for("web") && !is_for("db"));
    server.containers.clear();
    assert!(!server.is_for(&container("web").id));
}

#[test]
fn a_tool_with_an_override_and_a_definition_above_256_kib_is_left_out() {
    let text = json!({ "name": "x", "description": "a".repeat(300 * 1024) }).to_string();
    let listing = || [(server("kb"), [tool(text.clone())].into())];
    let exposed = view(&overriding("kb", "x", renamed("y")), &listing());
    assert!(exposed.find("y").is_none());
    assert!(exposed.problems()[0].text.contains("262144 bytes"));
    assert!(
        view(&McpSettings::default(), &listing())
            .find("kb_x")
            .is_some()
    );
}

#[test]
fn prompts_are_listed_under_prefixed_names() {
    let one = [
        raw(r#"{"name":"sum","arguments":[{"name":"a"}],"n":1.0}"#),
        raw("{}"),
    ]
    .map(Arc::from);
    let other = [
        raw(r#"{"name":"sum"}"#),
        raw(r#"{"name":"sum"}"#),
        raw(r#"{"name":"с"}"#),
    ]
    .map(Arc::from);
    let (kb, web) = (server("kb"), server("web"));
    let exposed = ExposedPrompts::of([(&kb, &one[..]), (&web, &other[..])]);
    let listed: Vec<_> = exposed.all().iter().map(ExposedPrompt::json).collect();
    let first = r#"{"name":"kb_sum","arguments":[{"name":"a"}],"n":1.0}"#;
    assert_eq!(listed, [first, r#"{"name":"web_sum"}"#]);
    let found = exposed.find("web_sum").unwrap();
    assert_eq!((&*found.server.name, &*found.original), ("web", "sum"));
    assert!(exposed.find("sum").is_none());
    assert_eq!(exposed.problems().len(), 2);
}

/// The bound is generous: only a change of complexity exceeds it. `cargo bench --profile shipped
/// -p addons` measures the time.
#[test]
fn a_view_of_a_thousand_tools_is_built_within_100_ms() {
    let properties: serde_json::Map<_, _> = (0..8)
        .map(|n| {
            (
                format!("field_{n}"),
                json!({ "type": "string", "description": "A field of the tool" }),
            )
        })
        .collect();
    let tools = (0..1000).map(|n| {
        let text = json!({ "name": format!("tool_{n}"), "description": "Does something",
            "inputSchema": { "type": "object", "properties": properties } });
        tool(text.to_string())
    });
    let listings = [(server("kb"), tools.collect())];
    let (settings, web) = (McpSettings::default(), container("web"));
    let took = processor_time(|| {
        assert_eq!(
            Exposed::of(&settings, &web, &listings).tools().count(),
            1000
        );
    });
    println!("{took:?} for 1,000 tools");
    assert!(took < Duration::from_millis(100), "{took:?}");
}
