//! Reads which values a tool's `inputSchema` declares at a path of the arguments.

use std::cell::OnceCell;
use std::collections::HashSet;
use std::ptr;

use super::overrides::declares;
use super::schema::{decode, definition, parse_reference};
use crate::json::Node;

/// Limit on the schemas that are read for one place in the arguments; further ones are ignored.
const MAX_SHAPES: usize = 256;
/// The keywords whose schemas describe the same value as the schema around them.
const SAME_VALUE: [&str; 6] = ["allOf", "anyOf", "oneOf", "if", "then", "else"];
/// The keywords whose schemas describe the elements of an array.
const ELEMENTS: [&str; 2] = ["items", "prefixItems"];
/// The keywords of both lists.
const SAME_VALUE_OR_ELEMENTS: [&str; 8] = [
    "allOf",
    "anyOf",
    "oneOf",
    "if",
    "then",
    "else",
    "items",
    "prefixItems",
];

/// The schema of a tool's arguments, parsed at its first use.
pub(super) struct InputSchema<'s> {
    text: Option<&'s str>,
    root: OnceCell<Option<Node<'s>>>,
}

impl<'s> InputSchema<'s> {
    pub(super) fn new(text: Option<&'s str>) -> Self {
        Self {
            text,
            root: OnceCell::new(),
        }
    }

    fn root(&self) -> Option<&Node<'s>> {
        let parse = || self.text.and_then(|text| Node::parse(text).ok());
        self.root.get_or_init(parse).as_ref()
    }

    /// Whether the root of the schema declares a property of exactly this name.
    pub(super) fn declares(&self, property: &str) -> bool {
        self.root().is_some_and(|root| declares(root, property))
    }

    /// The schemas that may describe the value at a path, within `arrays` arrays. An array adds no
    /// name to the path.
    pub(super) fn shapes_at(&self, path: &[&str], arrays: usize) -> Vec<&Node<'s>> {
        let Some(root) = self.root() else {
            return Vec::new();
        };
        let mut here = vec![root];
        for name in path {
            let around = reach(root, here, &SAME_VALUE_OR_ELEMENTS).into_iter();
            let declared = around.filter_map(|shape| shape.get("properties")?.get(name));
            here = declared.collect();
        }
        for _ in 0..arrays {
            let around = reach(root, here, &SAME_VALUE).into_iter();
            here = around.flat_map(|shape| inner(shape, &ELEMENTS)).collect();
        }
        reach(root, here, &SAME_VALUE)
    }
}

/// Whether one of the schemas declares a property of exactly this name.
pub(super) fn declare(shapes: &[&Node<'_>], property: &str) -> bool {
    shapes.iter().any(|shape| declares(shape, property))
}

/// Whether the schemas declare arrays and no objects.
pub(super) fn are_arrays(shapes: &[&Node<'_>]) -> bool {
    let is = |kind: &str, keywords: &[&str]| {
        shapes.iter().any(|shape| {
            let declared = shape.get("type").into_iter();
            let mut declared = declared.flat_map(|one| one.elements().iter().chain([one]));
            declared.any(|one| one.as_text().is_some_and(|one| one == kind))
                || keywords.iter().any(|keyword| shape.get(keyword).is_some())
        })
    };
    is("array", &ELEMENTS) && !is("object", &["properties"])
}

/// The schemas that are reached from `start` over these keywords and over references, with `start`.
fn reach<'n, 's>(
    root: &'n Node<'s>,
    start: Vec<&'n Node<'s>>,
    keywords: &[&str],
) -> Vec<&'n Node<'s>> {
    let mut seen = HashSet::new();
    let mut reached = Vec::new();
    let mut open = start;
    while let Some(shape) = open.pop() {
        if reached.len() == MAX_SHAPES {
            break;
        }
        if seen.insert(ptr::from_ref(shape)) {
            reached.push(shape);
            open.extend(inner(shape, keywords));
            open.extend(referred(root, shape));
        }
    }
    reached
}

/// The schemas in these keywords of a schema, each of which has one schema or a list.
fn inner<'n, 's>(shape: &'n Node<'s>, keywords: &[&str]) -> Vec<&'n Node<'s>> {
    let values = keywords.iter().filter_map(|keyword| shape.get(keyword));
    let each = values.flat_map(|value| value.elements().iter().chain([value]));
    each.filter(|node| matches!(node, Node::Object(_)))
        .collect()
}

/// The definition to which a schema refers.
fn referred<'n, 's>(root: &'n Node<'s>, shape: &Node<'s>) -> Option<&'n Node<'s>> {
    let reference = shape.get("$ref")?.as_text()?;
    let (keyword, encoded) = parse_reference(&reference)?;
    definition(root, keyword, &decode(encoded)?)
}
