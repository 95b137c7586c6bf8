//! Errors and warnings for `credentials.yaml`, and the variables that hold its secrets.

use addons::credentials::{KindSettings, SecretSetting};
use testkit::each_row;

use super::errors::check_errors;
use super::{env, load_files, load_one};

#[test]
fn invalid_credentials_are_refused_with_their_place() {
    check_errors(
        "credentials.yaml",
        &[
            (
                "credentials: [{}]",
                &[
                    "2:15: credentials[0]: must have exactly one of set_headers, basic, bearer, github_app, oauth, and has 0",
                    "2:15: credentials[0].hosts: is missing",
                    "2:15: credentials[0].name: is missing",
                ],
            ),
            (
                "credentials:\n  - { name: a b, hosts: [], bearer: s3cr3t }",
                &[
                    "3:13: credentials[0].name: must be 1 to 64 letters, digits or _ . -",
                    "3:25: credentials[0].hosts: must not be empty",
                ],
            ),
            (
                "credentials:\n  - { name: a, hosts: [\"*.example.com\", \"a.example:0\", \"10.0.0.1\", \"https://a.example\"], bearer: s3cr3t }",
                &[
                    "3:24: credentials[0].hosts[0]: must be a name, or name:port, without a wildcard: the host name has an invalid character or label",
                    "3:41: credentials[0].hosts[1]: must be a name, or name:port, without a wildcard: the port is malformed",
                    "3:56: credentials[0].hosts[2]: must be a name: an address is not accepted",
                    "3:68: credentials[0].hosts[3]: must be a name, or name:port, without a wildcard: the port is malformed",
                ],
            ),
            (
                "credentials:\n  - { name: a, hosts: [a.example], bearer: s3cr3t }\n  - { name: a, hosts: [a.example], bearer: s3cr3t }",
                &["4:5: credentials[1]: has the same name as the entry in line 3"],
            ),
            (
                "credentials:\n  - { name: a, hosts: [a.example], bearer: s3cr3t, basic: { username: \"u:v\" } }",
                &[
                    "3:5: credentials[0]: must have exactly one of set_headers, basic, bearer, github_app, oauth, and has 2",
                    "3:59: credentials[0].basic.password: is missing",
                    "3:71: credentials[0].basic.username: must not contain a colon",
                ],
            ),
            (
                "credentials:\n  - { name: a, hosts: [a.example], bearer: 123456 }",
                &["3:44: credentials[0].bearer: must be a text: put it in quotes"],
            ),
            (
                "credentials:\n  - { name: a, hosts: [a.example], bearer: [s3cr3t] }",
                &["3:44: credentials[0].bearer: must be a text"],
            ),
            (
                "credentials:\n  - { name: a, hosts: [a.example], bearer: \"${LINE_BREAK}\" }",
                &[
                    "3:44: credentials[0].bearer: has a character that a header must not contain (a line break at its end?)",
                ],
            ),
            (
                "credentials:\n  - { name: a, hosts: [a.example], bearer: { path: /s3cr3t } }",
                &[
                    "3:44: credentials[0].bearer.file: is missing",
                    "3:46: credentials[0].bearer.path: unknown key; known here: file",
                ],
            ),
            (
                "credentials:\n  - { name: a, hosts: [a.example], set_headers: {} }",
                &["3:49: credentials[0].set_headers: must set at least one header"],
            ),
            (
                "credentials:\n  - name: a\n    hosts: [a.example]\n    set_headers: { \"a b\": x, host: x, Proxy-Authorization: x, x-api-key: x, X-API_Key: x }",
                &[
                    r#"5:20: credentials[0].set_headers["a b"]: must be a header's name"#,
                    "5:30: credentials[0].set_headers.host: this header cannot be set",
                    "5:39: credentials[0].set_headers.Proxy-Authorization: this header cannot be set",
                    "5:77: credentials[0].set_headers.X-API_Key: this header is set already, perhaps in another spelling",
                ],
            ),
            (
                "credentials:\n  - name: a\n    hosts: [a.example]\n    bearer: s3cr3t\n    remove_headers: [\"\"]\n    remove_query: [\"\"]\n    containers: []\n    repos: [owner, o/n/m]",
                &[
                    "6:22: credentials[0].remove_headers[0]: must be a header's name",
                    "7:20: credentials[0].remove_query[0]: must be the name of a parameter or cookie",
                    "8:17: credentials[0].containers: must not be empty",
                    "9:13: credentials[0].repos[0]: must be owner/name",
                    "9:20: credentials[0].repos[1]: must be owner/name",
                ],
            ),
        ],
    );
}

