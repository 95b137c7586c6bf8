//! The nodes that a body names by id, and the checks of what the forge returns for these ids.

use std::collections::{BTreeMap, BTreeSet};

use serde_json::{Map, Value};

use super::{Rules, malformed, objection};
use crate::contract::{Container, Denial, Verdict};
use crate::github::content::{self, Objection, ObjectionAt, objection_at};
use crate::github::denials;
use crate::github::forge::Node;
use crate::github::mentions::Mentions;

/// Keys with ids of people, who belong to no repository.
const PEOPLE: [&str; 4] = ["actorIds", "assigneeIds", "botIds", "userIds"];

/// Keys with ids that are not looked up: teams belong to the repository's organization, and
/// `clientMutationId` names no node.
const NOT_LOOKED_UP: [&str; 2] = ["clientMutationId", "teamIds"];

/// Limit on the nodes that one body may name by id. GitHub resolves at most 100 ids in one query.
const MAX_NODES: usize = 100;

/// The node ids of a body.
#[derive(Debug, Default)]
pub(in crate::github) struct NamedNodes {
    /// Nodes that must belong to an authorized repository.
    nodes: BTreeSet<String>,
    /// The labels that a mutation adds or removes; these ids are in `nodes` too.
    labels: BTreeSet<String>,
    /// Assignees and requested reviewers, who must not be agents.
    people: BTreeSet<String>,
    /// Branches written as `OWNER:BRANCH`. `OWNER` must own the repository of the node.
    branches: Vec<Branch>,
    /// Pairs of nodes that must be the same repository.
    same: Vec<(String, String)>,
}

#[derive(Debug)]
struct Branch {
    key: String,
    name: String,
    node: String,
}

impl NamedNodes {
    /// Adds one id or a list of them; null adds none. Denies an id that is not a string, and more
    /// than [`MAX_NODES`] ids in all.
    pub(super) fn add_nodes(&mut self, ids: &Value) -> Result<(), Denial> {
        self.nodes.extend(ids_of(ids)?);
        self.bounded()
    }

    fn bounded(&self) -> Result<(), Denial> {
        if self.nodes.len() + self.people.len() > MAX_NODES {
            return Err(malformed(format_args!(
                "more than {MAX_NODES} nodes are named by id"
            )));
        }
        Ok(())
    }

    /// Judges the fields and the text in a mutation's arguments, and adds the nodes that the
    /// arguments name.
    pub(super) fn add_input(
        &mut self,
        mutation: &str,
        arguments: &Map<String, Value>,
        rules: &Rules<'_>,
    ) -> Result<(), Denial> {
        let what = format!("mutation {mutation}");
        let denied = |objected| Err(denials::body(&what, &objected, rules.container));
        if let Some(objected) = objection::objection(mutation, arguments, rules.mentions) {
            return denied(objected);
        }
        for input in arguments.values().filter_map(Value::as_object) {
            if let Some(objected) = self.add_branches(input) {
                return denied(objected);
            }
        }
        // Removing an assignee or a reviewer starts no agent.
        let looks_up_people = !rules.mentions.is_empty() && !mutation.starts_with("remove");
        self.add_members(arguments, looks_up_people)
    }

    /// Adds the branches and repositories of a pull request. Objects to a branch with an owner, or
    /// a head repository, if the input names no node to compare it with.
    fn add_branches(&mut self, input: &Map<String, Value>) -> Option<ObjectionAt> {
        let text = |key: &str| input.get(key).and_then(Value::as_str).map(str::to_owned);
        let repository = text("repositoryId");
        let of = repository.clone().or_else(|| text("pullRequestId"));
        for key in ["headRefName", "baseRefName"] {
            let Some(name) = text(key).filter(|name| name.contains(':')) else {
                continue;
            };
            let Some(node) = of.clone() else {
                return Some(foreign(key));
            };
            let key = key.to_owned();
            self.branches.push(Branch { key, name, node });
        }
        if let Some(head) = text("headRepositoryId") {
            let Some(repository) = repository else {
                return Some(foreign("headRepositoryId"));
            };
            self.same.push((repository, head));
        }
        None
    }

    /// Adds the ids in an input. The recursion is bounded by the depth limits of the parsers.
    fn add_members(
        &mut self,
        members: &Map<String, Value>,
        looks_up_people: bool,
    ) -> Result<(), Denial> {
        for (key, value) in members {
            if PEOPLE.contains(&key.as_str()) {
                if looks_up_people {
                    self.people.extend(ids_of(value)?);
                    self.bounded()?;
                }
            } else if is_id(key) {
                self.add_nodes(value)?;
            }
            if key == "labelIds" {
                self.labels.extend(ids_of(value)?);
            }
            self.add_value(value, looks_up_people)?;
        }
        Ok(())
    }

