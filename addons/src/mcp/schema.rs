//! Removes fields from a JSON Schema, so that a model sees no field that it cannot set.
//!
//! This changes only the schema that the model sees; `overrides` removes the fields from the
//! arguments. A keyword that cannot be expressed without a hidden field (`not`, `if`) is removed:
//! the server validates the arguments anyway.

use std::borrow::Cow;
use std::collections::HashSet;

use crate::json::{Node, same_name};

/// A field to remove.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct HiddenField<'f> {
    /// The field's path: the names of the properties from the root to the field. An array adds no
    /// name to the path.
    pub(super) path: &'f [&'f str],
    /// Whether the proxy adds a value for the field to each call.
    pub(super) has_default: bool,
}

/// Limit on the copies of definitions. A reference that needs a further copy stays unchanged, so
/// the model sees the hidden field there.
const MAX_COPIES: usize = 64;

/// The keywords that hold definitions.
const DEFINITIONS: [&str; 2] = ["$defs", "definitions"];

/// Removes fields from a schema. Copies a definition before changing it, since other parts of the
/// schema may refer to it, too.
pub(super) fn without_fields<'s>(schema: Node<'s>, fields: &[HiddenField<'_>]) -> Node<'s> {
    // A field that the schema does not mention must not cause copies of definitions.
    let is_mentioned = |field: &&HiddenField<'_>| {
        field
            .path
            .last()
            .is_some_and(|name| mentions(&schema, name))
    };
    let fields: Vec<_> = fields.iter().filter(is_mentioned).copied().collect();
    let mut editor = Editor {
        root: &schema,
        copies: Vec::new(),
    };
    let mut edited = editor.edit(&schema, &fields);
    let mut added = Vec::new();
    // Editing a copy can add further copies.
    while let Some(copy) = editor.copies.get(added.len()).cloned() {
        let original = definition(&schema, copy.keyword, &copy.original);
        let node = original.map(|node| editor.edit(node, &copy.fields));
        added.push(node.unwrap_or(Node::Object(Vec::new())));
    }
    for (copy, node) in editor.copies.iter().zip(added) {
        if let Node::Object(members) = &mut edited
            && let Some((_, Node::Object(all))) =
                members.iter_mut().find(|(key, _)| key == copy.keyword)
        {
            all.push((copy.name.clone().into(), node));
        }
    }
    editor.drop_unused(&mut edited);
    edited
}

/// A copy of a definition without some fields.
#[derive(Clone)]
struct DefinitionCopy<'f> {
    keyword: &'static str,
    original: String,
    name: String,
    fields: Vec<HiddenField<'f>>,
}

struct Editor<'r, 'n, 'f> {
    /// The whole schema, with the definitions.
    root: &'r Node<'n>,
    /// The copies, in the order in which references to them were found. [`without_fields`] edits
    /// their contents in a loop, so that a long chain of references causes no recursion.
    copies: Vec<DefinitionCopy<'f>>,
}

impl<'f> Editor<'_, '_, 'f> {
    fn edit<'s>(&mut self, schema: &Node<'s>, fields: &[HiddenField<'f>]) -> Node<'s> {
        let Node::Object(members) = schema else {
            return schema.clone();
        };
        if fields.is_empty() {
            return schema.clone();
        }
        let drops_condition = schema
            .get("if")
            .is_some_and(|condition| self.changes(condition, fields));
        let mut edited = Vec::with_capacity(members.len());
        for (key, value) in members {
            if drops_condition && matches!(&**key, "if" | "then" | "else") {
                continue;
            }
            if let Some(member) = self.edit_member(key, value, schema, fields) {
                edited.push(member);
            }
        }
        Node::Object(edited)
    }

    /// Edits one keyword; `None` if it is removed.
    fn edit_member<'s>(
        &mut self,
        key: &Cow<'s, str>,
        value: &Node<'s>,
        schema: &Node<'s>,
        fields: &[HiddenField<'f>],
    ) -> Option<(Cow<'s, str>, Node<'s>)> {
        let kept = |node| Some((key.clone(), node));
        match &**key {
            "properties" => kept(self.edit_properties(value, fields)),
            "required" => kept(without_names(value, fields)),
            "allOf" | "prefixItems" => kept(self.edit_each(value, fields)),
            "items" if matches!(value, Node::Array(_)) => kept(self.edit_each(value, fields)),
            "then" | "else" | "items" | "contains" => kept(self.edit(value, fields)),
            "not" => (!self.changes(value, fields)).then(|| (key.clone(), value.clone())),
            "anyOf" => kept(self.edit_branches(value, fields)?),
            "oneOf" => self.edit_one_of(value, schema, fields),
            "dependentRequired" | "dependentSchemas" | "dependencies" => {
                kept(self.edit_dependencies(value, fields))
            }
            "$ref" => kept(self.refer_to_copy(value, fields)),
            "default" | "examples" => {
                let mut value = value.clone();
                for field in fields {
                    remove(&mut value, field.path);
                }
                kept(value)
            }
            _ => kept(value.clone()),
        }
    }

    /// Whether editing would change a schema.
    fn changes(&self, schema: &Node<'_>, fields: &[HiddenField<'f>]) -> bool {
        let mut trial = Editor {
            root: self.root,
            copies: Vec::new(),
        };
        trial.edit(schema, fields) != *schema
    }

