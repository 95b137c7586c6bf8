//! What a container sees of its servers' tools and prompts.

use std::collections::HashMap;
use std::fmt;
use std::sync::Arc;

use serde_json::value::RawValue;

use super::level;
use super::overrides::{declares, input_schema};
use super::schema::{HiddenField, without_fields};
use super::settings::{McpSettings, OnChange, OverrideRule, ServerSettings};
use crate::contract::{Container, Definition, Pin};
use crate::raw_json::{Members, Node, ObjectText, RawJsonError, sha256_hex};

/// The longest exposed name, in bytes: what models' APIs take. A longer one is cut.
pub const MAX_EXPOSED_NAME: usize = 64;

/// Hexadecimal digits of the full name's hash at the end of a cut name.
const HASH_DIGITS: usize = 8;

/// The longest definition that is rewritten, in bytes.
const MAX_REWRITTEN: usize = 256 * 1024;

/// Problems that are kept of one view; a server that lists nonsense is told of often enough.
const MAX_PROBLEMS: usize = 100;

/// The tools of a container, by the names that it sees. Made of what servers listed and what the
/// operator says, for one security level: another level needs another view.
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
    /// The server that has it.
    pub server: Arc<ServerSettings>,
    /// As the server lists it.
    pub definition: Arc<Definition>,
    /// Why it is not listed. A call is denied for the same reason.
    pub hidden: Option<Hidden>,
    /// The entry of `tools/list`, where it differs from the definition.
    rewritten: Option<String>,
}

/// Why a tool is left out of the list.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Hidden {
    /// It reaches the open world, and the container has seen confidential things.
    Level,
    /// Its definition changed, and an operator has not accepted it.
    Changed,
}

/// What is wrong with what servers list.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Problem {
    /// An exposed name was too long.
    Cut {
        /// The server.
        server: Arc<str>,
        /// Its own name for the tool or prompt.
        name: Arc<str>,
        /// The name that the container sees.
        exposed: Arc<str>,
    },
    /// Two of them would have one exposed name: the second is left out.
    Collision {
        /// The name that the container sees.
        exposed: Arc<str>,
        /// The server and own name of the one that has it.
        kept: (Arc<str>, Arc<str>),
        /// The server and own name of the one that is left out.
        left_out: (Arc<str>, Arc<str>),
    },
    /// A name has characters that could make it look like another: it is left out.
    Name {
        /// The server.
        server: Arc<str>,
        /// Its own name for the tool or prompt.
        name: Arc<str>,
    },
    /// A definition that the operator changes cannot be rewritten: it is left out.
    Definition {
        /// The server.
        server: Arc<str>,
        /// Its own name for the tool.
        name: Arc<str>,
        /// Why.
        reason: String,
    },
}

impl fmt::Display for Problem {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Cut {
                server,
                name,
                exposed,
            } => write!(
                f,
                "{server}: {name:?} is exposed as {exposed}, for the whole name has more than {MAX_EXPOSED_NAME} characters"
            ),
            Self::Collision {
                exposed,
                kept,
                left_out,
            } => write!(
                f,
                "{exposed:?} would name {:?} of {} and {:?} of {}: the latter is left out; rename one under overrides in mcp.yaml",
                kept.1, kept.0, left_out.1, left_out.0
            ),
            Self::Name { server, name } => write!(
                f,
                "{server}: {:?} is left out: a name has visible ASCII characters only",
                name.escape_default().to_string()
            ),
            Self::Definition {
                server,
                name,
                reason,
            } => write!(f, "{server}: {name:?} is left out: {reason}"),
        }
    }
}

/// A server with what it lists.
pub type Listing = (Arc<ServerSettings>, Arc<[Arc<Definition>]>);

impl Exposed {
    /// The view of a container. The order of `listings` is the order of the list, and decides which
    /// of two tools keeps a name; names that the operator gave go first.
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

    /// All tools, those included that are not listed.
    pub fn all(&self) -> &[ExposedTool] {
        &self.tools
    }

    /// The tool that a container calls by this name, also where it is not listed: whether it may
    /// be called is decided by the chain.
    pub fn find(&self, name: &str) -> Option<&ExposedTool> {
        self.tools.get(*self.by_name.get(name)?)
    }

