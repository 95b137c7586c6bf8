//! Tools and prompts under their exposed names, as a container sees them.

mod names;
mod prompts;
mod rewrite;

use std::collections::HashMap;
use std::sync::Arc;

use super::level;
use super::settings::{McpSettings, OnChange, OverrideRule, ServerSettings};
use crate::contract::{Container, Definition, Pin};

pub use names::Problem;
pub use prompts::{ExposedPrompt, ExposedPrompts};

use names::{Named, exposed_name};
use rewrite::rewrite;

/// The most problems of one view that are reported; a server's list can have thousands.
const MAX_PROBLEMS: usize = 100;

/// The tools of a container by their exposed names, built from the servers' lists and the overrides
/// for one security level.
#[derive(Debug, Default)]
pub struct Exposed {
    tools: Vec<ExposedTool>,
    by_name: HashMap<Arc<str>, usize>,
    by_origin: HashMap<(Arc<str>, Arc<str>), usize>,
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
    /// Why the tool is not listed; `None` if it is. Calls of an unlisted tool are denied, too.
    pub hidden: Option<Hidden>,
    /// The entry of `tools/list`, if it differs from the definition.
    rewritten: Option<String>,
}

/// Why a tool is left out of the list.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Hidden {
    /// The tool reaches the open world, and the container's security level is raised.
    Level,
    /// The tool's definition changed, and no operator has accepted it yet.
    Changed,
}

/// A server with its tools.
pub type Listing = (Arc<ServerSettings>, Arc<[Arc<Definition>]>);

impl Exposed {
    /// Builds the view of a container, in the order of `listings`. If two tools have the same
    /// exposed name, one that the operator renamed takes precedence, then the first in order.
    #[must_use]
    pub fn of(settings: &McpSettings, container: &Container, listings: &[Listing]) -> Self {
        let count = listings.iter().map(|(_, tools)| tools.len()).sum();
        let mut all = Vec::with_capacity(count);
        let mut exposed = Self {
            by_name: HashMap::with_capacity(count),
            by_origin: HashMap::with_capacity(count),
            ..Self::default()
        };
        for (server, tools) in listings {
            for definition in tools.iter() {
                let rule = settings.override_of(&server.name, &definition.name, &container.id);
                all.push(Candidate {
                    server,
                    definition,
                    rule,
                    name: exposed.name_of(server, &definition.name, rule),
                });
            }
        }
        let is_renamed = |one: &&Candidate<'_>| one.rule.is_some_and(|rule| rule.rename.is_some());
        let mut owners: HashMap<Arc<str>, &Candidate<'_>> = HashMap::with_capacity(count);
        let others = all.iter().filter(|one| !is_renamed(one));
        for candidate in all.iter().filter(is_renamed).chain(others) {
            let Some(name) = &candidate.name else {
                continue;
            };
            if let Some(owner) = owners.get(name) {
                exposed.collision(name, owner.origin(), candidate.origin());
            } else {
                owners.insert(Arc::clone(name), candidate);
            }
        }
        for candidate in &all {
            let name = candidate.name.as_ref();
            let owns = |name: &Arc<str>| {
                owners
                    .get(name)
                    .is_some_and(|owner| std::ptr::eq(*owner, candidate))
            };
            if let Some(name) = name.filter(|name| owns(name)) {
                exposed.add(settings, container, candidate, name);
            }
        }
        exposed
    }

    /// The entries of `tools/list` in a stable order, each as JSON text.
    pub fn tools(&self) -> impl Iterator<Item = &str> {
        let listed = self.tools.iter().filter(|tool| tool.hidden.is_none());
        listed.map(ExposedTool::json)
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

    /// The tool with this name at this server.
    pub fn original(&self, server: &Arc<str>, name: &Arc<str>) -> Option<&ExposedTool> {
        let origin = (Arc::clone(server), Arc::clone(name));
        self.tools.get(*self.by_origin.get(&origin)?)
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
        name: &Arc<str>,
    ) {
        let (server, definition) = (candidate.server, candidate.definition);
        let rewritten = match rewrite(definition, name, candidate.rule) {
            Ok(rewritten) => rewritten,
            Err(error) => {
                let (server, name) = candidate.origin();
                let reason = error.to_string();
                self.problem(Problem::Definition {
                    server,
                    name,
                    reason,
                });
                return;
            }
        };
        let rule = candidate.rule.map(|rule| &**rule);
        let hidden = if is_blocked(settings, definition) {
            Some(Hidden::Changed)
        } else if level::denies(container, rule, definition) {
            Some(Hidden::Level)
        } else {
            None
        };
        let at = self.tools.len();
        self.by_name.insert(Arc::clone(name), at);
        self.by_origin.insert(candidate.origin(), at);
        self.tools.push(ExposedTool {
            name: Arc::clone(name),
            server: Arc::clone(server),
            definition: Arc::clone(definition),
            hidden,
            rewritten,
        });
    }

    /// Returns the exposed name; `None` if the server's own name has characters other than visible
    /// ASCII. Reports a cut or refused name as a problem.
    fn name_of(
        &mut self,
        server: &ServerSettings,
        name: &Arc<str>,
        rule: Option<&Arc<OverrideRule>>,
    ) -> Option<Arc<str>> {
        if let Some(rename) = rule.and_then(|rule| rule.rename.as_ref()) {
            return Some(Arc::clone(rename));
        }
        let named = exposed_name(server, name);
        let problem = match &named {
            Named::Whole(name) => return Some(Arc::clone(name)),
            Named::Cut(exposed) => Problem::Cut {
                server: Arc::clone(&server.name),
                name: Arc::clone(name),
                exposed: Arc::clone(exposed),
            },
            Named::Refused => Problem::Name {
                server: Arc::clone(&server.name),
                name: Arc::clone(name),
            },
        };
        self.problem(problem);
        match named {
            Named::Cut(exposed) => Some(exposed),
            Named::Whole(_) | Named::Refused => None,
        }
    }

    fn collision(&mut self, exposed: &Arc<str>, kept: Origin, left_out: Origin) {
        self.problem(Problem::Collision {
            exposed: Arc::clone(exposed),
            kept,
            left_out,
        });
    }

    fn problem(&mut self, problem: Problem) {
        if self.problems.len() < MAX_PROBLEMS {
            self.problems.push(problem);
        }
    }
}

impl ExposedTool {
    /// The entry of `tools/list`, as JSON text.
    pub fn json(&self) -> &str {
        let rewritten = self.rewritten.as_deref();
        rewritten.unwrap_or_else(|| self.definition.raw.get())
    }
}

/// Whether a tool is blocked until an operator accepts its definition.
pub(super) fn is_blocked(settings: &McpSettings, definition: &Definition) -> bool {
    definition.pin == Pin::Changed && settings.on_definition_change == OnChange::Deny
}

/// The server of a tool, and the tool's name at that server.
type Origin = (Arc<str>, Arc<str>);

struct Candidate<'a> {
    server: &'a Arc<ServerSettings>,
    definition: &'a Arc<Definition>,
    rule: Option<&'a Arc<OverrideRule>>,
    name: Option<Arc<str>>,
}

impl Candidate<'_> {
    fn origin(&self) -> Origin {
        (
            Arc::clone(&self.server.name),
            Arc::clone(&self.definition.name),
        )
    }
}