    fn edit_each<'s>(&mut self, schemas: &Node<'s>, fields: &[HiddenField<'f>]) -> Node<'s> {
        match schemas {
            Node::Array(schemas) => {
                Node::Array(schemas.iter().map(|one| self.edit(one, fields)).collect())
            }
            other => other.clone(),
        }
    }

    fn edit_properties<'s>(
        &mut self,
        properties: &Node<'s>,
        fields: &[HiddenField<'f>],
    ) -> Node<'s> {
        let Node::Object(properties) = properties else {
            return properties.clone();
        };
        let mut edited = Vec::new();
        for (name, schema) in properties {
            if !is_hidden(name, fields) {
                let below: Vec<_> = fields
                    .iter()
                    .filter_map(|field| field.below(name))
                    .collect();
                edited.push((name.clone(), self.edit(schema, &below)));
            }
        }
        Node::Object(edited)
    }

    /// Removes the branches that require a hidden field without a default, since no caller can
    /// satisfy them. Edits the other branches. `None` if no branch is left.
    fn edit_branches<'s>(
        &mut self,
        branches: &Node<'s>,
        fields: &[HiddenField<'f>],
    ) -> Option<Node<'s>> {
        let Node::Array(branches) = branches else {
            return Some(branches.clone());
        };
        let without_default: Vec<_> = fields
            .iter()
            .filter(|field| !field.has_default)
            .copied()
            .collect();
        let possible = |branch: &&Node<'_>| {
            let required = branch.get("required").map_or(&[][..], Node::elements);
            !required
                .iter()
                .filter_map(Node::as_text)
                .any(|name| is_hidden(&name, &without_default))
        };
        let branches = branches.iter().filter(possible);
        let edited: Vec<_> = branches.map(|branch| self.edit(branch, fields)).collect();
        (!edited.is_empty()).then_some(Node::Array(edited))
    }

    /// Edits `oneOf`. Without the hidden fields, several branches may match the same arguments, so
    /// `oneOf` becomes `anyOf` if a branch was removed or changed. Returns `None` if `oneOf` must be
    /// removed: no branch is left, or it would become a second `anyOf`.
    fn edit_one_of<'s>(
        &mut self,
        branches: &Node<'s>,
        schema: &Node<'s>,
        fields: &[HiddenField<'f>],
    ) -> Option<(Cow<'s, str>, Node<'s>)> {
        let edited = self.edit_branches(branches, fields)?;
        match (edited != *branches, schema.get("anyOf")) {
            (false, _) => Some(("oneOf".into(), edited)),
            (true, None) => Some(("anyOf".into(), edited)),
            (true, Some(_)) => None,
        }
    }

    /// Removes the entries of hidden fields, since the model does not decide whether these fields
    /// are sent. Edits the entries of other fields.
    fn edit_dependencies<'s>(
        &mut self,
        dependencies: &Node<'s>,
        fields: &[HiddenField<'f>],
    ) -> Node<'s> {
        let Node::Object(dependencies) = dependencies else {
            return dependencies.clone();
        };
        let mut edited = Vec::new();
        for (name, needs) in dependencies {
            if !is_hidden(name, fields) {
                let needs = match needs {
                    Node::Array(_) => without_names(needs, fields),
                    other => self.edit(other, fields),
                };
                edited.push((name.clone(), needs));
            }
        }
        Node::Object(edited)
    }

    fn refer_to_copy<'s>(&mut self, reference: &Node<'s>, fields: &[HiddenField<'f>]) -> Node<'s> {
        let text = reference.as_text();
        let Some((keyword, encoded)) = text.as_deref().and_then(parse_reference) else {
            return reference.clone();
        };
        let original = decode(encoded);
        let exists = |name: &String| definition(self.root, keyword, name).is_some();
        let Some(original) = original.filter(exists) else {
            return reference.clone();
        };
        let same = |copy: &DefinitionCopy<'_>| {
            copy.keyword == keyword && copy.original == original && copy.fields == fields
        };
        let number = match self.copies.iter().position(same) {
            Some(at) => at,
            None if self.copies.len() >= MAX_COPIES => return reference.clone(),
            None => {
                let at = self.copies.len();
                self.copies.push(DefinitionCopy {
                    keyword,
                    name: format!("{original}.exposed{at}"),
                    original,
                    fields: fields.to_vec(),
                });
                at
            }
        };
        Node::string(&format!("#/{keyword}/{encoded}.exposed{number}"))
    }

    /// Removes each definition that was copied and is no longer referenced.
    fn drop_unused(&self, schema: &mut Node<'_>) {
        if self.copies.is_empty() {
            return;
        }
        let used = used_definitions(schema);
        let Node::Object(members) = schema else {
            return;
        };
        for (keyword, definitions) in members {
            if let Node::Object(definitions) = definitions {
                definitions.retain(|(name, _)| {
                    let copied = |copy: &DefinitionCopy<'_>| {
                        *keyword == copy.keyword && *copy.original == **name
                    };
                    let is_used = |(at, used): &(&str, String)| *keyword == *at && *used == **name;
                    !self.copies.iter().any(copied) || used.iter().any(is_used)
                });
            }
        }
    }
}

