//! Walks selections and decides for each field whether it stays in an authorized repository.

use serde_json::{Map, Value as Json};

use super::budget::Budget;
use super::fields::{self, Place};
use super::input::Variables;
use super::named_nodes::NamedNodes;
use super::syntax::{Document, Field, Selection};
use super::{Rules, malformed};
use crate::contract::Denial;
use crate::github::denials;

/// The deepest nesting: each field and each use of a fragment is one level. The limit also ends
/// cycles of fragments.
const MAX_DEPTH: usize = 64;

/// A walk over the selections of one operation.
pub(super) struct Walk<'a> {
    pub(super) document: &'a Document,
    pub(super) variables: Variables<'a>,
    pub(super) rules: &'a Rules<'a>,
    pub(super) budget: &'a mut Budget,
    pub(super) named_nodes: &'a mut NamedNodes,
}

/// Callback for each field, with the field's depth.
type Visit<'v, 'a> = &'v mut dyn FnMut(&mut Walk<'a>, &'a Field, usize) -> Result<(), Denial>;

impl<'a> Walk<'a> {
    /// Judges the root fields of a query.
    pub(super) fn query(&mut self, selections: &'a [Selection]) -> Result<(), Denial> {
        self.each_field(selections, 0, &mut |walk, field, depth| {
            walk.root_field(field, depth)
        })
    }

    /// Judges the root fields of a mutation. The result of each root field is judged as an object
    /// of an authorized repository.
    pub(super) fn mutation(&mut self, selections: &'a [Selection]) -> Result<(), Denial> {
        self.each_field(selections, 0, &mut |walk, field, depth| {
            if field.name == "__typename" {
                return Ok(());
            }
            let rules = walk.rules;
            rules.mutations.permit(&field.name, rules.container)?;
            let input = walk.arguments(field)?;
            walk.named_nodes.add_input(&field.name, &input, rules)?;
            walk.nested_fields(&field.selections, Place::Inside, depth + 1)
        })
    }

    /// Visits fields, with fragments expanded.
    fn each_field(
        &mut self,
        selections: &'a [Selection],
        depth: usize,
        visit: Visit<'_, 'a>,
    ) -> Result<(), Denial> {
        if depth > MAX_DEPTH {
            let why = "fragments form a cycle, or fields are nested too deeply";
            return Err(malformed(why));
        }
        for selection in selections {
            self.budget.spend_step()?;
            match selection {
                Selection::Field(field) => visit(self, field, depth)?,
                Selection::Inline(selections) => self.each_field(selections, depth + 1, visit)?,
                Selection::Spread(name) => {
                    let document = self.document;
                    let fragment = document.fragments.get(name);
                    let fragment = fragment
                        .ok_or_else(|| malformed(format_args!("there is no fragment {name}")))?;
                    self.each_field(fragment, depth + 1, visit)?;
                }
            }
        }
        Ok(())
    }

    fn root_field(&mut self, field: &'a Field, depth: usize) -> Result<(), Denial> {
        let place = match field.name.as_str() {
            "__typename" => return Ok(()),
            "repository" => {
                self.repository(field)?;
                Place::Inside
            }
            "node" => {
                self.nodes(field, "id")?;
                Place::Inside
            }
            "nodes" => {
                self.nodes(field, "ids")?;
                Place::Inside
            }
            "viewer" | "rateLimit" => Place::Outside,
            "__schema" | "__type" => Place::Schema,
            name => {
                return Err(denials::leads_out(
                    name,
                    "it is not among the root fields that a query may have: repository, node, nodes, viewer, rateLimit",
                ));
            }
        };
        self.nested_fields(&field.selections, place, depth + 1)
    }

    fn nested_fields(
        &mut self,
        selections: &'a [Selection],
        place: Place,
        depth: usize,
    ) -> Result<(), Denial> {
        self.each_field(selections, depth, &mut |walk, field, depth| {
            if field.selections.is_empty() {
                return Ok(());
            }
            let has_arguments = !field.arguments.is_empty();
            let next = fields::place_of(place, &field.name, has_arguments).ok_or_else(|| {
                let why = "it leads out of the repository, where a query may read only fields without a selection, and names such as an owner's login";
                denials::leads_out(&field.name, why)
            })?;
            walk.nested_fields(&field.selections, next, depth + 1)
        })
    }

    fn arguments(&mut self, field: &Field) -> Result<Map<String, Json>, Denial> {
        let mut filled = Map::new();
        for (name, value) in &field.arguments {
            filled.insert(name.clone(), self.variables.fill(value, self.budget)?);
        }
        Ok(filled)
    }

    fn repository(&mut self, field: &Field) -> Result<(), Denial> {
        let arguments = self.arguments(field)?;
        let text = |name: &str| arguments.get(name).and_then(Json::as_str);
        let (Some(owner), Some(name)) = (text("owner"), text("name")) else {
            let why = "repository takes an owner and a name, each a string";
            return Err(malformed(why));
        };
        let repo = format!("{owner}/{name}");
        denials::permit_repo(&repo, self.rules.container)
    }

    fn nodes(&mut self, field: &Field, argument: &str) -> Result<(), Denial> {
        let arguments = self.arguments(field)?;
        let ids = arguments.get(argument).unwrap_or(&Json::Null);
        self.named_nodes.add_nodes(ids)
    }
}