    /// The tool by the server's own name for it.
    pub fn original(&self, server: &Arc<str>, name: &Arc<str>) -> Option<&ExposedTool> {
        let origin = (Arc::clone(server), Arc::clone(name));
        self.tools.get(*self.by_origin.get(&origin)?)
    }

    /// What is wrong with what servers list, for the log.
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

    /// The exposed name; `None` where the server's own name may not be shown.
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

/// Whether a tool waits for an operator who accepts its definition.
pub(super) fn is_blocked(settings: &McpSettings, definition: &Definition) -> bool {
    definition.pin == Pin::Changed && settings.on_definition_change == OnChange::Deny
}

/// Server and own name.
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

/// A server's own name with its prefix.
#[derive(Debug, PartialEq, Eq)]
enum Named {
    /// As it stands.
    Whole(Arc<str>),
    /// Too long.
    Cut(Arc<str>),
    /// It has characters that are not visible ASCII: it could look like another name.
    Refused,
}

fn exposed_name(server: &ServerSettings, name: &str) -> Named {
    if name.is_empty() || !name.bytes().all(|byte| byte.is_ascii_graphic()) {
        return Named::Refused;
    }
    let whole = format!("{}{name}", server.prefix);
    if whole.len() <= MAX_EXPOSED_NAME {
        return Named::Whole(whole.into());
    }
    let hash = sha256_hex(&whole);
    let kept = MAX_EXPOSED_NAME - HASH_DIGITS - 1;
    let kept = whole.get(..kept).unwrap_or_default();
    let hash = hash.get(..HASH_DIGITS).unwrap_or_default();
    Named::Cut(format!("{kept}_{hash}").into())
}

/// The definition under another name and as the operator changes it; `None` where it stays as it
/// is.
fn rewrite(
    definition: &Definition,
    name: &str,
    rule: Option<&Arc<OverrideRule>>,
) -> Result<Option<String>, RewriteError> {
    if rule.is_none() && *name == *definition.name {
        return Ok(None);
    }
    let members = Members::read(&definition.raw).map_err(RewriteError::Json)?;
    let mut changes: Vec<(&str, String)> = vec![("name", Node::string(name).to_json())];
    if let Some(rule) = rule {
        if definition.raw.get().len() > MAX_REWRITTEN {
            return Err(RewriteError::TooLarge);
        }
        if let Some(description) = &rule.description {
            changes.push(("description", Node::string(description).to_json()));
        }
        if let Some(schema) = input_schema(&members).filter(|_| !rule.leaves_arguments()) {
            let schema = expose_schema(schema, rule).map_err(RewriteError::Json)?;
            changes.push(("inputSchema", schema));
        }
        let annotations = members.get("annotations");
        if let Some(annotations) = expose_annotations(annotations, definition, rule) {
            changes.push(("annotations", annotations));
        }
    }
    let mut object = ObjectText::default();
    for (key, value) in members.iter() {
        let at = changes.iter().position(|(changed, _)| *changed == key);
        match at.map(|at| changes.swap_remove(at)) {
            Some((_, changed)) => object.member(key, &changed),
            None => object.member(key, value),
        }
    }
    for (key, added) in changes {
        object.member(key, &added);
    }
    Ok(Some(object.end()))
}

#[derive(Debug, thiserror::Error)]
enum RewriteError {
    #[error("{0}")]
    Json(RawJsonError),
    #[error("its definition has more than {MAX_REWRITTEN} bytes")]
    TooLarge,
}

fn expose_schema(schema: &str, rule: &OverrideRule) -> Result<String, RawJsonError> {
    let paths: Vec<_> = rule
        .hidden_fields()
        .flat_map(|(field, has_default)| {
            let is_path = field.contains('.') && !declares(Some(schema), field);
            let path: Vec<&str> = match is_path {
                true => field.split('.').collect(),
                false => vec![field],
            };
            [(path, has_default)]
        })
        .collect();
    let fields: Vec<_> = paths
        .iter()
        .map(|(path, has_default)| HiddenField {
            path,
            has_default: *has_default,
        })
        .collect();
    let schema = Node::parse(schema)?;
    Ok(without_fields(schema, &fields).to_json())
}

/// The hints with the operator's word; `None` where the operator says nothing about them.
fn expose_annotations(
    annotations: Option<&str>,
    definition: &Definition,
    rule: &OverrideRule,
) -> Option<String> {
    if rule.annotations.is_empty() && rule.open_world.is_none() {
        return None;
    }
    let mut members: Vec<(String, String)> = Vec::new();
    let own = annotations.and_then(|json| Node::parse(json).ok());
    for (key, value) in own.as_ref().map_or(&[][..], Node::members) {
        members.push((key.to_string(), value.to_json()));
    }
    let mut put =
        |key: &str, value: String| match members.iter_mut().find(|(other, _)| other == key) {
            Some((_, old)) => *old = value,
            None => members.push((key.to_owned(), value)),
        };
    for (key, value) in &rule.annotations {
        put(key, value.to_string());
    }
    let hints = rule.annotations(definition.annotations);
    for (key, hint) in [
        ("readOnlyHint", hints.read_only),
        ("destructiveHint", hints.destructive),
        ("idempotentHint", hints.idempotent),
        ("openWorldHint", hints.open_world),
    ] {
        if let Some(hint) = hint {
            put(key, hint.to_string());
        }
    }
    let mut object = ObjectText::default();
    for (key, value) in &members {
        object.member(key, value);
    }
    Some(object.end())
}

/// The prompts of a container, by the names that it sees.
#[derive(Debug, Default)]
pub struct ExposedPrompts {
    prompts: Vec<ExposedPrompt>,
    by_name: HashMap<Arc<str>, usize>,
    problems: Vec<Problem>,
}

/// One prompt under its exposed name.
#[derive(Debug)]
pub struct ExposedPrompt {
    /// The name that the container sees.
    pub name: Arc<str>,
    /// The server that has it.
    pub server: Arc<ServerSettings>,
    /// The server's own name.
    pub original: Arc<str>,
    /// The entry of `prompts/list`, as JSON text.
    pub json: String,
}

impl ExposedPrompts {
    /// The view of a container. An entry without a name is left out.
    #[must_use]
    pub fn of<'l, L>(listings: L) -> Self
    where
        L: IntoIterator<Item = (&'l Arc<ServerSettings>, &'l [Box<RawValue>])>,
    {
        let mut exposed = Self::default();
        for (server, prompts) in listings {
            for raw in prompts {
                exposed.add(server, raw);
            }
        }
        exposed.problems.truncate(MAX_PROBLEMS);
        exposed
    }