impl<'f> HiddenField<'f> {
    /// The field relative to the schema of a property; `None` if it is not below the property.
    fn below(&self, property: &str) -> Option<HiddenField<'f>> {
        let (first, rest) = self.path.split_first()?;
        (*first == property && !rest.is_empty()).then_some(Self {
            path: rest,
            ..*self
        })
    }
}

/// Whether a name occurs as a key or a string anywhere in a schema.
fn mentions(schema: &Node<'_>, name: &str) -> bool {
    let mut open = vec![schema];
    while let Some(node) = open.pop() {
        let is_key = node.members().iter().any(|(key, _)| key == name);
        if is_key || node.as_text().is_some_and(|text| text == name) {
            return true;
        }
        open.extend(node.members().iter().map(|(_, value)| value));
        open.extend(node.elements());
    }
    false
}

fn is_hidden(name: &str, fields: &[HiddenField<'_>]) -> bool {
    fields.iter().any(|field| field.path == [name])
}

fn without_names<'s>(names: &Node<'s>, fields: &[HiddenField<'_>]) -> Node<'s> {
    let Node::Array(names) = names else {
        return names.clone();
    };
    let kept = |name: &&Node<'s>| !name.as_text().is_some_and(|name| is_hidden(&name, fields));
    Node::Array(names.iter().filter(kept).cloned().collect())
}

/// Removes the value at a path, in each element of arrays on the path. Some servers compare names
/// case-insensitively, so every spelling of the path counts.
fn remove(node: &mut Node<'_>, path: &[&str]) {
    match (node, path) {
        (Node::Array(elements), _) => {
            for element in elements {
                remove(element, path);
            }
        }
        (Node::Object(members), [last]) => {
            members.retain(|(key, _)| !same_name(key, last));
        }
        (Node::Object(members), [first, rest @ ..]) => {
            for (key, value) in members {
                if same_name(key, first) {
                    remove(value, rest);
                }
            }
        }
        _ => {}
    }
}

/// The keyword and the encoded name of the definition that a reference names; `None` unless the
/// reference is `#/$defs/NAME` or `#/definitions/NAME`.
pub(super) fn parse_reference(reference: &str) -> Option<(&'static str, &str)> {
    DEFINITIONS.into_iter().find_map(|keyword| {
        let rest = reference.strip_prefix("#/")?.strip_prefix(keyword)?;
        let name = rest.strip_prefix('/')?;
        (!name.contains('/')).then_some((keyword, name))
    })
}

/// Decodes a segment of a reference (RFC 6901, section 6); `None` if it is not UTF-8.
pub(super) fn decode(encoded: &str) -> Option<String> {
    let decoded = percent_encoding::percent_decode_str(encoded);
    let decoded = decoded.decode_utf8().ok()?;
    Some(decoded.replace("~1", "/").replace("~0", "~"))
}

pub(super) fn definition<'n, 's>(
    schema: &'n Node<'s>,
    keyword: &str,
    name: &str,
) -> Option<&'n Node<'s>> {
    schema.get(keyword)?.get(name)
}

/// The definitions that are reachable, directly or through other definitions, from references
/// outside `$defs` and `definitions`.
fn used_definitions(schema: &Node<'_>) -> Vec<(&'static str, String)> {
    let mut seen = HashSet::new();
    let mut used = Vec::new();
    let mut open: Vec<&Node<'_>> = schema
        .members()
        .iter()
        .filter(|(key, _)| !DEFINITIONS.contains(&&**key))
        .map(|(_, value)| value)
        .collect();
    let own = schema.get("$ref").and_then(Node::as_text);
    let mut references: Vec<_> = own.map(Cow::into_owned).into_iter().collect();
    loop {
        for reference in references.drain(..) {
            let Some((keyword, encoded)) = parse_reference(&reference) else {
                continue;
            };
            let Some(name) = decode(encoded) else {
                continue;
            };
            if seen.insert((keyword, name.clone())) {
                open.extend(definition(schema, keyword, &name));
                used.push((keyword, name));
            }
        }
        let Some(node) = open.pop() else { return used };
        let reference = node.get("$ref").and_then(Node::as_text);
        references.extend(reference.map(Cow::into_owned));
        open.extend(node.members().iter().map(|(_, value)| value));
        open.extend(node.elements());
    }
}
