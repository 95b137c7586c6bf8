//! Runs the commands of README.md while `unified-proxy dev` runs, and checks that they print what
//! the page says. Does not run the commands that install, or start `dev` or an agent.

use std::path::Path;
use std::process::Command;

use crate::support::{Dev, Origin};

/// Printed before each command's output.
const MARK: &str = "-- ran: ";

/// A command of the page, and the lines that its output must contain: the comments below it.
#[derive(Debug)]
struct Step {
    command: String,
    expected: Vec<String>,
}

#[test]
fn the_commands_of_the_readme_print_what_the_page_says() {
    let readme = include_str!("../../README.md");
    let steps: Vec<Step> = shell_blocks(readme).iter().flat_map(|b| steps(b)).collect();
    let (set_up, tried): (Vec<Step>, Vec<Step>) = steps.into_iter().partition(|step| {
        let parts = [
            "git clone",
            "cargo install",
            "unified-proxy dev",
            " -- claude",
        ];
        parts.iter().any(|part| step.command.contains(part))
    });
    let start = set_up
        .iter()
        .find_map(|step| step.command.split_once("unified-proxy dev"));
    let arguments: Vec<&str> = start.unwrap().1.split_whitespace().collect();
    assert!(tried.len() > 10, "{tried:?}");

    let origin = Origin::start();
    serve_hello_world(&origin);
    let dev = Dev::start(&origin, &arguments, &[("ANTHROPIC_API_KEY", "sk-ant-real")]);
    let here = |text: &str| {
        let text = text.replace("127.0.0.1:8080", &dev.address.to_string());
        text.replace("-p 5353", &format!("-p {}", dev.dns.port()))
    };
    let binary = Path::new(env!("CARGO_BIN_EXE_unified-proxy"));
    let installed = binary.parent().unwrap().display();
    let mut script = format!("exec 2>&1\nPATH={installed}:$PATH\n");
    for step in &tried {
        script += &format!(
            "echo; echo '{MARK}'\n{}\necho; echo \"exit $?\"\n",
            here(&step.command)
        );
    }
    let output = dev.shell(&script);
    let output = String::from_utf8_lossy(&output.stdout);
    let outputs: Vec<&str> = output.split(MARK).skip(1).collect();
    assert_eq!(outputs.len(), tried.len(), "{output}");
    for (step, output) in tried.iter().zip(outputs) {
        let failed = !output.contains("\nexit 0");
        assert!(
            !step.expected.is_empty() || !failed,
            "{}: {output}",
            step.command
        );
        for line in &step.expected {
            assert!(output.contains(&here(line)), "{}: {output}", step.command);
        }
    }
    let request = origin
        .seen()
        .into_iter()
        .find(|seen| seen.authority == "api.anthropic.com");
    assert_eq!(request.unwrap().header("x-api-key"), Some("sk-ant-real"));
}

/// The contents of the page's `sh` blocks; a line that ends with a backslash is joined with the
/// next one.
fn shell_blocks(page: &str) -> Vec<String> {
    let blocks = page.split("```sh\n").skip(1);
    let blocks = blocks.filter_map(|rest| rest.split_once("```"));
    blocks
        .map(|(block, _)| block.replace("\\\n", " "))
        .collect()
}

fn steps(block: &str) -> Vec<Step> {
    let mut steps: Vec<Step> = Vec::new();
    for line in block.lines().filter(|line| !line.is_empty()) {
        match line.strip_prefix("# ") {
            Some(expected) => {
                let step = steps.last_mut().expect("a comment has no command above it");
                step.expected.push(expected.to_owned());
            }
            None => {
                let command = line.split("   # ").next().unwrap().trim();
                let (command, expected) = (command.to_owned(), Vec::new());
                steps.push(Step { command, expected });
            }
        }
    }
    steps
}

/// Creates `octocat/Hello-World` at the origin, with one commit.
fn serve_hello_world(origin: &Origin) {
    let bare = origin.repositories().join("octocat/Hello-World.git");
    let script = "git init -q --bare -b main \"$0\" && cd \"$0\" && \
        commit=$(git -c user.name=o -c user.email=o@example.com commit-tree \
        $(git hash-object -t tree -w /dev/null) -m first) && git update-ref refs/heads/main $commit";
    let status = Command::new("bash")
        .args(["-c", script])
        .arg(&bare)
        .status();
    assert!(status.unwrap().success());
}
