//! `mcp policy`: the policy in force, for operators.

use clap::Subcommand;

use crate::admin::PolicyBody;
use crate::cli::Output;
use crate::cli::exit::{Failure, printable};

/// Subcommands of `mcp policy`.
#[derive(Debug, Subcommand)]
pub enum PolicyCommand {
    /// Print the policy in force, and where it comes from
    Show(Output),
    /// Remove the policy that people set: the bundle of mcp.yaml is in force again
    Reset(Output),
}

impl PolicyCommand {
    pub(super) async fn run(self) -> Result<(), Failure> {
        match self {
            Self::Show(output) => {
                let policy = output.target.client().policy().await?;
                output.print(&policy, shown)
            }
            Self::Reset(output) => {
                let policy = output.target.client().reset_policy().await?;
                output.print(&policy, |policy| {
                    let mut lines = vec!["the policy that people set is removed".to_owned()];
                    lines.extend(head(policy));
                    lines.join("\n")
                })
            }
        }
    }
}

/// Where the policy comes from, as comments above its text.
fn shown(policy: &PolicyBody) -> String {
    let mut lines: Vec<_> = head(policy)
        .iter()
        .map(|line| format!("# {line}"))
        .collect();
    // An agent wrote the text, or a part of it.
    let text = policy.text.iter().flat_map(|text| text.lines());
    lines.extend(text.map(|line| printable(&line.replace('\t', "    "))));
    lines.join("\n")
}

fn head(policy: &PolicyBody) -> Vec<String> {
    let PolicyBody { set_by, set_at, .. } = policy;
    let bundle = policy.bundle.as_deref();
    let is = match policy.problem {
        Some(_) => "not in force",
        None => "in force",
    };
    let mut lines = vec![match (policy.origin.as_str(), bundle) {
        ("stored", bundle) => format!(
            "{is}: a policy that {} set at {}, in place of the bundle {}",
            set_by.as_deref().unwrap_or("a person"),
            set_at.as_deref().unwrap_or("an unknown time"),
            bundle.unwrap_or("of mcp.yaml"),
        ),
        (_, Some(bundle)) => format!("in force: the bundle {bundle} of mcp.yaml"),
        (_, None) => "in force: the bundles of mcp.yaml; none is policies.editable".to_owned(),
    }];
    if let Some(proposal) = &policy.proposal {
        lines.push(format!("proposal: unified-proxy approvals show {proposal}"));
    }
    if let Some(digest) = &policy.digest {
        lines.push(format!("sha256: {digest}"));
    }
    if let Some(problem) = &policy.problem {
        lines.push(format!("problem: {problem}"));
    }
    lines.iter().map(|line| printable(line)).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_policy_is_printed_below_its_origin_without_harmful_characters() {
        let policy = PolicyBody {
            origin: "stored".to_owned(),
            bundle: Some("main".to_owned()),
            file_name: "policy.rego".to_owned(),
            digest: Some("00ff".to_owned()),
            text: Some("package a\n\n\tx := \"\u{202e}\u{1b}[2J\"\n".to_owned()),
            problem: None,
            set_by: Some("token a\nb".to_owned()),
            set_at: Some("2030-01-01T00:00:00Z".to_owned()),
            proposal: Some("0a".to_owned()),
        };
        let expected = "\
# in force: a policy that token a\\u{a}b set at 2030-01-01T00:00:00Z, in place of the bundle main
# proposal: unified-proxy approvals show 0a
# sha256: 00ff
package a

    x := \"\\u{202e}\\u{1b}[2J\"";
        assert_eq!(shown(&policy), expected);
        let policy = PolicyBody {
            origin: "bundle".to_owned(),
            bundle: Some("main".to_owned()),
            problem: Some("it does not compile".to_owned()),
            ..PolicyBody::default()
        };
        let expected = "# in force: the bundle main of mcp.yaml\n# problem: it does not compile";
        assert_eq!(shown(&policy), expected);
    }
}