    fn add_value(&mut self, value: &Value, looks_up_people: bool) -> Result<(), Denial> {
        match value {
            Value::Object(members) => self.add_members(members, looks_up_people),
            Value::Array(items) => items
                .iter()
                .try_for_each(|item| self.add_value(item, looks_up_people)),
            _ => Ok(()),
        }
    }

    /// The ids to look up at the forge.
    pub(in crate::github) fn ids(&self) -> Vec<String> {
        self.nodes.union(&self.people).cloned().collect()
    }

    /// Judges what the forge returned for [`NamedNodes::ids`], in the same order. Denies unknown
    /// nodes, nodes and branches of other repositories, labels on which bots act, and agents.
    pub(in crate::github) fn judge(
        &self,
        nodes: Vec<Option<Node>>,
        mentions: &Mentions,
        container: &Container,
    ) -> Verdict {
        let ids = self.ids().into_iter();
        let known = ids.zip(nodes).filter_map(|(id, node)| Some((id, node?)));
        let known: BTreeMap<String, Node> = known.collect();
        for id in &self.nodes {
            self.judge_node(id, known.get(id), mentions, container)?;
        }
        for id in &self.people {
            judge_person(id, known.get(id), mentions, container)?;
        }
        let repo = |id: &String| known.get(id)?.repo.as_deref();
        for Branch { key, name, node } in &self.branches {
            let owner = repo(node).and_then(|repo| repo.split('/').next());
            if owner.is_none_or(|owner| content::branch(name, owner).is_some()) {
                return Err(denials::body("a pull request", &foreign(key), container));
            }
        }
        let differ = |(one, other): &(String, String)| match (repo(one), repo(other)) {
            (Some(one), Some(other)) => !one.eq_ignore_ascii_case(other),
            _ => true,
        };
        if self.same.iter().any(differ) {
            let objected = foreign("headRepositoryId");
            return Err(denials::body("a pull request", &objected, container));
        }
        Ok(())
    }

    fn judge_node(
        &self,
        id: &str,
        node: Option<&Node>,
        mentions: &Mentions,
        container: &Container,
    ) -> Verdict {
        let is_listed = |node: &&Node| {
            let repo = node.repo.as_deref();
            repo.is_some_and(|repo| denials::permit_repo(repo, container).is_ok())
        };
        let Some(node) = node.filter(is_listed) else {
            let why = "this node is in none of the listed repositories";
            return Err(denials::no_repo(why).with("node", id));
        };
        let label = node.label.as_deref().filter(|_| self.labels.contains(id));
        match label.and_then(|label| content::label(label, mentions)) {
            None => Ok(()),
            Some(objection) => Err(node_denied("a label", objection, id, container)),
        }
    }
}

fn judge_person(
    id: &str,
    node: Option<&Node>,
    mentions: &Mentions,
    container: &Container,
) -> Verdict {
    let Some(login) = node.and_then(|node| node.login.as_deref()) else {
        let why = "the forge returned no login for this node";
        return Err(denials::no_repo(why).with("node", id));
    };
    match content::login(login, mentions) {
        None => Ok(()),
        Some(objection) => Err(node_denied("an assignment", objection, id, container)),
    }
}

fn node_denied(what: &str, objection: Objection, id: &str, container: &Container) -> Denial {
    denials::body(what, &objection_at("", objection), container).with("node", id)
}

fn foreign(key: &str) -> ObjectionAt {
    objection_at(key, Objection::ForeignBranch)
}

/// Reads a list of ids, or a single id, which GraphQL coerces to a list; null is an empty list.
fn ids_of(value: &Value) -> Result<Vec<String>, Denial> {
    let items = match value {
        Value::Null => return Ok(Vec::new()),
        Value::Array(items) => items.as_slice(),
        one => std::slice::from_ref(one),
    };
    let ids = items.iter().map(|id| id.as_str().map(str::to_owned));
    ids.collect::<Option<_>>()
        .ok_or_else(|| malformed("a node id must be a string"))
}

fn is_id(key: &str) -> bool {
    let named = key == "id" || key == "ids" || key.ends_with("Id") || key.ends_with("Ids");
    (named || key == "inReplyTo") && !NOT_LOOKED_UP.contains(&key)
}
