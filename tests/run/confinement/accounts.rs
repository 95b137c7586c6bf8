//! The user's own account.

use std::fs;

use testkit::each_row;

use crate::fixture::{Person, is_root};

/// As with LDAP or SSSD: /etc/passwd and /etc/group do not know the user.
#[test]
fn a_user_of_a_directory_service_has_an_account_in_the_sandbox() {
    let Some(mut person) = Person::new().filter(|_| is_root()) else {
        return;
    };
    let script = "id -un; id -gn; getent passwd $(id -u) | cut -d: -f1,6; \
        python3 -c 'import getpass, os, pwd; print(pwd.getpwuid(os.getuid()).pw_dir)'; \
        eval echo ~$(id -un)";
    let without_account = |etc: &std::path::Path| {
        for file in ["passwd", "group"] {
            let text = fs::read_to_string(etc.join(file)).unwrap();
            let lines = text.lines().filter(|line| !line.contains(":65534:"));
            let kept: Vec<_> = lines.collect();
            fs::write(etc.join(file), kept.join("\n") + "\n").unwrap();
        }
    };
    let home = person.home().display().to_string();
    each_row(
        [
            ("ada", "ada"),
            ("ada.l@corp.example.com", "ada.l@corp.example.com"),
            ("root", "user"),
        ],
        |(wanted, name)| {
            person.env = vec![("USER".to_owned(), wanted.to_owned())];
            let run = person.command(&["--quiet"], &["bash", "-c", script]);
            let ran = person.run_with_etc(&run, "", without_account);
            let expected = format!("{name}\n{name}\n{name}:{home}\n{home}\n{home}\n");
            assert_eq!(ran.ok(), expected);
        },
    );
}
