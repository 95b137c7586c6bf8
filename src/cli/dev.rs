//! The arguments of `dev`.

use std::path::PathBuf;

use clap::Args;

use crate::admin::repo_name;
use crate::app::DevOptions;

/// URL prefixes of repositories at github.com. Repositories of other hosts are given as OWNER/NAME.
const FORGE: [&str; 4] = [
    "https://github.com/",
    "http://github.com/",
    "ssh://git@github.com/",
    "git@github.com:",
];

/// The configuration directory, and options that replace settings in it.
#[derive(Args, Debug)]
pub struct Dev {
    /// The directory of the configuration files
    #[arg(long, value_name = "DIR", default_value = "./config")]
    config: PathBuf,
    /// A repository that `local` may use, also as its URL at github.com; may be repeated
    #[arg(long = "repo", value_name = "OWNER/NAME", value_parser = parse_repo)]
    repos: Vec<String>,
    /// The port of the proxy [default: 8080, or what proxy.yaml says]
    #[arg(long, value_name = "PORT", value_parser = clap::value_parser!(u16).range(1..))]
    proxy_port: Option<u16>,
    /// The port of DNS, for UDP and TCP [default: 5353, or what proxy.yaml says, or a free port
    /// if that is taken]
    #[arg(long, value_name = "PORT", value_parser = clap::value_parser!(u16).range(1..))]
    dns_port: Option<u16>,
    /// The port of the MCP gateway [default: 8090, or what proxy.yaml says]
    #[arg(long, value_name = "PORT", value_parser = clap::value_parser!(u16).range(1..))]
    mcp_port: Option<u16>,
}

impl Dev {
    /// Returns the configuration directory and the options, without duplicate repositories.
    pub fn into_options(self) -> (PathBuf, DevOptions) {
        let mut repos: Vec<String> = Vec::with_capacity(self.repos.len());
        for repo in self.repos {
            if !repos.iter().any(|known| known.eq_ignore_ascii_case(&repo)) {
                repos.push(repo);
            }
        }
        let options = DevOptions {
            repos,
            proxy_port: self.proxy_port,
            dns_port: self.dns_port,
            mcp_port: self.mcp_port,
        };
        (self.config, options)
    }
}

/// Parses `OWNER/NAME`, or the URL of a repository, into `OWNER/NAME`.
pub(super) fn parse_repo(text: &str) -> Result<String, String> {
    let at_forge = FORGE.iter().find_map(|prefix| text.strip_prefix(prefix));
    let path = at_forge.map_or(text, |path| path.trim_end_matches('/'));
    let name = path.strip_suffix(".git").unwrap_or(path);
    repo_name(name).map_err(|problem| {
        format!("{problem}; write OWNER/NAME, or https://github.com/OWNER/NAME")
    })?;
    Ok(name.to_owned())
}

#[cfg(test)]
mod tests {
    use testkit::each_row;

    use super::*;

    #[test]
    fn a_repository_is_named_by_owner_and_name_or_by_a_url_at_github() {
        each_row(
            [
                "octocat/Hello-World",
                "octocat/Hello-World.git",
                "https://github.com/octocat/Hello-World",
                "https://github.com/octocat/Hello-World/",
                "https://github.com/octocat/Hello-World.git",
                "git@github.com:octocat/Hello-World.git",
                "ssh://git@github.com/octocat/Hello-World.git",
            ],
            |text| {
                assert_eq!(
                    parse_repo(text).as_deref(),
                    Ok("octocat/Hello-World"),
                    "{text}"
                );
            },
        );
    }

    #[test]
    fn the_error_for_an_invalid_repository_shows_the_expected_form() {
        each_row(
            [
                "",
                "octocat",
                "Hello-World.git",
                "octocat/",
                "octocat/..",
                "octocat/Hello World",
                "octocat/Hello-World.git.git",
                "https://github.com/octocat",
                "https://github.com/octocat/Hello-World/tree/main",
                "https://git.example.com/octocat/Hello-World",
                "git@git.example.com:octocat/Hello-World.git",
            ],
            |text| {
                let error = parse_repo(text).expect_err(text);
                assert!(error.contains("write OWNER/NAME"), "{text}: {error}");
            },
        );
    }
}
