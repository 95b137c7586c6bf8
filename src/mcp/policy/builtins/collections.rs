//! Functions of sets, lists and objects.

use std::collections::BTreeSet;

use regorus::Value;
use regorus::value::{Object, Set};

use super::{Outcome, Stop, array, elements, object, occurrences, set};

pub fn count(value: &Value) -> Outcome {
    let count = match value {
        Value::Array(list) => list.len(),
        Value::Object(fields) => fields.len(),
        Value::Set(members) => members.len(),
        Value::String(text) => text.chars().count(),
        _ => return Err(Stop::Undefined),
    };
    Ok(Value::from(count))
}

pub fn union(sets: &Value) -> Outcome {
    let mut all = Set::new();
    for members in set(sets)?.iter() {
        for member in set(members)?.iter() {
            all.insert(member.clone());
        }
    }
    Ok(all.into_value())
}

pub fn object_union_n(objects: &Value) -> Outcome {
    let mut all = Value::new_object();
    for fields in array(objects)?.iter() {
        merge(&mut all, object(fields)?);
    }
    Ok(all)
}

/// Inserts `fields` into an object. Merges two values of one key if both are objects.
fn merge(into: &mut Value, fields: &Object) {
    let Ok(into) = into.as_object_mut() else {
        return;
    };
    for (key, value) in fields.iter() {
        match (into.get_mut(key), value) {
            (Some(old @ Value::Object(_)), Value::Object(fields)) => merge(old, fields),
            _ => {
                into.insert(key.clone(), value.clone());
            }
        }
    }
}

pub fn subset(whole: &Value, part: &Value) -> Outcome {
    let contained = match (whole, part) {
        (Value::Array(whole), Value::Set(part)) => {
            let whole: BTreeSet<&Value> = whole.iter().collect();
            part.iter().all(|member| whole.contains(member))
        }
        (Value::Object(_), Value::Object(_))
        | (Value::Set(_), Value::Set(_))
        | (Value::Array(_), Value::Array(_)) => contains(whole, part),
        _ => return Err(Stop::Undefined),
    };
    Ok(Value::from(contained))
}

fn contains(whole: &Value, part: &Value) -> bool {
    match (whole, part) {
        (Value::Object(whole), Value::Object(part)) => part
            .iter()
            .all(|(key, part)| whole.get(key).is_some_and(|whole| contains(whole, part))),
        (Value::Set(whole), Value::Set(part)) => part.is_subset(whole),
        (Value::Array(whole), Value::Array(part)) => {
            part.is_empty() || !occurrences(whole.as_slice(), part.as_slice()).is_empty()
        }
        _ => whole == part,
    }
}

pub fn reachable_paths(graph: &Value, from: &Value) -> Outcome {
    let graph = object(graph)?;
    let mut paths = BTreeSet::new();
    for root in elements(from)? {
        let Some(edges) = graph.get(root) else {
            continue;
        };
        let mut path = vec![root.clone()];
        let neighbours = elements(edges).unwrap_or_default();
        if neighbours.is_empty() {
            paths.insert(Value::from(path.clone()));
        }
        for neighbour in neighbours {
            extend_path(
                graph,
                neighbour,
                &mut path,
                &mut paths,
                &[root.clone()].into(),
            );
        }
    }
    Ok(Value::from(paths))
}

/// Adds the paths that begin with `path` and go on to `node`. `reached` are nodes that end a path
/// of which they are the neighbours.
fn extend_path(
    graph: &Object,
    node: &Value,
    path: &mut Vec<Value>,
    paths: &mut BTreeSet<Value>,
    reached: &BTreeSet<Value>,
) {
    let Some(edges) = graph.get(node) else {
        paths.insert(Value::from(path.clone()));
        return;
    };
    path.push(node.clone());
    let neighbours = elements(edges).unwrap_or_default();
    if neighbours.is_empty() {
        paths.insert(Value::from(path.clone()));
    }
    let mut reached = reached.clone();
    reached.insert(node.clone());
    for neighbour in neighbours {
        if reached.contains(neighbour) {
            paths.insert(Value::from(path.clone()));
        } else {
            extend_path(graph, neighbour, path, paths, &reached);
        }
    }
    path.pop();
}
