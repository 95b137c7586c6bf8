//! Parses GraphQL text to a tree of the parts that a verdict depends on.

use std::collections::{HashMap, HashSet};

use apollo_parser::{Lexer, Parser, TokenKind, cst};

use super::budget::Budget;
use super::malformed;
use crate::contract::Denial;

/// The deepest nesting of brackets: selections, arguments, lists and objects.
const MAX_NESTING: usize = 64;

/// A document, which consists of operations and fragments only.
#[derive(Default)]
pub(super) struct Document {
    pub(super) operations: Vec<Operation>,
    pub(super) fragments: HashMap<String, Vec<Selection>>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum OperationKind {
    Query,
    Mutation,
    Subscription,
}

pub(super) struct Operation {
    pub(super) kind: OperationKind,
    /// The default values by the variable's name. A variable without a default is absent.
    pub(super) defaults: HashMap<String, Value>,
    pub(super) selections: Vec<Selection>,
}

pub(super) enum Selection {
    Field(Field),
    /// `...Name`
    Spread(String),
    /// `... on Type { }`
    Inline(Vec<Selection>),
}

/// A field under its own name. Aliases are dropped, since they do not change its meaning.
pub(super) struct Field {
    pub(super) name: String,
    pub(super) arguments: Vec<(String, Value)>,
    pub(super) selections: Vec<Selection>,
}

/// A value as it is written. Numbers and booleans become `Plain`, since no rule depends on them.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Value {
    Variable(String),
    /// A string, or an enum value.
    Text(String),
    Plain,
    Null,
    List(Vec<Value>),
    Object(Vec<(String, Value)>),
}

/// Parses a document. Refuses text with syntax errors, which the parser would repair.
pub(super) fn parse(text: &str, budget: &mut Budget) -> Result<Document, Denial> {
    budget.spend_text(text.len())?;
    let tokens = count_tokens(text, budget.tokens())?;
    budget.spend_tokens(tokens)?;
    let tree = Parser::new(text)
        .recursion_limit(MAX_NESTING)
        .token_limit(tokens)
        .parse();
    if let Some(error) = tree.errors().next() {
        return Err(malformed(error.message()));
    }
    let mut document = Document::default();
    for definition in tree.document().definitions() {
        match definition {
            cst::Definition::OperationDefinition(node) => {
                document.operations.push(operation(&node)?);
            }
            cst::Definition::FragmentDefinition(node) => {
                let name = name_of(node.fragment_name().and_then(|name| name.name()))?;
                let selections = selections(required(node.selection_set())?)?;
                if document.fragments.insert(name, selections).is_some() {
                    return Err(malformed("two fragments have the same name"));
                }
            }
            _ => return Err(malformed("a type definition is not a request")),
        }
    }
    if document.operations.is_empty() {
        return Err(malformed("there is no operation"));
    }
    Ok(document)
}

/// Counts tokens, up to one more than `most`. Refuses text that nests too deeply, before the parser
/// recurses or builds a tree.
fn count_tokens(text: &str, most: usize) -> Result<usize, Denial> {
    let mut depth = 0_usize;
    let mut count = 0;
    for token in Lexer::new(text).take(most.saturating_add(1)) {
        let token = token.map_err(|error| malformed(error.message()))?;
        count += 1;
        match token.kind() {
            TokenKind::LCurly | TokenKind::LBracket | TokenKind::LParen => depth += 1,
            TokenKind::RCurly | TokenKind::RBracket | TokenKind::RParen => {
                depth = depth.saturating_sub(1);
            }
            _ => {}
        }
        if depth > MAX_NESTING {
            return Err(malformed(format_args!(
                "the query is nested more than {MAX_NESTING} levels deep"
            )));
        }
    }
    Ok(count)
}

fn required<T>(part: Option<T>) -> Result<T, Denial> {
    part.ok_or_else(|| malformed("the document is not complete"))
}

fn name_of(name: Option<cst::Name>) -> Result<String, Denial> {
    Ok(required(name)?.text().into())
}

fn operation(node: &cst::OperationDefinition) -> Result<Operation, Denial> {
    let kind = match node.operation_type() {
        None => OperationKind::Query,
        Some(named) if named.query_token().is_some() => OperationKind::Query,
        Some(named) if named.mutation_token().is_some() => OperationKind::Mutation,
        Some(_) => OperationKind::Subscription,
    };
    let mut names = HashSet::new();
    let mut defaults = HashMap::new();
    let definitions = node.variable_definitions().into_iter();
    for definition in definitions.flat_map(|list| list.variable_definitions()) {
        let name = name_of(definition.variable().and_then(|variable| variable.name()))?;
        if !names.insert(name.clone()) {
            return Err(malformed("a variable is defined twice"));
        }
        if let Some(default) = definition.default_value() {
            defaults.insert(name, value(required(default.value())?)?);
        }
    }
    Ok(Operation {
        kind,
        defaults,
        selections: selections(required(node.selection_set())?)?,
    })
}

fn selections(set: cst::SelectionSet) -> Result<Vec<Selection>, Denial> {
    let mut found = Vec::new();
    for selection in set.selections() {
        found.push(match selection {
            cst::Selection::Field(node) => Selection::Field(field(&node)?),
            cst::Selection::FragmentSpread(node) => {
                let name = node.fragment_name().and_then(|name| name.name());
                Selection::Spread(name_of(name)?)
            }
            cst::Selection::InlineFragment(node) => {
                Selection::Inline(selections(required(node.selection_set())?)?)
            }
        });
    }
    Ok(found)
}

fn field(node: &cst::Field) -> Result<Field, Denial> {
    let arguments = node.arguments().into_iter();
    let arguments = arguments.flat_map(|list| list.arguments());
    Ok(Field {
        name: name_of(node.name())?,
        arguments: named_values(arguments.map(|argument| (argument.name(), argument.value())))?,
        selections: node
            .selection_set()
            .map_or_else(|| Ok(Vec::new()), selections)?,
    })
}

fn value(node: cst::Value) -> Result<Value, Denial> {
    Ok(match node {
        cst::Value::Variable(node) => Value::Variable(name_of(node.name())?),
        cst::Value::StringValue(node) => Value::Text(node.into()),
        cst::Value::EnumValue(node) => Value::Text(name_of(node.name())?),
        cst::Value::NullValue(_) => Value::Null,
        cst::Value::FloatValue(_) | cst::Value::IntValue(_) | cst::Value::BooleanValue(_) => {
            Value::Plain
        }
        cst::Value::ListValue(node) => {
            Value::List(node.values().map(value).collect::<Result<_, _>>()?)
        }
        cst::Value::ObjectValue(node) => {
            let members = node.object_fields();
            Value::Object(named_values(
                members.map(|member| (member.name(), member.value())),
            )?)
        }
    })
}

/// Reads arguments or the fields of an object. Refuses duplicate names: some servers use the first
/// value, others the last.
fn named_values(
    nodes: impl Iterator<Item = (Option<cst::Name>, Option<cst::Value>)>,
) -> Result<Vec<(String, Value)>, Denial> {
    let named = nodes.map(|(name, node)| Ok((name_of(name)?, value(required(node)?)?)));
    let named: Vec<_> = named.collect::<Result<_, Denial>>()?;
    let mut names = HashSet::new();
    if named.iter().all(|(name, _)| names.insert(name)) {
        Ok(named)
    } else {
        Err(malformed(
            "two arguments of a field, or two fields of an object, have the same name",
        ))
    }
}