#[test]
fn invalid_github_app_and_oauth_credentials_are_refused_with_their_place() {
    check_errors(
        "credentials.yaml",
        &[
            (
                "credentials:\n  - name: app\n    hosts: [github.com]\n    github_app: { app_id: 1, permissions: { contents: all } }",
                &[
                    "5:17: credentials[0].github_app.installation_id: is missing",
                    "5:17: credentials[0].github_app.private_key: is missing",
                    "5:27: credentials[0].github_app.app_id: must be a text: put it in quotes",
                    "5:43: credentials[0].github_app.permissions: must grant a permission, such as contents: read",
                    "5:55: credentials[0].github_app.permissions.contents: must be one of read, write, admin",
                ],
            ),
            (
                "credentials:\n  - name: app\n    hosts: [git.example.com]\n    github_app: { app_id: \"1/2\", installation_id: \"2\", private_key: { file: /k } }",
                &[
                    "5:17: credentials[0].github_app: none of the entry's hosts belongs to a forge in git.hosts of policy.yaml: add the forge there, or change hosts of this entry",
                    "5:27: credentials[0].github_app.app_id: must be an id of letters, digits and dots",
                ],
            ),
            (
                "credentials:\n  - name: app\n    hosts: [github.com, api.example.com]\n    github_app: { app_id: \"1\", installation_id: \"2\", private_key: { file: /k } }",
                &[
                    "5:17: credentials[0].github_app: api.example.com does not belong to the forge github.com (see git.hosts in policy.yaml): all hosts of a github_app entry must belong to one forge",
                ],
            ),
            (
                "credentials:\n  - name: codex\n    hosts: [chatgpt.com]\n    oauth: { provider: generic, token_file: /t, token_url: \"http://a.example/\" }",
                &[
                    "5:12: credentials[0].oauth.client_id: is missing",
                    "5:60: credentials[0].oauth.token_url: must be an https:// URL with a host name, without user or query",
                ],
            ),
            (
                "credentials:\n  - name: codex\n    hosts: [chatgpt.com]\n    oauth: { provider: codex, token_file: /t, entry: x }",
                &[
                    "5:47: credentials[0].oauth.entry: unknown key; known here: token_file, provider, client_secret, scopes, token_url, client_id",
                ],
            ),
            (
                "credentials:\n  - { name: a, hosts: [a.example], oauth: { provider: codex, token_file: /t } }\n  - { name: b, hosts: [b.example], oauth: { provider: codex, token_file: /t } }",
                &[
                    "4:5: credentials[1]: has the same token_file as the entry in line 3: name all hosts in one entry",
                ],
            ),
        ],
    );
}

#[test]
fn an_installation_id_with_other_characters_than_digits_is_refused_with_its_place() {
    for id in ["..", "1/2", "1.2", "Iv1", "-1", ""] {
        let text = format!(
            "credentials:\n  - name: app\n    hosts: [github.com]\n    github_app: {{ app_id: \"Iv1.8a61\", installation_id: \"{id}\", private_key: {{ file: /k }} }}"
        );
        let error = "5:56: credentials[0].github_app.installation_id: must be an id of digits";
        check_errors("credentials.yaml", &[(&text, &[error])]);
    }
}

#[test]
fn the_host_of_a_github_app_determines_its_api_and_an_opencode_login_has_its_entry() {
    let config = load_files(&[
        (
            "policy.yaml",
            b"version: 1\ngit: { hosts: [github.com, { host: ghe.example.com }] }\n",
        ),
        (
            "credentials.yaml",
            br#"
version: 1
credentials:
  - { name: hub, hosts: [api.github.com], github_app: { app_id: "1", installation_id: "2", private_key: { file: /nowhere/k } } }
  - { name: own, hosts: [ghe.example.com], github_app: { app_id: "1", installation_id: "2", private_key: { file: /nowhere/k } } }
  - { name: login, hosts: [chatgpt.com], oauth: { provider: opencode, token_file: /nowhere/t, entry: other } }
  - { name: unset, hosts: [chatgpt.com], oauth: { provider: codex, token_file: "${NOT_SET:-}" } }
"#,
        ),
    ]);
    let config = config.unwrap();
    let apis = config
        .addons
        .credentials
        .active
        .iter()
        .filter_map(|entry| match &entry.kind {
            KindSettings::GithubApp(app) => {
                let app = &app.installation;
                Some(format!("{}{} {:?}", app.api, app.prefix, app.permissions))
            }
            _ => None,
        });
    assert_eq!(
        apis.collect::<Vec<_>>(),
        [
            r#"api.github.com {"contents": "read"}"#,
            r#"ghe.example.com/api/v3 {"contents": "read"}"#,
        ]
    );
    let Some(KindSettings::Oauth(oauth)) = config.addons.credentials.active.last().map(|c| &c.kind)
    else {
        panic!("the last credential is not an OAuth login");
    };
    assert_eq!(oauth.login.entry, "other");
    assert_eq!(
        oauth.login.token_url.to_string(),
        "https://auth.openai.com/oauth/token"
    );
    let warned = |text: &str| config.warnings.iter().any(|warning| warning.contains(text));
    assert!(warned(
        "1 credential is inactive, its secret is empty: unset (NOT_SET)"
    ));
    assert!(warned("login: /nowhere/t cannot be read"));
}

