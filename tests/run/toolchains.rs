//! Tools below the home directory, and programs that the command installs.

use crate::fixture::Person;
use crate::support::Ran;

/// PATH with these directories first.
fn with_path(person: &mut Person, directories: &[&str]) {
    let home = person.home();
    let mut path: Vec<String> = directories
        .iter()
        .map(|directory| home.join(directory).display().to_string())
        .collect();
    path.push("/usr/local/bin:/usr/bin:/bin".to_owned());
    person.env.push(("PATH".into(), path.join(":")));
}

/// A virtual environment of Python, and directories in the layouts of conda, of Node.js, and of a
/// tool that keeps secrets in its root.
#[test]
fn tools_below_the_home_directory_have_their_libraries_and_no_other_files_are_visible() {
    let Some(mut person) = Person::new() else {
        return;
    };
    let made = Ran::of(person.outside("sh").args([
        "-ec",
        "cd; /usr/bin/python3 -m venv --without-pip .venvs/app; echo 'x = 7' >$(echo .venvs/app/lib/python3*/site-packages)/own.py",
    ]));
    made.ok();
    for file in [
        ".venvs/app/.env",
        "miniconda3/lib/library",
        "miniconda3/conda-meta/state",
        "miniconda3/etc/conda/activate.d/variables.sh",
        "miniconda3/.condarc",
        "miniconda3/bin/x",
        "opt/node/lib/node_modules/npm/index.js",
        "opt/node/include/node/node.h",
        "opt/node/bin/x",
        "opt/secret",
        ".some-tool/lib/library",
        ".some-tool/credentials.json",
        ".some-tool/bin/x",
        ".local/bin/x",
        ".local/share/app/secret",
    ] {
        person.write(file, "text");
    }
    let on_path = [
        ".venvs/app/bin",
        "miniconda3/bin",
        "opt/node/bin",
        ".some-tool/bin",
        ".local/bin",
    ];
    with_path(&mut person, &on_path);
    let script = "python -c 'import own, sys; print(own.x, sys.prefix)'; cd; \
        find .venvs/app miniconda3 opt .some-tool .local/share -type f | grep -v site-packages | grep -v /bin/ | sort; \
        echo x >miniconda3/lib/new || echo read-only";
    let ran = person.sh(&["--quiet"], script);
    let prefix = person.home().join(".venvs/app");
    let expected = format!(
        "7 {}\n.some-tool/lib/library\n.venvs/app/pyvenv.cfg\n\
         miniconda3/lib/library\nopt/node/include/node/node.h\n\
         opt/node/lib/node_modules/npm/index.js\nread-only\n",
        prefix.display()
    );
    assert_eq!(ran.stdout, expected, "{ran:?}");
}

#[test]
fn npm_installs_a_program_that_is_then_on_path_and_ends_with_the_run() {
    let Some(mut person) = Person::new() else {
        return;
    };
    let manifest = r#"{ "name": "own-tool", "version": "1.0.0", "bin": { "own-tool": "run.js" } }"#;
    person.write("project/package/package.json", manifest);
    person.write(
        "project/package/run.js",
        "#!/usr/bin/env node\nconsole.log('installed')\n",
    );
    // Directories of the user for installed programs.
    for file in [
        ".npm-global/bin/x",
        ".local/bin/x",
        ".cargo/bin/x",
        "go/bin/x",
    ] {
        person.write(file, "");
    }
    with_path(&mut person, &[".npm-global/bin", ".local/bin"]);
    person.env.push((
        "NPM_CONFIG_PREFIX".into(),
        person.home().join(".npm-global").display().to_string(),
    ));
    let script = "npm install -g --offline --no-audit --no-fund ./package >&2 && own-tool && cd && command -v own-tool && \
        for place in \"$CARGO_INSTALL_ROOT/bin\" \"$GOBIN\" \"$UV_TOOL_BIN_DIR\" \"$PIPX_BIN_DIR\"; do \
        mkdir -p \"$place\" && printf '#!/bin/sh\\necho other' >\"$place/other\" && chmod +x \"$place/other\" && other; done";
    let ran = person.sh(&["--quiet"], script);
    let program = person.home().join(".installed/bin/own-tool");
    let expected = format!("installed\n{}\n{}", program.display(), "other\n".repeat(4));
    assert_eq!(ran.stdout, expected, "{ran:?}");
    assert!(!person.home().join(".installed").exists());
}
