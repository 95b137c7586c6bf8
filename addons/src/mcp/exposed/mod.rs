//! Tools and prompts under their exposed names, as a container sees them.

mod names;
mod prompts;
mod rewrite;

use std::borrow::Cow;
use std::collections::HashMap;
use std::sync::Arc;

use super::definition::is_blocked;
use super::level;
use super::settings::{McpSettings, OverrideRule, ServerSettings};
use crate::contract::{Container, Definition};

pub use names::Problem;
pub use prompts::{ExposedPrompt, ExposedPrompts};

use names::{Precedence, Problems, exposed_tool_name, report_collision};
use rewrite::Change;

/// The tools of a container by their exposed names, built for one security level from the servers'
/// lists and the overrides.
#[derive(Debug, Default)]
pub struct Exposed {
    tools: Vec<ExposedTool>,
    by_name: HashMap<Arc<str>, usize>,
    problems: Vec<Problem>,
}

/// One tool under its exposed name.
#[derive(Debug)]
pub struct ExposedTool {
    /// The name that the container sees.
    pub name: Arc<str>,
    /// The server that lists the tool.
    pub server: Arc<ServerSettings>,
    /// The definition as the server lists it.
    pub definition: Arc<Definition>,
    /// Whether the tool is listed. The chain would deny every call of an unlisted tool. Such a
    /// tool is blocked because its definition changed, or reaches the open world, which the
    /// container's security level excludes.
    pub is_listed: bool,
    /// How the entry of `tools/list` differs from the definition.
    change: Change,
}

/// A server with its tools.
pub type Listing = (Arc<ServerSettings>, Arc<[Arc<Definition>]>);

impl Exposed {
    /// Builds the view of a container, in the order of `listings`. If several tools have the same
    /// exposed name, keeps the first one that the operator renamed, or else the first one whose
    /// name is whole, or else the first of all.
    #[must_use]
    pub fn of(settings: &McpSettings, container: &Container, listings: &[Listing]) -> Self {
        let count = listings.iter().map(|(_, tools)| tools.len()).sum();
        let mut all = Vec::with_capacity(count);
        let mut exposed = Self {
            by_name: HashMap::with_capacity(count),
            ..Self::default()
        };
        // Separate lists, so that problems of one kind cannot use up the limit for another.
        let mut names = Problems::default();
        let mut collisions = Problems::default();
        let mut left_out = Problems::default();
        for (server, tools) in listings {
            for definition in tools.iter() {
                let rule = settings.override_of(&server.name, &definition.name, &container.id);
                let named = match rule.and_then(|rule| rule.rename.clone()) {
                    Some(renamed) => Some((renamed, Precedence::Renamed)),
                    None => exposed_tool_name(server, &definition.name, &mut names),
                };
                if let Some((name, precedence)) = named {
                    all.push(Candidate {
                        server,
                        definition,
                        rule,
                        name,
                        precedence,
                    });
                }
            }
        }
        let mut owners: HashMap<&Arc<str>, &Candidate<'_>> = HashMap::with_capacity(count);
        let mut by_precedence: Vec<_> = all.iter().collect();
        by_precedence.sort_by_key(|candidate| candidate.precedence);
        for candidate in by_precedence {
            let owner = *owners.entry(&candidate.name).or_insert(candidate);
            if !std::ptr::eq(owner, candidate) {
                let (kept, other) = (owner.origin(), candidate.origin());
                report_collision(&mut collisions, &candidate.name, kept, other);
            }
        }
        for candidate in &all {
            let owner = owners.get(&candidate.name);
            if owner.is_some_and(|owner| std::ptr::eq(*owner, candidate)) {
                exposed.add(settings, container, candidate, &mut left_out);
            }
        }
        exposed.problems = [
            collisions.into_lines("collisions of exposed names"),
            left_out.into_lines("left-out tools"),
            names.into_lines("problems with names"),
        ]
        .concat();
        exposed
    }

    /// The tools that are listed, in a stable order.
    pub fn listed(&self) -> impl Iterator<Item = &ExposedTool> {
        self.tools.iter().filter(|tool| tool.is_listed)
    }

    /// The entries of `tools/list` in a stable order, each as JSON text.
    pub fn tools(&self) -> impl Iterator<Item = Cow<'_, str>> {
        self.listed().map(ExposedTool::json)
    }

    /// All tools, including unlisted ones.
    pub fn all(&self) -> &[ExposedTool] {
        &self.tools
    }

    /// The tool with this exposed name, also if it is not listed: the chain decides whether it may
    /// be called.
    pub fn find(&self, name: &str) -> Option<&ExposedTool> {
        self.tools.get(*self.by_name.get(name)?)
    }

    /// Problems with the tools that servers list, for the log.
    pub fn problems(&self) -> &[Problem] {
        &self.problems
    }

    fn add(
        &mut self,
        settings: &McpSettings,
        container: &Container,
        candidate: &Candidate<'_>,
        left_out: &mut Problems,
    ) {
        let (definition, rule) = (candidate.definition, candidate.rule);
        let change = match Change::of(definition, &candidate.name, rule) {
            Ok(change) => change,
            Err(error) => {
                let (server, name) = candidate.origin();
                left_out.report(server, || {
                    format!("{server}: {name:?} is left out: {error}")
                });
                return;
            }
        };
        let rule = rule.map(|rule| &**rule);
        let name = Arc::clone(&candidate.name);
        self.by_name.insert(Arc::clone(&name), self.tools.len());
        self.tools.push(ExposedTool {
            name,
            server: Arc::clone(candidate.server),
            definition: Arc::clone(definition),
            is_listed: !is_blocked(settings, definition)
                && !level::denies(container, Some(&**candidate.server), rule, definition),
            change,
        });
    }
}

impl ExposedTool {
    /// The entry of `tools/list`, as JSON text. It is written for each request: a copy of each
    /// server's list for each container would take memory that is not charged.
    pub fn json(&self) -> Cow<'_, str> {
        self.change.apply(&self.definition, &self.name)
    }
}

/// A tool with a valid exposed name. Another tool may have the same exposed name.
struct Candidate<'a> {
    server: &'a Arc<ServerSettings>,
    definition: &'a Arc<Definition>,
    rule: Option<&'a Arc<OverrideRule>>,
    name: Arc<str>,
    precedence: Precedence,
}

impl Candidate<'_> {
    /// The server, and its own name for the tool.
    fn origin(&self) -> (&Arc<str>, &str) {
        (&self.server.name, &self.definition.name)
    }
}