    /// The entries of `prompts/list` in a stable order, each as JSON text.
    pub fn prompts(&self) -> impl Iterator<Item = &str> {
        self.prompts.iter().map(|prompt| &*prompt.json)
    }

    /// The prompt that a container asks for by this name.
    pub fn find(&self, name: &str) -> Option<&ExposedPrompt> {
        self.prompts.get(*self.by_name.get(name)?)
    }

    /// What is wrong with what servers list, for the log.
    pub fn problems(&self) -> &[Problem] {
        &self.problems
    }

    fn add(&mut self, server: &Arc<ServerSettings>, raw: &RawValue) {
        let Ok(members) = Members::read(raw) else {
            return;
        };
        let Some(original) = members.text("name").map(Arc::<str>::from) else {
            return;
        };
        let name = match exposed_name(server, &original) {
            Named::Whole(name) => name,
            Named::Cut(exposed) => {
                self.problems.push(Problem::Cut {
                    server: Arc::clone(&server.name),
                    name: Arc::clone(&original),
                    exposed: Arc::clone(&exposed),
                });
                exposed
            }
            Named::Refused => {
                self.problems.push(Problem::Name {
                    server: Arc::clone(&server.name),
                    name: original,
                });
                return;
            }
        };
        if let Some(owner) = self.find(&name) {
            let kept = (Arc::clone(&owner.server.name), Arc::clone(&owner.original));
            self.problems.push(Problem::Collision {
                exposed: name,
                kept,
                left_out: (Arc::clone(&server.name), original),
            });
            return;
        }
        self.by_name.insert(Arc::clone(&name), self.prompts.len());
        self.prompts.push(ExposedPrompt {
            json: members.with("name", &Node::string(&name).to_json()),
            server: Arc::clone(server),
            name,
            original,
        });
    }
}
