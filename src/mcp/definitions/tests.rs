use super::*;

/// Compares digests and returns only the pins.
fn pins(
    file: &DefinitionFile,
    server: &str,
    tools: &[ListedDefinition],
) -> Result<Vec<Pin>, Unavailable> {
    file.compare(server, tools).map(|(pins, _)| pins)
}

fn tools(named: &[(&str, u8)]) -> Vec<ListedDefinition> {
    let listed = named.iter().map(|(name, byte)| ListedDefinition {
        tool: (*name).into(),
        digest: [*byte; 32],
        text: format!("{name} {byte}").into(),
    });
    listed.collect()
}

#[test]
fn the_accepted_definition_is_kept_over_changes_and_restarts() {
    let directory = tempfile::tempdir().unwrap();
    let file = DefinitionFile::open(directory.path());
    let kept = |file: &DefinitionFile| file.accepted_text("files", "read");
    assert_eq!(kept(&file), None);
    pins(&file, "files", &tools(&[("read", 1)])).unwrap();
    pins(&file, "files", &tools(&[("read", 2)])).unwrap();
    assert_eq!(kept(&file).as_deref(), Some("read 1"));
    let again = DefinitionFile::open(directory.path());
    assert_eq!(kept(&again).as_deref(), Some("read 1"));
    again.accept("files", "read", None).unwrap();
    assert_eq!(kept(&again), None);
    pins(&again, "files", &tools(&[("read", 2)])).unwrap();
    assert_eq!(kept(&again).as_deref(), Some("read 2"));
}

#[test]
fn the_definitions_of_a_server_that_take_too_much_room_are_not_kept() {
    let directory = tempfile::tempdir().unwrap();
    let file = DefinitionFile::open(directory.path());
    let long = "x".repeat(MAX_TEXT_PER_SERVER / 2);
    let mut listed = tools(&[("a", 1), ("b", 1), ("c", 1)]);
    for one in &mut listed {
        one.text = long.as_str().into();
    }
    for server in ["first", "second"] {
        let expected = Ok(vec![Pin::Accepted; 3]);
        assert_eq!(pins(&file, server, &listed), expected);
        assert_eq!(pins(&file, server, &listed), expected);
        let kept = ["a", "b", "c"].map(|tool| file.accepted_text(server, tool).is_some());
        assert_eq!(kept, [true, true, false], "{server}");
    }
}

#[test]
fn a_file_without_definitions_gets_them_when_the_server_lists_its_tools() {
    let directory = tempfile::tempdir().unwrap();
    let old = format!(
        r#"{{"files":{{"read":{{"accepted":"{}"}}}}}}"#,
        hex(&[1; 32])
    );
    fs::write(directory.path().join(FILE_NAME), old).unwrap();
    let file = DefinitionFile::open(directory.path());
    let listed = tools(&[("read", 1)]);
    assert_eq!(pins(&file, "files", &listed), Ok(vec![Pin::Accepted]));
    let kept = file.accepted_text("files", "read");
    assert_eq!(kept.as_deref(), Some("read 1"));
}

#[test]
fn a_changed_definition_is_blocked_over_restarts_until_it_is_accepted() {
    let directory = tempfile::tempdir().unwrap();
    let file = DefinitionFile::open(directory.path());
    let first = tools(&[("read", 1), ("write", 2)]);
    assert_eq!(pins(&file, "files", &first), Ok(vec![Pin::Accepted; 2]));
    let changed = tools(&[("read", 9), ("write", 2), ("new", 3)]);
    let expected = vec![Pin::Changed, Pin::Accepted, Pin::Accepted];
    assert_eq!(pins(&file, "files", &changed), Ok(expected.clone()));
    let again = DefinitionFile::open(directory.path());
    assert_eq!(pins(&again, "files", &changed), Ok(expected));
    assert_eq!(pins(&again, "others", &changed), Ok(vec![Pin::Accepted; 3]));
    assert_eq!(again.accept("files", "read", None), Ok(hex(&[9; 32])));
    let after = DefinitionFile::open(directory.path());
    assert_eq!(pins(&after, "files", &changed), Ok(vec![Pin::Accepted; 3]));
    assert_eq!(pins(&after, "files", &first[..1]), Ok(vec![Pin::Changed]));
}

#[test]
fn an_acceptance_with_a_stale_digest_is_refused() {
    let directory = tempfile::tempdir().unwrap();
    let file = DefinitionFile::open(directory.path());
    let [first, seen, new] = [1, 2, 3].map(|digest| tools(&[("read", digest)]));
    for listed in [&first, &seen, &new] {
        pins(&file, "files", listed).unwrap();
    }
    let [first, seen, digest] = [1, 2, 3].map(|digest| hex(&[digest; 32]));
    let digests = Digests {
        accepted: first,
        changed: Some(digest.clone()),
    };
    assert_eq!(file.digests("files", "read"), Ok(digests));
    let superseded = AcceptError::Superseded {
        server: "files".to_owned(),
        tool: "read".to_owned(),
        digest: digest.clone(),
    };
    assert_eq!(file.accept("files", "read", Some(&seen)), Err(superseded));
    assert_eq!(pins(&file, "files", &new), Ok(vec![Pin::Changed]));
    assert_eq!(
        file.accept("files", "read", Some(&digest)),
        Ok(digest.clone())
    );
    assert_eq!(pins(&file, "files", &new), Ok(vec![Pin::Accepted]));
}

#[test]
fn each_change_of_a_definition_is_counted_once() {
    let directory = tempfile::tempdir().unwrap();
    let file = DefinitionFile::open(directory.path());
    for (digest, changes) in [(1, 0), (2, 1), (2, 0), (3, 1), (1, 0), (3, 1)] {
        let (_, counted) = file.compare("files", &tools(&[("read", digest)])).unwrap();
        assert_eq!(counted, changes, "digest {digest}");
    }
}

#[test]
fn accepting_an_unknown_or_unchanged_definition_fails() {
    let directory = tempfile::tempdir().unwrap();
    let file = DefinitionFile::open(directory.path());
    pins(&file, "files", &tools(&[("read", 1)])).unwrap();
    for (tool, why) in [
        (
            "read",
            "the definition of tool read of server files has not changed since it was accepted",
        ),
        ("other", "server files never listed a tool other"),
    ] {
        let refused = file.accept("files", tool, None);
        assert_eq!(refused.unwrap_err().to_string(), why);
    }
}

#[test]
fn an_unreadable_file_blocks_every_tool_and_is_kept() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join(FILE_NAME);
    fs::write(&path, "{").unwrap();
    let file = DefinitionFile::open(directory.path());
    assert_eq!(
        pins(&file, "files", &tools(&[("read", 1)])),
        Err(Unavailable)
    );
    assert!(file.accept("files", "read", None).is_err());
    assert!(file.digests("files", "read").is_err());
    assert_eq!(fs::read_to_string(path).unwrap(), "{");
}

#[test]
fn a_tool_over_the_limit_of_its_server_counts_as_changed() {
    let directory = tempfile::tempdir().unwrap();
    let file = DefinitionFile::open(directory.path());
    let many = (0..MAX_TOOLS_PER_SERVER).map(|number| ListedDefinition {
        tool: number.to_string().into(),
        digest: [0; 32],
        text: "{}".into(),
    });
    let many: Vec<_> = many.collect();
    assert!(
        pins(&file, "a", &many)
            .unwrap()
            .iter()
            .all(|pin| *pin == Pin::Accepted)
    );
    assert_eq!(
        pins(&file, "a", &tools(&[("more", 1)])),
        Ok(vec![Pin::Changed])
    );
}