#[test]
fn a_credential_for_a_host_that_the_allowlist_denies_or_another_credential_has_causes_a_warning() {
    let config = load_files(&[
        (
            "allowlist.yaml",
            b"version: 1\ndomains: [api.example.com, \"*.example.org\"]\n",
        ),
        (
            "credentials.yaml",
            br#"version: 1
credentials:
  - { name: used, hosts: [api.example.com, deep.example.org], bearer: x }
  - { name: away, hosts: [api.example.com, other.example.com], bearer: x }
  - { name: port, hosts: ["api.example.com:8443"], bearer: x }
  - { name: off, hosts: [off.example.com], bearer: "${EMPTY}" }
"#,
        ),
    ]);
    assert_eq!(
        config.unwrap().warnings,
        [
            "credentials.yaml: 1 credential is inactive, its secret is empty: off (EMPTY)",
            "credentials.yaml:4: away is for other.example.com, which no entry of allowlist.yaml allows, so it is sent there only if a person grants the host: add \"- other.example.com\" under domains, or take the host out",
            "credentials.yaml:5: port is for api.example.com:8443, and the entry at allowlist.yaml:2 allows other ports only: add 8443 to its ports, or take the host out",
            "credentials.yaml:4: away is for api.example.com:443, and so is used at credentials.yaml:3: a request there gets both, or only used if both set the same header: remove one entry, or leave its variable empty",
        ]
    );
}

#[test]
fn a_token_of_a_git_host_that_all_containers_share_causes_a_warning() {
    let warnings = |kind: &str| {
        let yaml =
            format!("version: 1\ncredentials:\n  - {{ name: a, hosts: [github.com], {kind} }}\n");
        let config = load_one("credentials.yaml", &yaml).unwrap();
        let of_token = |warning: &&String| warning.contains("one token for all its containers");
        config.warnings.iter().filter(of_token).count()
    };
    assert_eq!(warnings("bearer: x"), 1);
    assert_eq!(warnings("basic: { username: u, password: x }"), 1);
    assert_eq!(
        warnings(
            "github_app: { app_id: \"1\", installation_id: \"2\", private_key: { file: /k } }"
        ),
        0
    );
}

#[test]
fn two_credentials_for_the_same_requests_cause_a_warning_unless_one_is_limited() {
    let key = "set_headers: { x-api-key: a-secret }";
    each_row(
        [
            (key, "bearer: another", true),
            (key, "set_headers: { x-api-key: another }", true),
            (
                "bearer: a-secret",
                "basic: { username: u, password: p }",
                true,
            ),
            (key, "bearer: another, containers: [c1]", false),
            (key, "bearer: another, repos: [o/n]", false),
        ],
        |(first, second, warned)| {
            for (host, shared) in [("a.example", true), ("\"a.example:8443\"", false)] {
                let text = format!(
                    "version: 1\ncredentials:\n  - {{ name: first, hosts: [a.example], {first} }}\n  \
                     - {{ name: second, hosts: [b.example, {host}], {second} }}\n"
                );
                let warnings = load_one("credentials.yaml", &text).unwrap().warnings;
                let found = warnings
                    .iter()
                    .find(|warning| warning.contains("and so is first"));
                assert_eq!(
                    found.is_some(),
                    warned && shared,
                    "{first}, {second}, {host}"
                );
                if let Some(found) = found {
                    assert!(found.starts_with("credentials.yaml:4: second"), "{found}");
                    assert!(!found.contains("secret"), "{found}");
                }
            }
        },
    );
}

