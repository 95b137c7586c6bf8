//! The attempts of `tests/security/redteam-sandbox.sh` in a sandbox of each back end that runs here.

use std::fs::File;
use std::path::Path;

use crate::attempts::Ears;
use crate::summary::can_run;
use crate::world::{INTERNET, World, ran};

#[test]
fn every_attempt_of_the_red_team_is_held_in_a_network_namespace() {
    if !can_run("every_attempt_of_the_red_team_is_held_in_a_network_namespace") {
        return;
    }
    let world = World::start();
    let ears = Ears::on(&world.internet, true);
    world.up("a", &[]);
    world.up("b", &[]);
    let script = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/security/redteam-sandbox.sh");
    let mut command = world.script(&["exec", "a", "--", "bash", "-s", "--", "--kind", "netns"]);
    // What would answer here, and a host that is allowed here.
    command.args([
        "--target",
        &INTERNET.to_string(),
        "--target6",
        "2001:db8::2",
    ]);
    command.args(["--allowed", "api.example.com"]);
    command.stdin(File::open(script).unwrap());
    let ran = ran(world.host.run(|| command.output().unwrap()));
    let (held, other): (Vec<&str>, _) = ran
        .stdout
        .lines()
        .partition(|line| line.starts_with("held "));
    let open = other.iter().filter(|line| !line.starts_with("not tried "));
    assert_eq!(open.count(), 0, "{}{}", ran.stdout, ran.stderr);
    assert!(
        held.len() > 40,
        "{} attempts: {}{}",
        held.len(),
        ran.stdout,
        ran.stderr
    );
    assert_eq!(ran.code, Some(0));
    assert_eq!(ears.heard(), [""; 0]);
    assert!(
        world
            .origin
            .seen()
            .iter()
            .all(|seen| seen.authority.ends_with(".example.com"))
    );
}