#[test]
fn errors_name_each_unset_variable_and_contain_no_value_of_a_set_one() {
    check_errors(
        "credentials.yaml",
        &[
            (
                "credentials:\n  - { name: a, hosts: [a.example], bearer: \"${TOKEN}\" }",
                &[
                    "3:44: credentials[0].bearer: the variable TOKEN is not set: set it, or give a default with ${TOKEN:-…}",
                ],
            ),
            (
                "credentials:\n  - { name: a, hosts: [\"${HOST}${OTHER}\"], bearer: \"${SECRET} ${TOKEN}\" }",
                &[
                    "3:24: credentials[0].hosts[0]: the variable HOST is not set: set it, or give a default with ${HOST:-…}",
                    "3:24: credentials[0].hosts[0]: the variable OTHER is not set: set it, or give a default with ${OTHER:-…}",
                    "3:52: credentials[0].bearer: the variable TOKEN is not set: set it, or give a default with ${TOKEN:-…}",
                ],
            ),
            (
                "credentials:\n  - { name: a, hosts: [a.example], bearer: \"${TOKEN\" }",
                &[
                    "3:44: credentials[0].bearer: malformed variable: write ${NAME} or ${NAME:-default}",
                ],
            ),
            (
                "credentials:\n  - { name: \"${SECRET} \", hosts: [\"${SECRET}/\"], bearer: x }",
                &[
                    "3:13: credentials[0].name: must be 1 to 64 letters, digits or _ . -",
                    "3:35: credentials[0].hosts[0]: must be a name, or name:port, without a wildcard: the host name has an invalid character or label",
                ],
            ),
        ],
    );
}

#[test]
fn an_entry_with_an_empty_secret_is_inactive_and_named_in_a_warning() {
    let config = load_one(
        "credentials.yaml",
        r#"
version: 1
credentials:
  - { name: unset, hosts: [a.example], bearer: "${NOT_SET:-}" }
  - { name: empty, hosts: [a.example], set_headers: { x: "Bearer ${EMPTY}" } }
  - { name: literal, hosts: [a.example], bearer: "" }
  - { name: absent, hosts: [a.example], bearer: { file: /nowhere/key } }
  - { name: active, hosts: [a.example, "a.example:8443"], basic: { username: u, password: "${SECRET}" }, repos: [o/n] }
"#,
    )
    .unwrap();
    let names: Vec<_> = config
        .addons
        .credentials
        .active
        .iter()
        .map(|c| c.name.as_str())
        .collect();
    assert_eq!(names, ["absent", "active"]);
    assert_eq!(
        config.warnings[1..3],
        [
            "credentials.yaml:7: absent: /nowhere/key cannot be read: No such file or directory (os error 2)",
            "credentials.yaml: 3 credentials are inactive, their secrets are empty: unset (NOT_SET), empty (EMPTY), literal (no variable)",
        ]
    );
    let active = &config.addons.credentials.active[1];
    let ports: Vec<_> = active.hosts.iter().map(|(_, port)| *port).collect();
    assert_eq!(ports, [443, 8443]);
    assert_eq!(active.repos.as_deref(), Some(&["o/n".to_owned()][..]));
    assert!(!format!("{config:?}").contains("s3cr3t"));
}

#[test]
fn a_variable_that_holds_yaml_stays_one_scalar() {
    let config = load_one(
        "credentials.yaml",
        "version: 1\ncredentials:\n  - { name: a, hosts: [a.example], basic: { username: u, password: ${SET} } }\n",
    );
    assert!(
        config.is_err(),
        "a plain ${{…}} in a flow mapping is not YAML"
    );

    let yaml = "version: 1\ncredentials:\n- name: a\n  hosts: [a.example]\n  basic:\n    username: u\n    password: ${YAML}\n";
    let config = load_one("credentials.yaml", yaml).unwrap();
    let KindSettings::Basic { password, .. } = &config.addons.credentials.active[0].kind else {
        panic!("the credential has no user name and password");
    };
    let SecretSetting::Value(value) = password else {
        panic!("the password is not a value");
    };
    assert_eq!(Some(value.to_string()), env("YAML"));

    let errors = load_one("allowlist.yaml", "version: 1\ndomains:\n- ${YAML}\n").unwrap_err();
    assert_eq!(errors.lines().count(), 1);
    assert!(
        errors.starts_with("allowlist.yaml:3:3: domains[0]: "),
        "{errors}"
    );
}

#[test]
fn two_entries_cannot_share_a_token_file_by_different_paths() {
    let dir = tempfile::tempdir().unwrap();
    let (file, link) = (dir.path().join("auth.json"), dir.path().join("link"));
    std::fs::write(&file, "{}").unwrap();
    std::os::unix::fs::symlink(&file, &link).unwrap();
    let entry = |name: &str, path: &std::path::Path| {
        let path = path.display();
        format!(
            "  - name: {name}\n    hosts: [a.example]\n    oauth: {{ provider: codex, token_file: {path} }}\n"
        )
    };
    let yaml = format!("credentials:\n{}{}", entry("a", &file), entry("b", &link));
    check_errors(
        "credentials.yaml",
        &[(
            &yaml,
            &[
                "6:5: credentials[1]: has the same token_file as the entry in line 3: name all hosts in one entry",
            ],
        )],
    );
}
